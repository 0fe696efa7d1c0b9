"""Prints what extras need beside requirements.lock, pinned and hashed: the part of the tests' lock
that stands for it. Dockerfile and Makefile install it: python3 deploy/extras.py hf,text"""

import re
import sys
import tomllib
from pathlib import Path


def read(lock: str) -> dict[str, str]:
    """Return the name of each package → its text in a lock file, for all versions of Python."""
    found: dict[str, str] = {}
    for part in re.split(r"^(?=[a-z0-9])", Path(lock).read_text(encoding="utf-8"), flags=re.M)[1:]:
        name = part.partition("==")[0]
        found[name] = found.get(name, "") + part
    return found


def main() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    there, locked = read("requirements.lock"), read("requirements-test.lock")
    parents = {
        name: set(re.findall(r"^ +#(?: via)? +([a-z0-9-]+)", text, re.M))
        for name, text in locked.items()
    }
    needed: set[str] = set()
    for extra in filter(None, sys.argv[1].split(",")):
        if extra not in extras:
            sys.exit(f"there is no extra {extra!r}; the extras are {', '.join(extras)}")
        names = {re.split(r"[^a-z0-9-]", each)[0] for each in extras[extra]}
        if unknown := names - locked.keys():
            sys.exit(
                f"the extra {extra!r} needs {', '.join(sorted(unknown))}, which no lock file has; "
                "docs/deployment.md says how to derive an image"
            )
        while names := names - there.keys() - needed:
            needed |= names
            names = {name for name, above in parents.items() if above & names}
    print("".join(locked[name] for name in sorted(needed)), end="")


main()
