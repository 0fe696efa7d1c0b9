"""The TypeScript and Go of docs/client.md compile against generated types, and run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.service.live import ROOT

DOCUMENT = ROOT / "openapi" / "openapi.json"
PAGE = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
NODE_MODULES = Path(__file__).with_name("typescript") / "node_modules"
STRICT = ("--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck")
GENERATOR = ROOT / ".venv" / "generator" / "bin" / "openapi-generator-cli"
MODULE = """module example.com/me/program
go 1.19
require example.com/me/gradcam v0.0.0
replace example.com/me/gradcam => ./gradcam
"""

pytestmark = pytest.mark.slow


def written(folder: Path, language: str, name: str, address: str) -> None:
    """Write the page's program into a folder that has the page's photos."""
    (program,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    (folder / name).write_text(program.replace("http://127.0.0.1:8000", address))
    (folder / "docs").symlink_to(ROOT / "docs")


def run(folder: Path, *command: object) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(not shutil.which("node"), reason="there is no node")
@pytest.mark.skipif(not NODE_MODULES.exists(), reason="make check installs them, if there is npm")
def test_typescript(address: str, tmp_path: Path) -> None:
    (options,) = re.findall(r"openapi\.json (--default-non-nullable \w+)", PAGE)
    written(tmp_path, "ts", "main.ts", address)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    tools = NODE_MODULES / ".bin"
    run(tmp_path, tools / "openapi-typescript", DOCUMENT, *options.split(), "-o", "gradcam.d.ts")
    run(tmp_path, tools / "tsc", *STRICT, "main.ts")
    assert run(tmp_path, "node", "main.js") == "Egyptian cat layercam [ 300, 451 ]\n"


def without_defaults(schema: Any) -> Any:
    """What the page's line of jq does."""
    if isinstance(schema, dict):
        kept = {
            name: value
            for name, value in schema.items()
            if name != "default" or isinstance(value, dict)
        }
        return {name: without_defaults(value) for name, value in kept.items()}
    return [without_defaults(each) for each in schema] if isinstance(schema, list) else schema


@pytest.mark.skipif(not shutil.which("go"), reason="there is no go")
@pytest.mark.skipif(not shutil.which("java"), reason="openapi-generator needs java")
@pytest.mark.skipif(not GENERATOR.exists(), reason="make check installs it")
def test_go(address: str, tmp_path: Path) -> None:
    written(tmp_path, "go", "main.go", address)
    (command,) = re.findall(r"openapi-generator-cli@\S+ (generate .*?)\n```", PAGE, re.DOTALL)
    (tmp_path / "api.json").write_text(
        json.dumps(without_defaults(json.loads(DOCUMENT.read_text())))
    )
    run(tmp_path, GENERATOR, *shlex.split(command.replace("\\\n", " ")))
    shutil.rmtree(tmp_path / "gradcam" / "test")  # They import a package for tests.
    # It asks for a Go that is newer than what its code needs.
    run(tmp_path / "gradcam", "go", "mod", "edit", "-go=1.19")
    (tmp_path / "go.mod").write_text(MODULE)
    assert run(tmp_path, "go", "run", "main.go") == "Egyptian cat gradcam [300 451]\n"
