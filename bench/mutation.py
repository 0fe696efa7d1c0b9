"""Mutation testing: small changes of the library's code that no test notices.

    python -m bench.mutation cam/methods/gradients.py cam/targets.py --jobs 2
    python -m bench.mutation --write bench/results/mutation.json

Each mutant is one change of one file: another operator, constant or reduction, a condition that is
always true or false, a call or statement left out. It is killed if a test fails or hangs. Of the
file's tests (`SUITES`) those are run that call the changed function, the quickest first, without
those that take longer than `--slowest`. Every mutant runs in a fork of a process that has imported
all but the library and its tests, so it costs what its tests cost.

mutmut 3.8 was tried first. It changes neither module constants nor what is in a decorated function
(context managers, properties), and it has no operators for `with` blocks, conditions and methods
of tensors: it misses half of the changes that this finds.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import importlib
import importlib.machinery
import importlib.util
import inspect
import io
import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, process_time
from types import CodeType, FrameType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
_PASSES = ["test_stepwise", "test_grad_modes", "test_explain", "test_targets"]
SUITES = {
    "cam/methods/__init__.py": ["test_methods", "test_abilities", "test_smoothing", *_PASSES],
    "cam/methods/gradients.py": ["test_methods", "test_derivatives"],
    "cam/methods/comparison.py": ["test_comparison"],
    "cam/methods/linear.py": ["test_head", "test_reading", "test_stepwise"],
    "cam/methods/components.py": [
        "test_separation", "test_components", "test_methods", "test_smoothing",
    ],
    "cam/methods/derivatives.py": ["test_derivatives", *_PASSES],
    "cam/methods/perturbation.py": ["test_masking", "test_perturbation", *_PASSES],
    "cam/methods/pixels.py": ["test_pixels", "test_derivatives", *_PASSES],
    "cam/methods/biases.py": [
        "test_biases", "test_abilities", "test_pixels", "test_precision", "test_bad_input",
        *_PASSES,
    ],
    "cam/methods/subject.py": [
        "test_perturbation", "test_masking", "test_pixels", "test_derivatives", "test_output",
        *_PASSES,
    ],
    "cam/methods/method.py": ["test_methods", "test_smoothing", "test_pixels", *_PASSES],
    "cam/methods/attention.py": ["test_attention", "test_attention_kinds"],
    "cam/detectors/methods.py": ["test_drise", "test_detectors", "test_query_detectors"],
    "cam/grids.py": ["test_grids", "test_locate"],
    "cam/layers.py": ["test_layers", "test_detectors", "test_locate", "test_bad_input"],
    "cam/targets.py": ["test_targets", "test_output", "test_smoothing", "test_reading"],
    "cam/output.py": ["test_outputs_of", "test_output", "test_head", "test_reading", *_PASSES],
}  # fmt: skip
"""File → the files in tests/cam that test it."""

SWAPPED_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.MatMult: ast.Mult,
}  # fmt: skip
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
_PAIRS = [
    ("mean", "sum"), ("amax", "amin"), ("max", "min"), ("argmax", "argmin"), ("any", "all"),
    ("maximum", "minimum"), ("zeros", "ones"), ("zeros_like", "ones_like"), ("eq", "ne"),
]  # fmt: skip
SWAPPED_CALLS = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
DROPPED_CALLS = {
    "abs", "clamp", "clone", "cpu", "detach", "double", "flip", "float", "relu", "requires_grad_",
    "rsqrt", "softmax", "sort", "sqrt", "to",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    line: int
    before: str
    """The line, or what of it is changed."""
    after: str
    source: bytes
    """The whole file with the change in it."""
    function: int | None
    """The first line of the function that it is in; None at the module's or a class's level."""


def mutants(source: bytes) -> list[Mutant]:
    """All of a file, line by line."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: dict[bytes, Mutant] = {}
    for node, after, function in _Changes().of(ast.parse(source)):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        changed = source[:begin] + after.encode() + source[end:]
        before = " ".join(source[begin:end].decode().split())
        if changed != source:
            found.setdefault(changed, Mutant(node.lineno, before, after, changed, function))
    return sorted(found.values(), key=lambda mutant: mutant.line)


class _Changes:
    """Walks a tree and yields a node, the text that replaces it, and its function's first line."""

    def of(self, tree: ast.AST) -> Iterator[tuple[Any, str, int | None]]:
        yield from self._walk(tree, None, None, raised=False)

    def _walk(
        self, node: ast.AST, parent: ast.AST | None, function: int | None, *, raised: bool
    ) -> Iterator[tuple[Any, str, int | None]]:
        if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr | ast.Assert):
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("Literal", "Callable"):
            return
        if isinstance(node, ast.FunctionDef):
            function = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        raised = raised or isinstance(node, ast.Raise)
        if not (raised and isinstance(node, ast.Constant)):
            for after in _replacements(node, parent):
                yield node, after, function
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "optional_vars"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.comprehension):
                    for test in child.ifs:
                        yield test, "True", function
                if isinstance(child, ast.withitem) and not child.optional_vars:
                    yield child.context_expr, "__import__('contextlib').nullcontext()", function
                if isinstance(child, ast.AST):
                    yield from self._walk(child, node, function, raised=raised)


def _replacements(node: ast.AST, parent: ast.AST | None) -> Iterator[str]:
    """What may stand in a node's place."""

    def text(kind: type[ast.AST], **fields: Any) -> str:
        return f"({ast.unparse(kind(**fields))})"

    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPPED_OPERATORS:
            yield text(ast.BinOp, left=left, op=SWAPPED_OPERATORS[type(op)](), right=right)
        case ast.AugAssign(target=target, op=op, value=value):
            swapped: Any = SWAPPED_OPERATORS[type(op)]()
            yield ast.unparse(ast.AugAssign(target=target, op=swapped, value=value))
            yield f"{ast.unparse(target)} = {ast.unparse(value)}"
        case ast.Compare(left=left, ops=[op], comparators=others):
            for other in COMPARISONS[type(op)]:
                yield text(ast.Compare, left=left, ops=[other()], comparators=others)
        case ast.BoolOp(op=op, values=values):
            for dropped in range(len(values)):
                rest = values[:dropped] + values[dropped + 1 :]
                yield text(ast.BoolOp, op=op, values=rest)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            yield f"({1 - value})"
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int(value)) if not isinstance(parent, ast.UnaryOp):
            yield str(value + 1)
        case ast.Constant(value=float(value)):
            yield str(value + 1)
            if value > 1e-3:
                yield str(value / 10)
        case ast.Constant(value=str(value)):
            yield repr(f"{value}X")
        case ast.Tuple(elts=[ast.Constant() as one, ast.Constant() as other], ctx=ast.Load()):
            yield from (f"({ast.unparse(one)},)", f"({ast.unparse(other)},)")
        case ast.Tuple(elts=[one, other], ctx=ast.Load()) if not isinstance(one, ast.Starred):
            yield text(ast.Tuple, elts=[other, one], ctx=ast.Load())
        case ast.Slice(lower=lower, upper=upper):
            if lower is not None:
                yield ast.unparse(ast.Slice(upper=upper, step=node.step))
            if upper is not None:
                yield ast.unparse(ast.Slice(lower=lower, step=node.step))
        case ast.IfExp(body=body, orelse=orelse):
            yield from (f"({ast.unparse(body)})", f"({ast.unparse(orelse)})")
        case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in DROPPED_CALLS:
            if ast.unparse(value) not in ("torch", "torch.nn.functional"):
                yield f"({ast.unparse(value)})"
        case ast.Expr(value=ast.Call() | ast.Yield()):
            yield "pass"
        case ast.Continue():
            yield "break"
    if isinstance(parent, ast.If | ast.While) and node is parent.test:
        yield from ("True", "False")
    if isinstance(parent, ast.Call) and node is parent.func:
        match node:
            case ast.Attribute(value=value, attr=attr) if attr in SWAPPED_CALLS:
                yield f"{ast.unparse(value)}.{SWAPPED_CALLS[attr]}"
            case ast.Name(id=name) if name in SWAPPED_CALLS:
                yield SWAPPED_CALLS[name]


class Planted(  # type: ignore[misc]  # both have it, in another form
    importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader
):
    """Imports one module of the tree from another source."""

    def __init__(self, file: str, source: bytes) -> None:
        super().__init__(_module_name(file), str(ROOT / file))
        self._source = source

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        places = [str(Path(self.path).parent)] if self.path.endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(
            name, self.path, loader=self, submodule_search_locations=places
        )

    def get_code(self, name: str) -> CodeType:
        code: CodeType = compile(self._source, self.path, "exec")
        return code


class Baseline:
    """A pytest plugin: how long each test takes, and which functions of a file it calls."""

    def __init__(self, file: str, slowest: float) -> None:
        self.path, self.slowest = str(ROOT / file), slowest
        self.tests: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        called: set[int] = set()

        def note(frame: FrameType, event: str, arg: object) -> None:
            if frame.f_code.co_filename == self.path:
                called.add(frame.f_code.co_firstlineno)

        signal.setitimer(signal.ITIMER_PROF, self.slowest)
        sys.settrace(note)
        started = process_time()
        try:
            result = yield
            seconds = process_time() - started
            self.tests[item.nodeid] = {"seconds": seconds, "functions": sorted(called)}
            return result
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            sys.settrace(None)


def _too_slow(*_: object) -> None:
    raise TimeoutError


def _pytest(tests: list[str], plugins: list[object]) -> int:
    """Its exit status; in this process, in silence."""
    options = ["-q", "-s", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        return int(pytest.main([*options, *tests], plugins=plugins))


def _meet(items: list[pytest.Item]) -> bool:
    """Whether all of these tests, which are collected, pass."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if item.session.testsfailed:
            return False
    return True


def _functions(space: dict[str, Any], path: str, outer: str = "") -> Iterator[tuple[str, Any]]:
    """The functions that a file defines in a module's or a class's namespace, and their names."""
    for name, value in list(space.items()):
        for each in (value, getattr(value, "__func__", None), getattr(value, "fget", None)):
            found = inspect.unwrap(each) if callable(each) else None
            if inspect.isfunction(found) and found.__code__.co_filename == path:
                yield f"{outer}{name}", found
        if inspect.isclass(value) and value.__module__ == space.get("__name__"):
            yield from _functions(vars(value) | {"__name__": None}, path, f"{name}.")


def _change(file: str, source: bytes) -> None:
    """Give the functions of an imported module the code that they have in another source."""
    module = sys.modules[_module_name(file)]
    path = str(ROOT / file)
    space = {"__name__": module.__name__, "__package__": module.__package__, "__file__": path}
    exec(compile(source, path, "exec"), space)  # noqa: S102
    changed = dict(_functions(space, path))
    for name, function in _functions(vars(module), path):
        function.__code__ = changed[name].__code__
        function.__defaults__ = changed[name].__defaults__
        function.__kwdefaults__ = changed[name].__kwdefaults__


class Sieve:
    """A pytest plugin that, instead of running the collected tests, runs them on every mutant of a
    file, or on those alone that are known to have survived."""

    def __init__(self, file: str, options: argparse.Namespace, known: dict[str, Any]) -> None:
        self._file, self._options, self._known = file, options, known
        self.found: dict[str, Any] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        began = monotonic()
        gc.freeze()  # the garbage collection of a fork would copy all that is shared
        times = self._baseline(session)
        quickest = sorted(
            (item for item in session.items if item.nodeid in times),
            key=lambda item: float(times[item.nodeid]["seconds"]),
        )
        waiting = mutants((ROOT / self._file).read_bytes())
        count = len(waiting)
        if self._options.again:
            left = {(each["before"], each["after"]) for each in self._known["survivors"]}
            waiting = [each for each in waiting if (each.before, each.after) in left]
        killed = count - len(waiting)
        survivors: list[Mutant] = []
        running: dict[int, Mutant] = {}
        while waiting or running:
            while waiting and len(running) < self._options.jobs:
                mutant = waiting.pop(0)
                tests = [
                    item
                    for item in quickest
                    if mutant.function is None or mutant.function in times[item.nodeid]["functions"]
                ]
                running[self._start(mutant, tests)] = mutant
            child, status = os.wait()
            mutant = running.pop(child)
            if status:
                killed += 1
            else:
                survivors.append(mutant)
                print(
                    f"  {self._file}:{mutant.line}  {mutant.before}  →  {mutant.after}",
                    file=sys.__stdout__,
                    flush=True,
                )
        self.found = {
            "mutants": count,
            "killed": killed,
            "survivors": [
                {"line": each.line, "before": each.before, "after": each.after, "reason": None}
                for each in sorted(survivors, key=lambda mutant: mutant.line)
            ],
            "seconds": round(monotonic() - began, 1),
        }
        return True

    def _baseline(self, session: pytest.Session) -> dict[str, dict[str, Any]]:
        """Test → its seconds and the functions that it calls; of those that are quick enough."""
        with tempfile.NamedTemporaryFile("r") as kept:
            if not (child := os.fork()):
                signal.signal(signal.SIGPROF, _too_slow)
                plugin = Baseline(self._file, self._options.slowest)
                session.config.pluginmanager.register(plugin)
                for item in session.items:
                    _meet([item])
                Path(kept.name).write_text(json.dumps(plugin.tests))
                os._exit(0)
            os.waitpid(child, 0)
            found: dict[str, dict[str, Any]] = json.load(kept)
        return found

    def _start(self, mutant: Mutant, tests: list[pytest.Item]) -> int:
        """The process in which a mutant meets its tests: it exits with 0 if it survives."""
        if child := os.fork():
            return child
        resource.setrlimit(resource.RLIMIT_CPU, (self._options.timeout, self._options.timeout))
        signal.alarm(20 * self._options.timeout)
        survived = False
        with contextlib.suppress(BaseException):
            if mutant.function is None:  # what is made on import is made again, everywhere
                for name in list(sys.modules):
                    if name.split(".")[0] in ("cam", "tests"):
                        del sys.modules[name]
                sys.meta_path.insert(0, Planted(self._file, mutant.source))
                survived = not _pytest(["-x", *(item.nodeid for item in tests)], [])
            else:
                _change(self._file, mutant.source)
                survived = _meet(tests)
        os._exit(not survived)


def _module_name(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def explained(found: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """With the reasons that were written beside the same survivors before."""

    def change(survivor: dict[str, Any]) -> tuple[str, str]:
        return survivor["before"], survivor["after"]

    reasons = {change(each): each["reason"] for each in known.get("survivors", [])}
    survivors = [each | {"reason": reasons.get(change(each))} for each in found["survivors"]]
    return found | {"survivors": survivors}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("files", nargs="*", default=list(SUITES), help="of the repository")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--slowest", type=float, default=3, help="CPU seconds of a test")
    parser.add_argument("--timeout", type=int, default=60, help="CPU seconds of a mutant")
    parser.add_argument(
        "--write",
        type=Path,
        help="a JSON file. Other files' results stay in it, and the reasons why survivors are "
        "equivalent, which are written there by hand",
    )
    parser.add_argument(
        "--again", action="store_true", help="only what survived according to that JSON file"
    )
    given = parser.parse_args()
    os.chdir(ROOT)
    sys.path[0] = str(ROOT)
    os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}
    torch = importlib.import_module("torch")
    torch.linalg.eigh(torch.eye(3))  # loads what each fork would have to load by itself
    for file in given.files:
        known = {}
        if given.write and given.write.exists():
            known = json.loads(given.write.read_text())
        before = known.get(file, {})
        sieve = Sieve(file, given, before)
        _pytest([f"tests/cam/{name}.py" for name in dict.fromkeys(SUITES[file])], [sieve])
        found = explained(sieve.found, before)
        equivalent = sum(bool(each["reason"]) for each in found["survivors"])
        counted = found["mutants"] - equivalent
        print(
            f"{file}: {found['killed']} of {counted} mutants killed "
            f"({found['killed'] / counted:.1%}), {equivalent} equivalent ones apart",
            flush=True,
        )
        if given.write:
            text = json.dumps(known | {file: found}, indent=1, ensure_ascii=False)
            given.write.write_text(text + "\n")


if __name__ == "__main__":
    main()
