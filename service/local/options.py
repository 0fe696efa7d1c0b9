"""Options of commands. Those of parameters have the names, texts and limits that requests have."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
from starlette.datastructures import ImmutableMultiDict

from service.core.settings import CoreSettings
from service.pipeline.instances import P
from service.pipeline.outputs import OUTPUTS
from service.pipeline.parameters import ImageParameters
from service.pipeline.validation import read_parameters

Models = Annotated[Path | None, typer.Option(help=CoreSettings.options()["models"])]
Model = Annotated[str | None, typer.Option(help="Name of the model; the first model by default.")]
Photos = Annotated[list[Path], typer.Argument(help="Image files.")]
Target = Annotated[list[str] | None, typer.Option(help="Class index or label; repeat for several.")]
Fit = Annotated[str, typer.Option(help="crop, squash or pad; auto is the model's default_fit.")]
FOLDER: Final = Path("explanations")
Command = TypeVar("Command", bound=Callable[..., None])
OnFiles = Callable[[list[Path], CoreSettings, P, str | None, Path], int]


def settings_of(context: typer.Context, models: Path | None) -> CoreSettings:
    """Return the settings of the environment. The context's object is the class of the settings,
    which knows the variables of all features; without it, only those that all share are known."""
    kind: type[CoreSettings] = context.obj or CoreSettings
    return kind.read(os.environ, models=models)


def with_parameters(
    schema: type[ImageParameters], command: Callable[..., None], words: str
) -> Callable[..., None]:
    """Give a command, whose last argument is `**values`, an option for each parameter of a request.

    Args:
        words: the command's help.
    """
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                bool | None if field.annotation is bool else list[str] | None,
                typer.Option(
                    help=field.description,
                    metavar=None if field.annotation is bool else name.upper(),
                    show_default=str(field.default) if field.default else False,
                ),
            ],
        )
        for name, field in schema.model_fields.items()
    ]
    command.__doc__ = words
    return with_options(command, options)


def on_files(schema: type[P]) -> Callable[[OnFiles[P]], Callable[..., None]]:
    """Make a command about image files. Its options are the model, the folder for pictures, the
    file of models, and each parameter of a request.

    The function takes the files, the settings, the parameters, the model's name and the folder, and
    returns the exit code. Its docstring is the command's help.
    """

    def decorate(work: OnFiles[P]) -> Callable[..., None]:
        def command(
            context: typer.Context,
            photos: Photos,
            model: Model = None,
            folder: Annotated[
                Path | None,
                typer.Option(help="Folder for the pictures.", show_default=str(FOLDER)),
            ] = None,
            models: Models = None,
            **values: Any,
        ) -> None:
            settings = settings_of(context, models)
            folder = folder or folder_of(values) or FOLDER
            parameters = parameters_of(schema, values)
            raise typer.Exit(work(photos, settings, parameters, model, folder))

        return with_parameters(schema, command, inspect.getdoc(work) or "")

    return decorate


def with_options(command: Command, options: Iterable[inspect.Parameter]) -> Command:
    """Return a command that takes these options as the last of its parameters, `**given`."""
    *own, _ = inspect.signature(command, eval_str=True).parameters.values()
    signature = inspect.Signature([*own, *options])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
    return command


def parameters_of(schema: type[P], values: Mapping[str, Any]) -> P:
    """Return the parameters that a command was given; of an option that is not given, the value is
    None or [].

    Raises:
        Problem: if a parameter is wrong; it names the parameter.
    """
    texts = [
        (name, str(text).lower() if isinstance(text, bool) else text)
        for name, sent in values.items()
        if sent is not None
        for text in (sent if isinstance(sent, list) else [sent])
    ]
    return read_parameters(schema, ImmutableMultiDict(texts), "/query")


def folder_of(values: dict[str, Any]) -> Path | None:
    """Return the folder that `--output` names, and take it from the values; None if it says only
    what pictures show. It was the folder before what they show had names."""
    sent = values.get("output") or []
    folders = [text for text in sent if text not in OUTPUTS]
    if len(folders) != 1:
        return None
    values["output"] = [text for text in sent if text in OUTPUTS]
    return Path(folders[0])
