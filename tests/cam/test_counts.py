"""A number and the words after it agree."""

from __future__ import annotations

from cam.counts import counted


def test_one_thing_is_not_several() -> None:
    assert [counted(number, "map") for number in (0, 1, 2)] == ["0 maps", "1 map", "2 maps"]
    assert [counted(number, "class", "classes") for number in (1, 3)] == ["1 class", "3 classes"]
    assert counted(1, "job is", "jobs are") == "1 job is"


def test_a_number_is_written_as_asked() -> None:
    assert counted(2000, "map", form=",") == "2,000 maps"
    assert counted(1e6 / 1e6, "megapixel", form="g") == "1 megapixel"
    assert counted(0.5, "megapixel", form="g") == "0.5 megapixels"
