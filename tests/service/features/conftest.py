"""A feature's own tests are quick ones only if its folder has changed, or is named on the command
line; else they run with the slow ones. What is marked `contract` is always quick."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
OF_FEATURE = re.compile(r"(?:tests/)?service/features/(\w+)/")


def git(*arguments: str) -> list[str] | None:
    """The lines that git prints; None where it cannot."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.splitlines() if done.returncode == 0 else None


def changed_features() -> set[str] | None:
    """Names of the features whose files are not as they were published, or, where nothing says what
    was, not as they were committed; None if git cannot tell."""
    base = git("rev-parse", "--abbrev-ref", "@{upstream}") or ["HEAD"]
    changed = git("diff", "--name-only", base[0])
    added = git("ls-files", "--others", "--exclude-standard")
    if changed is None or added is None:
        return None
    return {found[1] for path in changed + added if (found := OF_FEATURE.match(path))}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    changed = changed_features()
    if changed is None:
        return
    named = {Path(each.partition("::")[0]).absolute() for each in config.args}
    for item in items:
        if HERE not in item.path.parents or item.path.parent == HERE:
            continue
        feature = item.path.relative_to(HERE).parts[0]
        folder = HERE / feature
        asked = any(each in (HERE, folder) or folder in each.parents for each in named)
        if feature not in changed and not asked and not item.get_closest_marker("contract"):
            item.add_marker(pytest.mark.slow)
