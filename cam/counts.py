"""Numbers of things in sentences: one map, but two maps."""

from __future__ import annotations


def counted(number: float, one: str, several: str | None = None, form: str = "") -> str:
    """Return a number with the words that agree with it: "1 map", "2 maps".

    Args:
        one: the words after 1.
        several: the words after any other number; by default, those after 1 with an s.
        form: how the number is written, as `format` takes it.
    """
    return f"{number:{form}} {one if number == 1 else several or one + 's'}"
