"""The command of an operation: its answers for image files, without a server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, TextIO

import typer
from pydantic import BaseModel

from service.backend.timings import Timings
from service.core.errors import Problem
from service.core.schemas import dump
from service.core.settings import CoreSettings
from service.http.contract import JSON
from service.http.operation import InstanceContext, Operation, T
from service.http.reception import RequestContext
from service.http.responses import failed
from service.local.options import (
    Model,
    Models,
    Photos,
    parameters_of,
    settings_of,
    with_parameters,
)
from service.pipeline.images import read_file
from service.pipeline.instances import Instance, P


def command_of(operation: Operation[P, T]) -> Callable[..., None]:
    """Make the command that prints what an operation answers, in lines of JSON. Its options are the
    model, the file of models, and each parameter of a request."""

    def command(
        context: typer.Context,
        photos: Photos,
        model: Model = None,
        models: Models = None,
        **values: Any,
    ) -> None:
        settings = settings_of(context, models)
        parameters = parameters_of(operation.parameters, values)
        raise typer.Exit(asyncio.run(_answer(operation, photos, settings, parameters, model)))

    words = f"{operation.summary}: lines of JSON, without a server."
    words += f" See docs/{operation.page}." if operation.page else ""
    return with_parameters(operation.parameters, command, words)


async def _answer(
    operation: Operation[P, T],
    photos: list[Path],
    settings: CoreSettings,
    parameters: P,
    model: str | None,
) -> int:
    """Print the operation's answer for each file: the lines of its stream, or else the answer in
    JSON. The problem of a file is a line of the standard error.

    Returns:
        The exit code: 0, or 1 if a photo failed.

    Raises:
        ConfigError, Problem: if nothing can be answered at all.
    """
    from service.local.session import UNBOUNDED, local_session

    instances = [Instance(each, str(file), b"", "", parameters) for each, file in enumerate(photos)]
    operation.check(instances[:1], JSON)  # a mistake in the parameters would fail every photo
    failures = 0
    async with local_session(settings, model, images=len(photos)) as session:
        for instance, photo in zip(instances, photos, strict=True):
            try:
                instance = replace(instance, image=read_file(photo))
                request = RequestContext(
                    session.replicas,
                    [instance],
                    Timings(),
                    seconds=UNBOUNDED,
                    until=monotonic() + UNBOUNDED,
                    hold=lambda size: None,
                )
                result = await operation.work(InstanceContext(session.pipeline, request, instance))
            except Problem as problem:
                failures += 1
                _print(sys.stderr, failed(instance, problem))
                continue
            for line in _lines(operation, instance, result):
                _print(sys.stdout, line)
    return 1 if failures else 0


def _lines(operation: Operation[P, T], instance: Instance[P], result: T) -> Sequence[BaseModel]:
    if operation.entry:
        return operation.lines_of(result)
    return [operation.gathered([(instance, result)])]


def _print(file: TextIO, line: BaseModel) -> None:
    file.buffer.write(dump(line) + b"\n")  # JSON is UTF-8, unlike some terminals
    file.flush()
