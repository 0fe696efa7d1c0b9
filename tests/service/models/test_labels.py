from __future__ import annotations

from pathlib import Path

import pytest

from service.core.errors import AmbiguousLabel, UnknownLabel
from service.loading.served_model import imagenet
from service.models.labels import Labels, read_labels


@pytest.fixture(scope="module")
def labels() -> Labels:
    return imagenet()


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("Egyptian cat", 285),
        ("egyptian_cat", 285),
        ("  EGYPTIAN-CAT ", 285),
        ("espresso", 967),
        ("tabby cat", 281),  # a synonym of WordNet's
        ("crane bird", 134),
    ],
)
def test_a_label_or_a_synonym_names_its_class(labels: Labels, name: str, index: int) -> None:
    assert labels.index(name) == index


def test_synonyms_are_told_without_the_labels(labels: Labels) -> None:
    for name in ("orca", "tabby cat", "laptop computer"):
        assert labels.synonyms[name] == [labels.index(name)]
    assert labels.synonyms["crane"] == [134]  # it is the label of 517
    assert "egyptian cat" not in labels.synonyms
    assert Labels.of(["a cat", "A-Cat "]).synonyms == {}
    assert list(Labels.of(["a"], [["h", "d", "b", "g", "c", "f", "e"]]).synonyms) == list("hdbgcfe")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("crane", r"'crane' names 2 classes: 134 \(crane bird\) and 517 \(crane\); give the index"),
        ("maillot", r"638 \(maillot\) and 639 \(maillot tank suit\)"),
    ],
)
def test_an_ambiguous_label_says_both_indices(labels: Labels, name: str, words: str) -> None:
    with pytest.raises(AmbiguousLabel, match=words):
        labels.index(name)


def test_an_unknown_label_says_the_nearest(labels: Labels) -> None:
    with pytest.raises(UnknownLabel, match=r"no class is called 'egiptian cat'; .*'Egyptian cat'"):
        labels.index("egiptian cat")
    with pytest.raises(UnknownLabel, match=r"the nearest labels are .*'tiger cat'"):
        labels.index("tigr cat")
    with pytest.raises(UnknownLabel, match="has no labels"):
        Labels.of(()).index("cat")


@pytest.mark.parametrize(
    ("asked", "near"), [("catt", "'tiger cat', 'Egyptian cat'"), ("persan", "'Persian cat'")]
)
def test_labels_are_near_of_which_a_word_is_nearly_what_was_asked(asked: str, near: str) -> None:
    names = ["crate", "coast", "cassette", "tiger cat", "Egyptian cat", "Persian cat", "dog"]
    with pytest.raises(UnknownLabel, match=near):
        Labels.of(names).index(asked)


def test_a_number_that_could_mean_two_classes() -> None:
    labels = Labels.of(["1", "2", "0", "3", "9"])
    assert labels.meant("3") == 3
    assert labels.meant("4") == 4
    with pytest.raises(
        AmbiguousLabel,
        match=r"^1 is the label of class 0 \('1'\), and class 1 is called '2': say "
        r'{"label": "1"} or {"index": 1}$',
    ):
        labels.meant("1")
    with pytest.raises(AmbiguousLabel, match=r"9 is the label of class 4 .*there is no class 9"):
        labels.meant("9")
    assert labels.index("1") == 0
    assert Labels.of(["0", "1", "2"]).meant("2") == 2
    assert Labels.of(["cat", "dog"]).meant("1") == 1


def test_a_label_file_is_split_at_line_ends_only(tmp_path: Path) -> None:
    file = tmp_path / "labels.txt"
    file.write_bytes("tabby\x0bcat\r\ntiger\u2028cat\rlynx\x85\n".encode())
    assert [" ".join(name.split()) for name in read_labels(file).names] == [
        "tabby cat",
        "tiger cat",
        "lynx",
    ]


def test_a_label_file(tmp_path: Path) -> None:
    file = tmp_path / "labels.txt"
    file.write_text("Katze\nHündin \n\nKatze\n", encoding="utf-8")
    labels = read_labels(file)
    assert labels.names == ("Katze", "Hündin", "Katze")
    assert labels.index("hündin") == 1
    with pytest.raises(AmbiguousLabel, match=r"0 \(Katze\) and 2 \(Katze\)"):
        labels.index("katze")
    assert labels.name(3) is None
