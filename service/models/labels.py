"""The names of a model's classes, and the lookup of a class by its name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from service.core.errors import AmbiguousLabel, UnknownLabel


@dataclass(frozen=True)
class Labels:
    """One display name per class, and the synonyms of classes that have several names.

    Lookups ignore case and treat spaces, hyphens and underscores as equal.
    """

    names: tuple[str, ...]
    _meant: dict[str, tuple[int, ...]] = field(repr=False)

    @classmethod
    def of(cls, names: Sequence[str], synonyms: Sequence[Iterable[str]] | None = None) -> Labels:
        meant: dict[str, tuple[int, ...]] = {}
        for index, name in enumerate(names):
            # In their order, so that each process tells a model in the same words.
            for plain in dict.fromkeys(map(_plain, [name, *(synonyms[index] if synonyms else ())])):
                meant[plain] = (*meant.get(plain, ()), index)
        return cls(tuple(names), meant)

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str | None:
        return self.names[index] if index < len(self.names) else None

    @property
    def synonyms(self) -> dict[str, list[int]]:
        """Further names, in the form in which they are looked up, each with the classes that have
        it beside their label."""
        labels = [*map(_plain, self.names)]
        found = {
            name: [index for index in classes if labels[index] != name]
            for name, classes in self._meant.items()
        }
        return {name: classes for name, classes in found.items() if classes}

    def meant(self, target: str) -> int:
        """Return the index of the class that a number or a label means.

        Raises:
            UnknownLabel: if no class has this label; the message names the nearest labels.
            AmbiguousLabel: if several classes are meant; the message names each of them.
        """
        if not target.isdecimal():
            return self.index(target)
        index, called = int(target), self._meant.get(_plain(target), ())
        if called in ((), (index,)):
            return index
        classes = " and ".join(f"{index} ({self.names[index]!r})" for index in called)
        indexed = (
            f"class {index} is called {self.names[index]!r}"
            if index < len(self)
            else f"there is no class {index}"
        )
        raise AmbiguousLabel(
            f"{target[:40]} is the label of class {classes}, and {indexed}: say "
            f'{{"label": "{target[:40]}"}} or {{"index": {index}}}'
        )

    def index(self, label: str) -> int:
        """Return the index of the class with this label.

        Raises:
            UnknownLabel: if no class has this label; the message names the nearest labels.
            AmbiguousLabel: if several classes have it; the message names each of them.
        """
        meant = self._meant.get(_plain(label), ())
        if len(meant) == 1:
            return meant[0]
        if meant:
            classes = " and ".join(f"{index} ({self.names[index]})" for index in meant)
            raise AmbiguousLabel(
                f"the label {label[:80]!r} names {len(meant)} classes: {classes}; give the index"
            )
        if not self.names:
            raise UnknownLabel(
                f"the model has no labels, so no class is called {label[:80]!r}; give the index"
            )
        hint = ", ".join(repr(self._shown(name)) for name in self._near(_plain(label)[:80]))
        rest = f"the nearest labels are {hint}" if hint else f"e.g. {self.names[0]!r} is one"
        raise UnknownLabel(
            f"no class is called {label[:80]!r}; {rest}, and GET /v1/models/MODEL lists all"
        )

    def _near(self, plain: str) -> list[str]:
        """Return the names in `_meant` that are nearest to what was asked, as a whole or by one of
        their words."""
        words = {word for name in self._meant for word in name.split()}
        of_words = [
            name
            for like in difflib.get_close_matches(plain, words, 3, 0.75)
            for name in self._meant
            if like in name.split()
        ]
        whole = difflib.get_close_matches(plain, self._meant, 3, 0.5)

        def nearness(name: str) -> float:
            parts = [name, *name.split()]
            return max(difflib.SequenceMatcher(None, plain, part).ratio() for part in parts)

        return sorted(dict.fromkeys([*whole, *of_words]), key=nearness, reverse=True)[:3]

    def _shown(self, plain: str) -> str:
        """Return the display form of a name in `_meant`."""
        name = self.names[self._meant[plain][0]]
        return name if _plain(name) == plain else plain


def read_labels(file: Path) -> Labels:
    """Read a label file: UTF-8, one label a line, in the order of the classes.

    Raises:
        OSError: if the file cannot be read.
        UnicodeDecodeError: if it is not UTF-8.
    """
    # str.splitlines would also split at characters that may occur in names: U+2028, form feeds.
    lines = file.read_text(encoding="utf-8-sig").split("\n")
    return Labels.of([line.strip() for line in lines if line.strip()])


def _plain(label: str) -> str:
    return " ".join(label.casefold().replace("_", " ").replace("-", " ").split())
