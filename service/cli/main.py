"""The command line: `gradcam serve`, `explain`, `answer`, `batch`, `audit`, `reference`, `export`,
`compile`, `key`, `openapi`."""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from service import __version__
from service.cli.options import PICTURES, parameters_of, with_parameters
from service.core.choices import AnswerMethodName
from service.core.errors import ConfigError, Problem
from service.core.logs import tell_mistake
from service.core.platforms import kserve_settings
from service.core.settings import Settings, read_settings
from service.core.threads import spin_briefly
from service.limits.keys import new_key, read_keys
from service.models.catalog import ModelEntry, configured, read_catalog
from service.models.store import copied
from service.pipeline.parameters import Parameters
from service.process.listener import listen
from service.process.supervisor import supervise

if TYPE_CHECKING:
    from service.batch.command import Explainer

cli = typer.Typer(
    name="gradcam",
    help="Explains what vision models look at.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
LAST_SECONDS = 5.0
Models = Annotated[
    Path | None, typer.Option(help="The TOML file that names the models; else the embedded one.")
]
Target = Annotated[list[str] | None, typer.Option(help="Class index or label; repeat for several.")]
Fit = Annotated[str, typer.Option(help="crop, squash or pad; auto is the model's default_fit.")]
Layer = Annotated[list[str] | None, typer.Option(help="Target layer; repeat for several.")]
Method = Annotated[
    list[str] | None,
    typer.Option(help="Method of class activation mapping, gradcam; repeat to compare several."),
]


def _tell_version(asked: bool) -> None:
    if asked:
        print(f"gradcam-service {__version__}")
        raise typer.Exit


@cli.callback()
def main_options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Explains what vision models look at."""


# KServe adds arguments of its own to those of a container.
@cli.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    probe_port: Annotated[
        int | None, typer.Option(help="Port on which the supervisor answers probes; 0: none.")
    ] = None,
    models: Models = None,
    keys: Annotated[Path | None, typer.Option(help="The TOML file of API keys.")] = None,
    insecure: Annotated[
        bool | None,
        typer.Option("--insecure", help="Listen where others can reach it, without keys."),
    ] = None,
    doors: Annotated[
        int | None,
        typer.Option(help="Processes that receive requests; 0: the models' own process does."),
    ] = None,
) -> None:
    """Serve explanations over HTTP. GRADCAM_… variables set the rest: see docs/configuration.md."""
    given = {
        "host": host,
        "port": port,
        "probe_port": probe_port,
        "models": models,
        "keys": keys,
        "insecure": insecure,
        "doors": doors,
    }
    form = os.environ.get("GRADCAM_LOG_FORMAT")
    settings = Settings(
        log_format=form if form in ("json", "console") else "auto"
    )  # until they are read
    try:
        further = kserve_settings(context.args)
        if context.args and not further:
            raise ConfigError(f"there is no option {context.args[0]}; see gradcam serve --help")
        options = {name: value for name, value in given.items() if value is not None}
        settings = read_settings(os.environ, **further | options)
        code = _serve(settings)
    except ConfigError as error:
        tell_mistake(str(error), settings)
        code = 2
    raise typer.Exit(code)


def _serve(settings: Settings) -> int:
    """Serve until told to stop; return the exit code.

    Raises:
        ConfigError: if a setting is wrong, or a file that it names.
    """
    with ExitStack() as opened:
        if settings.models_uri and settings.models is None:
            folder = opened.enter_context(copied(settings.models_uri))
            settings = settings.model_copy(update={"models": folder})
        entries = configured(settings)
        if settings.keys:
            read_keys(settings.keys)  # report a mistake in it before anything starts
        listening = opened.enter_context(listen(settings))
        if settings.supervise:
            return supervise(listening, settings, entries)
        if settings.doors:
            raise ConfigError(
                f"{settings.doors} doors need a supervisor: "
                "set GRADCAM_SUPERVISE=1, or GRADCAM_DOORS=0"
            )
        if settings.probe_port:
            raise ConfigError(
                f"a port for probes, {settings.probe_port}, needs a supervisor: "
                "set GRADCAM_SUPERVISE=1, or GRADCAM_PROBE_PORT=0"
            )
        # These import torch, which a supervisor does not need.
        from service.local.app import create_app
        from service.process.server import run

        return run(lambda: create_app(settings, entries), settings, listening, None)


@cli.command()
def key(
    name: Annotated[str, typer.Argument(help="Name of the key's owner.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="explain or admin; repeat for both.")
    ] = None,
    rate: Annotated[str | None, typer.Option(help="Like 600/minute.")] = None,
    expires: Annotated[
        str | None, typer.Option(help="When the key ends: 90d, 2027-01-31, or a time with offset.")
    ] = None,
) -> None:
    """Make an API key: prints its entry for the file of keys, and, once, the key itself."""
    secret, entry = new_key(name, scope or ["explain"], rate, expires)
    print(entry)
    print(f"# The key, shown this once: {secret}", file=sys.stderr)


@cli.command()
@with_parameters(Parameters)
def explain(
    photos: Annotated[list[Path], typer.Argument(help="Image files.")],
    given: dict[str, Any],
    model: Annotated[
        str | None, typer.Option(help="Name of the model; the first model by default.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("explanations"),
    models: Models = None,
) -> None:
    """Explain photos without a server: writes a picture of each map, and prints a table."""
    settings = read_settings(os.environ, models=models)
    folder = _folder(given, folder)
    parameters = parameters_of(Parameters, given)
    from service.cli.explain import explain_files

    raise typer.Exit(explain_files(photos, settings, parameters, model=model, folder=folder))


@cli.command()
def answer(
    photos: Annotated[list[Path], typer.Argument(help="Image files.")],
    question: Annotated[str, typer.Option(help="The question about each photo.")],
    model: Annotated[
        str | None, typer.Option(help="Name of the model; the first model by default.")
    ] = None,
    said: Annotated[
        str | None, typer.Option("--answer", help="An answer to explain, in place of the model's.")
    ] = None,
    word: Annotated[
        str | None, typer.Option(help="A word or phrase to draw, in place of all words.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(help=f"One of {', '.join(get_args(AnswerMethodName.__value__))}."),
    ] = "tam",
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 64,
    output: Annotated[
        list[str] | None,
        typer.Option(help=f"What the pictures show: {', '.join(PICTURES)}; or their folder."),
    ] = None,
    folder: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("explanations"),
    other: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE: any other parameter of :answer; repeat."),
    ] = None,
    models: Models = None,
) -> None:
    """Ask a vision-language model about photos without a server: prints each word with its
    evidence, and writes a picture of where the model sees it, and the answer as JSON."""
    settings = read_settings(os.environ, models=models)
    given: dict[str, Any] = {
        "question": question,
        "answer": said,
        "word": word,
        "method": method,
        "max_tokens": max_tokens,
        "output": output or [],
        **_pairs(other or []),
    }
    folder = _folder(given, folder)
    given = {name: sent for name, sent in given.items() if sent not in (None, [])}
    from service.cli.answer import answer_files

    raise typer.Exit(answer_files(photos, settings, given, model=model, folder=folder))


@cli.command()
def batch(
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A folder, a pattern like 'photos/**/*.jpg', a .zip, or a .csv or .parquet with a "
            "column path, and id and target if you like.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(help="Folder for pictures and manifest.parquet; goes on where it stopped."),
    ],
    model: Annotated[
        str | None, typer.Option(help="Name of the model; the first model by default.")
    ] = None,
    target: Target = None,
    method: Method = None,
    layer: Layer = None,
    fit: Fit = "auto",
    other: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE: any other parameter of :explain; repeat."),
    ] = None,
    pictures: Annotated[str, typer.Option(help="jpg, png, webp, or none.")] = "jpg",
    report: Annotated[
        Path | None, typer.Option(help="A page to write: thumbnails, mean maps, failures.")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try those again that failed before.")
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster to do it on: HOST:PORT, auto, or local."),
    ] = None,
    models: Models = None,
) -> None:
    """Explain images without a server, as many as there are: writes a picture of each and a table
    of all."""
    former = {*threading.enumerate()}
    settings = read_settings(os.environ, models=models)
    given: dict[str, Any] = {
        "method": _one_or_more(method, "gradcam"),
        "layer": layer or "auto",
        "fit": fit,
    }
    if target:
        given["target"] = target
    from service.batch.command import Run
    from service.batch.command import batch as explain_all
    from service.batch.configuration import RunConfiguration

    configuration = RunConfiguration({**given, **_pairs(other or [])}, output, pictures)
    run = Run(source, settings, configuration, model, retry_failed)
    code = explain_all(run, report=report, explain=None if ray is None else _on_ray(ray))
    _end(code, former)


@cli.command()
def audit(
    photos: Annotated[
        str,
        typer.Argument(
            help="A folder, a pattern like 'photos/**/*.jpg', a .zip, or a .csv or .parquet with a "
            "column path, and id and target (the photo's class) if you like.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(help="Folder for report.html and audit.json; goes on where it stopped."),
    ],
    model: Annotated[
        str | None, typer.Option(help="Name of the model; the first model by default.")
    ] = None,
    target: Target = None,
    method: Annotated[
        list[str] | None, typer.Option(help="A method to measure; repeat. Else the usual ones.")
    ] = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(help="A layer to measure; repeat. Else the default and a finer one."),
    ] = None,
    evaluate: Annotated[
        list[str] | None,
        typer.Option(help="A metric of faithfulness, like road; repeat. Else the usual ones."),
    ] = None,
    fit: Fit = "auto",
    most: Annotated[
        int,
        typer.Option(
            min=1,
            help="Largest number of photos to measure; of more photos, evenly drawn ones are used.",
        ),
    ] = 200,
    within: Annotated[
        str | None,
        typer.Option(
            help="Time limit, such as 90s, 10m or 1h; fewer photos are measured if necessary."
        ),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            help="A question to a vision-language model about each photo: which method explains "
            "the words of its answers? Of the other options, --method, --model and --most count."
        ),
    ] = None,
    models: Models = None,
) -> None:
    """Measure which methods and layers explain a model: writes a report, a recommendation, and the
    numbers of each photo."""
    former = {*threading.enumerate()}
    settings = read_settings(os.environ, models=models)
    if question is not None:
        from service.batch.answer_audit import audit_answers
        from service.batch.command import Run
        from service.batch.configuration import RunConfiguration

        run = Run(photos, settings, RunConfiguration({}, output, "none", "audit"), model)
        _end(audit_answers(run, question, method or (), most=most), former)
    given: dict[str, Any] = {"fit": fit}
    for name, values in (("method", method), ("layer", layer), ("evaluate", evaluate)):
        if values:
            given[name] = values
    if target:
        given["target"] = target[0] if len(target) == 1 else target
    from service.batch.audit import audit as measure
    from service.batch.audit import seconds_of
    from service.batch.command import Run
    from service.batch.configuration import RunConfiguration

    configuration = RunConfiguration(given, output, "none", "audit")
    seconds = None if within is None else seconds_of(within)
    run = Run(photos, settings, configuration, model)
    code = measure(run, most=most, within=seconds)
    _end(code, former)


@cli.command()
def reference(
    photos: Annotated[
        str,
        typer.Argument(
            help="Good photos: a folder, a pattern like 'photos/**/*.jpg', a .zip, or a table."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(help="File to write; without it, the standard output.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Name of the model; the first model by default.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="Method of the maps; it must need only one pass.")
    ] = "gradcam",
    layer: Annotated[str, typer.Option(help="Layer of the maps; auto is the default.")] = "auto",
    fit: Fit = "auto",
    models: Models = None,
) -> None:
    """Record the statistics of good photos' maps as the reference of a model: writes Parquet."""
    former = {*threading.enumerate()}
    settings = read_settings(os.environ, models=models)
    from service.batch.reference import make_reference

    given = {"method": method, "layer": layer, "fit": fit}
    _end(make_reference(photos, settings, given, model=model, output=output), former)


@cli.command()
def export(
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    output: Annotated[Path, typer.Option(help="File to write: .onnx, or .xml beside its .bin.")],
    form: Annotated[str, typer.Option("--format", help="onnx or openvino.")] = "onnx",
    layer: Annotated[str, typer.Option(help="Layer of the map; auto is the default.")] = "auto",
    models: Models = None,
) -> None:
    """Write a model as a file whose second output is the map, for devices without this service."""
    settings = read_settings(os.environ, models=models)
    entry = _entry(settings, model)
    from service.loading.export import export_entry

    written = export_entry(entry, output, form, None if layer == "auto" else layer)
    batch = "any number of images" if written.any_batch else "one image at a time"
    print(f"{output}: logits, and maps by {written.method} at {written.layer}; takes {batch}")


@cli.command("compile")
def compile_model(
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    size: Annotated[
        list[int] | None,
        typer.Option(help="A size of a batch; repeat. Else 1, 32 and the model's max_batch."),
    ] = None,
    models: Models = None,
) -> None:
    """Compile a model's fast path ahead of time, into the folder that GRADCAM_CACHE names: the
    service loads it at its next start. Needs a C++ compiler, which the service then does not."""
    settings = read_settings(os.environ, models=models)
    entry = _entry(settings, model)
    from service.cli.compile import compile_model as compile_entry

    compile_entry(entry, settings, size or ())


def _entry(settings: Settings, name: str) -> ModelEntry:
    """Return the entry of a model.

    Raises:
        ConfigError: if there is none of this name.
    """
    entries = read_catalog(settings.models)
    for entry in entries:
        if entry.name == name:
            return entry
    names = ", ".join(each.name for each in entries)
    raise ConfigError(f"there is no model {name!r}; there are {names}")


def _on_ray(address: str) -> Explainer:
    """Return the function that explains a batch on the Ray cluster at `address`.

    Raises:
        ConfigError: if Ray is not installed.
    """
    try:
        from service.ray.batch import explain_on_ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError("--ray needs Ray: pip install 'gradcam-service[ray]'") from None
    return partial(explain_on_ray, address=address)


def _end(code: int, former: set[threading.Thread]) -> None:
    """End the process, even if a worker's thread hangs.

    Args:
        former: threads that existed before the command began, which are not waited for.
    """
    for thread in {*threading.enumerate()} - former:
        if not thread.daemon:
            thread.join(LAST_SECONDS)
            if thread.is_alive():
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
    raise typer.Exit(code)


def _one_or_more(given: list[str] | None, default: str) -> str | list[str]:
    """Return the values of an option that may be repeated; a single value is returned alone."""
    files = given or [default]
    return files[0] if len(files) == 1 else files


def _folder(given: dict[str, Any], folder: Path) -> Path:
    """Return the folder for pictures: that of `--output`, which is taken from what was given, if it
    does not say what they show."""
    sent = given.get("output")
    if not isinstance(sent, list) or len(sent) != 1 or sent[0] in PICTURES:
        return folder
    del given["output"]
    return Path(sent[0])


def _pairs(given: list[str]) -> dict[str, str]:
    """Return the name and the value of each NAME=VALUE.

    Raises:
        ConfigError: if one of the texts is no NAME=VALUE; it names that text.
    """
    for pair in given:
        if "=" not in pair:
            raise ConfigError(f"--set {pair}: it should be NAME=VALUE")
    return {name: value for name, _, value in (pair.partition("=") for pair in given)}


@cli.command()
def openapi() -> None:
    """Print the HTTP contract as an OpenAPI document."""
    from service.local.app import create_app

    document = json.dumps(create_app(Settings()).openapi(), indent=2, ensure_ascii=False)
    sys.stdout.buffer.write(f"{document}\n".encode())  # JSON is UTF-8, unlike some terminals


def main() -> None:
    spin_briefly()
    try:
        cli()
    except (ConfigError, Problem) as error:
        print(f"gradcam: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
