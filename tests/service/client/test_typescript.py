"""The TypeScript of docs/client.md compiles against generated types, and runs under Node."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.service.live import ROOT

TOOLS = Path(__file__).with_name("typescript") / "node_modules"
STRICT = ("--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("node"), reason="there is no node")
@pytest.mark.skipif(not TOOLS.exists(), reason="make check installs the tools, if there is npm")
def test_the_typescript_of_the_page(address: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```ts\n(.*?)```", page, re.DOTALL)
    (options,) = re.findall(r"openapi\.json (--default-non-nullable \w+)", page)
    (tmp_path / "main.ts").write_text(program.replace("http://127.0.0.1:8000", address))
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "node_modules").symlink_to(TOOLS)
    (tmp_path / "docs").symlink_to(ROOT / "docs")

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    document = str(ROOT / "openapi" / "openapi.json")
    generate = str(TOOLS / ".bin" / "openapi-typescript")
    run(generate, document, *options.split(), "-o", "gradcam.d.ts")
    run(str(TOOLS / ".bin" / "tsc"), *STRICT, "main.ts")
    assert run("node", "main.js") == "Egyptian cat layercam [ 300, 451 ]\n"
