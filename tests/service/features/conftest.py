"""The own tests of a feature, or of the client, are quick ones only if its folder has changed or is
named on the command line; else they run with the slow ones. What is marked `contract` is always
quick."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests/service"
OF_FOLDER = re.compile(r"(?:tests/)?service/(features/\w+|client)/")


def git(*arguments: str) -> list[str] | None:
    """The lines that git prints; None where it cannot."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.splitlines() if done.returncode == 0 else None


def changed_folders() -> set[str] | None:
    """The folders whose files are not as they were published, or, where nothing says what was, not
    as they were committed; None if git cannot tell."""
    base = git("rev-parse", "--abbrev-ref", "@{upstream}") or ["HEAD"]
    changed = git("diff", "--name-only", base[0])
    added = git("ls-files", "--others", "--exclude-standard")
    if changed is None or added is None:
        return None
    return {found[1] for path in changed + added if (found := OF_FOLDER.match(path))}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    changed = changed_folders()
    if changed is None:
        return
    named = {Path(each.partition("::")[0]).absolute() for each in config.args}
    for item in items:
        found = OF_FOLDER.match(item.path.relative_to(ROOT).as_posix())
        if found is None or found[1] in changed or item.get_closest_marker("contract"):
            continue
        folder = TESTS / found[1]
        if not any(each in (folder, folder.parent) or folder in each.parents for each in named):
            item.add_marker(pytest.mark.slow)
