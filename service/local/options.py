"""Options of commands that are the parameters of requests: the same names, texts and limits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from starlette.datastructures import ImmutableMultiDict

from service.core.choices import Output
from service.pipeline.instances import P
from service.pipeline.parameters import ImageParameters
from service.pipeline.validation import read_parameters

Models = Annotated[
    Path | None, typer.Option(help="The TOML file that names the models; else the embedded one.")
]
Model = Annotated[str | None, typer.Option(help="Name of the model; the first model by default.")]
Target = Annotated[list[str] | None, typer.Option(help="Class index or label; repeat for several.")]
Fit = Annotated[str, typer.Option(help="crop, squash or pad; auto is the model's default_fit.")]
Layer = Annotated[list[str] | None, typer.Option(help="Target layer; repeat for several.")]
Method = Annotated[
    list[str] | None,
    typer.Option(help="Method of class activation mapping, gradcam; repeat to compare several."),
]
Folder = Annotated[Path, typer.Option(help="Folder for the pictures.")]
PICTURES = get_args(Output.__value__)
"""What the pictures can show. Any other `--output` is a folder, as it was before they had names."""
Command = Callable[..., None]


def with_parameters(schema: type[ImageParameters]) -> Callable[[Command], Command]:
    """Give a command an option for each parameter of a request.

    The command itself takes one argument for all of them, `given`: the options that were used, by
    name, each with its texts as a query has them.
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

    def decorate(command: Command) -> Command:
        plain = inspect.signature(command, eval_str=True)
        own = [each for each in plain.parameters.values() if each.name != "given"]

        @wraps(command)
        def called(**values: Any) -> None:
            given = {option.name: values.pop(option.name) for option in options}
            command(
                given={name: sent for name, sent in given.items() if sent not in (None, [])},
                **values,
            )

        signature = plain.replace(parameters=[*own, *options])
        called.__signature__ = signature  # type: ignore[attr-defined]
        called.__annotations__ = {
            each.name: each.annotation for each in signature.parameters.values()
        }
        return called

    return decorate


def parameters_of(schema: type[P], given: Mapping[str, Any]) -> P:
    """Return the parameters that a command was given.

    Raises:
        Problem: if a parameter is wrong; it names the parameter.
    """
    texts = [
        (name, str(text).lower() if isinstance(text, bool) else text)
        for name, sent in given.items()
        for text in (sent if isinstance(sent, list) else [sent])
    ]
    return read_parameters(schema, ImmutableMultiDict(texts), "/query")


def folder_of(given: dict[str, Any], folder: Path) -> Path:
    """Return the folder for pictures: that of `--output`, which is taken from what was given, if it
    does not say what they show."""
    sent = given.get("output")
    if not isinstance(sent, list) or len(sent) != 1 or sent[0] in PICTURES:
        return folder
    del given["output"]
    return Path(sent[0])
