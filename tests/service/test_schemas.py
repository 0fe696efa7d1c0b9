"""Schemas whose values are taken by name have the names of what they are taken from."""

from __future__ import annotations

from dataclasses import fields

import pytest
from pydantic import BaseModel

from cam import UnitTarget
from cam.activations.observations import Statistics
from cam.agreement import Fidelity
from cam.answers import answer
from cam.drawing.placement import Box, Placement
from cam.drift.origin import Origin
from cam.drift.shift import Shift, TooFew
from cam.methods import Method
from cam.progress import Progress
from service.core import model_schemas, schemas
from service.features.activations.schemas import SignalDescription
from service.features.answers import schemas as answers
from service.features.drift import schemas as drift
from service.features.drift.work import Drift
from service.models.audited import Audited
from service.models.info import LayerInfo, ModelInfo


@pytest.mark.parametrize(
    ("schema", "sources", "own"),
    [
        (schemas.Placement, [Placement, Box], ""),
        (schemas.Unit, [UnitTarget], ""),
        (schemas.Step, [Progress], ""),
        (answers.AnswerToken, [answer.AnswerToken], ""),
        (
            answers.AnswerWord,
            [answer.AnswerWord],
            "first_token tokens from_language scores peak heatmap overlay",
        ),
        (answers.Answer, [answer.ExplainedAnswer], "instance id memory_bytes warnings"),
        (SignalDescription, [Statistics], "shape"),
        (model_schemas.FidelityDescription, [Fidelity], ""),
        (model_schemas.AuditedMethod, [Audited], ""),
        (
            model_schemas.LayerDescription,
            [LayerInfo],
            "output_shape explainable reason default stage",
        ),
        (drift.ShiftDescription, [Shift], "label sentence"),
        (drift.TooFewDescription, [TooFew], "label sentence"),
        (
            drift.DriftDescription,
            [Drift, Origin],
            "window moved missing unknown shifts too_few",
        ),
        (
            model_schemas.MethodDescription,
            [Method],
            "class_specific layer available reason fast fidelity",
        ),
        (
            model_schemas.ModelDescription,
            [ModelInfo],
            "ready device dtype input synonyms methods mode runtime fidelity",
        ),
    ],
)
def test_a_field_has_the_name_of_its_source(
    schema: type[BaseModel], sources: list[type], own: str
) -> None:
    """A field that can be absent would otherwise be absent from every answer."""
    known = {field.name for source in sources for field in fields(source)}
    assert schema.model_fields.keys() - known == set(own.split())
