"""What the service does: a feature is a folder here, and stands in one or more of these lists.

An operation is what a model does with images: from the list come the routes, what they require of a
caller, and what `openapi/openapi.json` says. An adapter adds to the app: routes of other resources,
such as jobs, or another way in, such as a platform's contract. A command is one of `gradcam`. In
the process of the models, a journal is told which of them are added and removed, and a watch is
told the answers to live traffic. Nothing below this package knows of a feature, and
`pyproject.toml` says which of them needs which.

`operations` and `adapters` are functions, so that the command line and the client import no feature
that they do not use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from service.backend.journal import Journal
    from service.backend.watch import MakeWatch
    from service.http.adapter import Adapter
    from service.http.operation import Operation

COMMANDS: Final = {
    "explain": "service.features.explain.command",
    "answer": "service.features.answers.command",
    "batch": "service.features.batch.command",
    "audit": "service.features.audit.command",
    "reference": "service.features.drift.command",
    "init": "service.features.init.command",
    "export": "service.features.export.command",
    "compile": "service.features.compile.command",
    "key": "service.features.keys.command",
}
"""Name of a command → the module whose `command` it is. It is imported when it is needed."""

WORK: Final = (
    "service.features.activations.work",
    "service.features.answers.work",
    "service.features.audit.work",
    "service.features.drift.work",
)
"""Modules of what only one feature asks of a model. The process of the models imports them."""

AROUND: Final[tuple[str, ...]] = ("service.features.traces.export",)
"""Modules whose `opened`, given the settings, is entered around the work of each process."""

SUPERVISED: Final[tuple[str, ...]] = ("service.features.probes.server",)
"""Modules whose `asked`, given the settings, returns a port that the supervisor opens, and what
answers there."""


def operations() -> tuple[Operation[Any, Any], ...]:
    """Return what the models do with images."""
    from service.features.activations.operation import ACTIVATIONS
    from service.features.answers.operation import ANSWER
    from service.features.evaluate.operation import EVALUATE
    from service.features.explain.operation import EXPLAIN
    from service.features.predict.operation import PREDICT

    return (
        PREDICT,
        EXPLAIN,
        EVALUATE,
        ACTIVATIONS,
        ANSWER,
    )


def adapters() -> tuple[Adapter, ...]:
    """Return what is added to the app. Where two of them know a path, the later one has it."""
    from service.features.administration.routes import administration
    from service.features.audit.kind import audits
    from service.features.drift.routes import drift
    from service.features.forwarded.adapter import forwarded
    from service.features.jobs.adapter import jobs
    from service.features.keys.adapter import keys
    from service.features.open_inference.adapter import v2
    from service.features.origins.adapter import origins
    from service.features.platforms.adapters import addresses, kserve, sagemaker, vertex
    from service.features.remote_images.adapter import remote_images
    from service.features.studio.routes import studio

    return (
        keys,
        origins,
        remote_images,
        studio,
        jobs(
            audits,
        ),
        v2,
        addresses,
        sagemaker,
        vertex,
        kserve,
        forwarded,
        administration,
        drift,
    )


def journals() -> list[Callable[[Path], Journal]]:
    """Return what keeps the added and the removed models, in a folder that outlives a process."""
    from service.features.administration.journal import FileJournal

    return [
        FileJournal,
    ]


def watches() -> list[MakeWatch]:
    """Return what makes those who are told the answers to live traffic, one for each model."""
    from service.features.drift.watch import watch_of

    return [
        watch_of,
    ]
