"""The command line `gradcam`: the commands of the features, and `serve` and `openapi`."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from itertools import starmap
from pkgutil import resolve_name
from types import FunctionType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cam.counts import counted
from service import __version__
from service.core.errors import ConfigError, Problem
from service.core.logs import tell_mistake
from service.core.threads import spin_briefly
from service.features import COMMANDS
from service.local.options import Command, with_options
from service.models.catalog import EMBEDDED, configured
from service.process.listener import listen
from service.process.supervisor import supervise
from service.settings import Settings


class Commands(TyperGroup):
    """The commands of the features, each of which is imported when it is asked for, and others."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # `get_command` makes those of the features; typer lists them, and suggests their names.
        self.commands = dict.fromkeys(COMMANDS) | dict(self.commands)  # type: ignore[assignment]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # typer's copy of Click is private
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(cmd_name)(_command(COMMANDS[cmd_name]))
        return typer.main.get_command(alone)


def _command(place: str) -> Callable[..., None]:
    """Return the function at a place, or, where an operation is, the command that it makes."""
    found = resolve_name(place)
    if isinstance(found, FunctionType):
        return found
    from service.cli.operation import command_of

    return command_of(found)


cli = typer.Typer(
    name="gradcam",
    cls=Commands,
    help="Explains what vision models look at.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _tell_version(asked: bool) -> None:
    if asked:
        print(f"gradcam-service {__version__}")
        raise typer.Exit


@cli.callback()
def main_options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Explains what vision models look at."""
    context.obj = Settings


def _as_option(name: str, told: str) -> inspect.Parameter:
    """Return a setting as an option of `serve`."""
    kind: Any = Settings.model_fields[name].annotation
    option = typer.Option(f"--{name.replace('_', '-')}", help=told)
    kept = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kept, default=None, annotation=Annotated[kind | None, option])


def _serve_options(command: Command) -> Command:
    return with_options(command, starmap(_as_option, Settings.options().items()))


# KServe adds arguments of its own to those of a container.
@cli.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@_serve_options
def serve(context: typer.Context, **given: Any) -> None:
    """Serve explanations over HTTP. GRADCAM_… variables set the rest: see docs/configuration.md."""
    form = os.environ.get("GRADCAM_LOG_FORMAT")
    settings = Settings(
        log_format=form if form in ("json", "console") else "auto"
    )  # until they are read
    try:
        further = Settings.of_arguments(context.args)
        if context.args and not further:
            raise ConfigError(f"there is no option {context.args[0]}; see gradcam serve --help")
        options = {name: value for name, value in given.items() if value is not None}
        settings = Settings.read(os.environ, **further | options)
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
        settings = opened.enter_context(settings.here())
        entries = configured(settings)
        settings.check_files()
        listening = opened.enter_context(listen(settings))
        if settings.supervise:
            return supervise(listening, settings, entries)
        if settings.doors:
            raise ConfigError(
                f"{counted(settings.doors, 'door needs', 'doors need')} a supervisor: "
                "set GRADCAM_SUPERVISE=1, or GRADCAM_DOORS=0"
            )
        # These import torch, which a supervisor does not need.
        from service.app import create_app
        from service.process.server import run

        return run(lambda: create_app(settings, entries), settings, listening, None)


@cli.command()
def openapi() -> None:
    """Print the HTTP contract as an OpenAPI document."""
    # A process that receives requests makes this app; unlike `create_app`, it needs no PyTorch.
    from service.core.metrics import Metrics
    from service.http.app import make_app
    from service.process.door import ADAPTERS, OPERATIONS
    from service.rpc.client import RemoteBackend

    metrics = Metrics()
    app = make_app(
        Settings(),
        (EMBEDDED,),
        operations=OPERATIONS,
        adapters=ADAPTERS,
        manager=RemoteBackend("", metrics),
        metrics=metrics,
    )
    document = json.dumps(app.openapi(), indent=2, ensure_ascii=False)
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
