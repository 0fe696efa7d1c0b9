"""Frames: what may be written and read, and in which pieces they arrive."""

from __future__ import annotations

import gc
import os
import pickle
import weakref
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image

from cam import (
    ClassTarget,
    Explanation,
    Question,
    SimilarityTarget,
    Target,
    TextTarget,
    UnitTarget,
)
from cam.answers.answer import Alternative, AnswerProgress, AnswerToken
from cam.drawing.placement import Box
from service.backend.work import Explain
from service.core import errors
from service.core.errors import InvalidParameter, Problem, Unavailable
from service.models.preprocessing import ModelInput
from service.rpc.frames import (
    APART_BYTES,
    FULL_BYTES,
    LENGTH,
    MOST_BYTES,
    FrameProtocol,
    Put,
    UnknownClass,
)
from service.rpc.messages import (
    ModelSnapshot,
    Progressed,
    Raised,
    RemoteCall,
    Returned,
    State,
    codec,
)
from tests.service.rpc.fake import info


def again(message: object) -> Any:
    (found,) = codec().read(frame(message)[LENGTH.size :])
    return found


def frame(*messages: object) -> bytes:
    return b"".join(pieces(*messages))


def pieces(*messages: object, put: Put = lambda array: None) -> list[bytes | memoryview]:
    written = codec().frame()
    for message in messages:
        written.add(message, put)
    return written.pieces()


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/evil",)


@pytest.mark.parametrize("evil", [Evil(), os.getcwd, np.load, Problem.written, SimpleNamespace()])
def test_a_frame_names_no_function_and_no_other_class(evil: object) -> None:
    with pytest.raises(UnknownClass, match="a message names"):
        again(Returned(1, evil))


def test_enumerations_cross_as_older_versions_of_python_pickle_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python 3.11.2, of Debian 12, writes a member as getattr(class, name)."""

    def reduced(member: Image.Resampling, protocol: int) -> tuple[object, tuple[object, str]]:
        return getattr, (type(member), member.name)

    monkeypatch.setattr(Image.Resampling, "__reduce_ex__", reduced)
    assert again(Returned(1, Image.Resampling.BICUBIC)).value is Image.Resampling.BICUBIC


@pytest.mark.parametrize(
    "payload",
    [b"", b"x", bytes(4), b"\xff" * 4, frame(1)[LENGTH.size : -1], frame(1)[LENGTH.size :] + b"x"],
)
def test_bytes_that_are_no_message_are_an_error(payload: bytes) -> None:
    with pytest.raises((pickle.UnpicklingError, EOFError, IndexError)):
        codec().read(payload)


def test_arrays_come_as_they_went() -> None:
    whole = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for array in (whole, whole[:, ::2], whole.T, np.zeros((0, 3)), np.float32(2), whole > 3):
        found = again(Returned(1, array)).value
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype


def test_large_arrays_are_not_copied() -> None:
    """Neither to write a frame nor to read it; small ones are part of the pickle."""
    pixels, small = np.ones((2, 96, 96, 3), np.uint8), np.ones(8, np.float32)
    large = np.arange(APART_BYTES, dtype=np.float64)[::2].copy()
    written = pieces(Returned(1, [pixels, small, large]))
    views = [np.asarray(each) for each in written if isinstance(each, memoryview)]
    assert [np.shares_memory(each, pixels) for each in views] == [False, True, False]
    assert [np.shares_memory(each, large) for each in views] == [False, False, True]
    payload = bytearray(b"".join(written)[LENGTH.size :])
    found = codec().read(memoryview(payload))[0].value
    there = np.frombuffer(payload, np.uint8)
    assert [np.shares_memory(each, there) for each in found] == [True, False, True]
    for array, expected in zip(found, (pixels, small, large), strict=True):
        np.testing.assert_array_equal(array, expected)
        assert array.flags.writeable


def test_many_messages_are_one_frame() -> None:
    """Each class is named once, so a further message is a fraction of the first one."""
    arrays = [np.full(APART_BYTES, turn, np.uint8) for turn in range(3)]
    sent = [Returned(turn, [array, ClassTarget(turn)]) for turn, array in enumerate(arrays)]
    found = codec().read(frame(*sent)[LENGTH.size :])
    assert [each.number for each in found] == [0, 1, 2]
    assert [each.value[1] for each in found] == [ClassTarget(turn) for turn in range(3)]
    for message, array in zip(found, arrays, strict=True):
        np.testing.assert_array_equal(message.value[0], array)
    one, two = (len(frame(*[Returned(1, ClassTarget(1))] * count)) for count in (1, 2))
    several = len(frame(Returned(1, ClassTarget(1)), Returned(2, ClassTarget(2))))
    assert two - one < several - one < one / 3


def test_a_message_that_cannot_be_written_leaves_the_others_readable() -> None:
    target = ClassTarget(7)
    written = codec().frame()
    written.add(Returned(1, target))
    with pytest.raises(TypeError, match="cannot pickle"):
        written.add(Returned(2, [target, np.zeros(APART_BYTES), (each for each in "x")]))
    assert written.full
    payload = b"".join(written.pieces())[LENGTH.size :]
    assert codec().read(payload) == [Returned(1, target)]


def test_a_frame_keeps_nothing_once_it_is_written() -> None:
    """Not even until a garbage collection: it refers to the pixels of a request."""
    gc.collect()
    gc.disable()
    try:
        written = codec().frame()
        array = np.zeros(APART_BYTES, np.uint8)
        kept: list[weakref.ref[Any]] = [weakref.ref(array), weakref.ref(written)]
        written.add(Returned(1, array), lambda array: 0)
        written.pieces()
        del written, array
        assert [each() for each in kept] == [None, None]
    finally:
        gc.enable()


def test_a_frame_that_is_large_takes_no_further_message() -> None:
    half = np.zeros(FULL_BYTES // 2, np.uint8)
    written = codec().frame()
    written.add(Returned(1, half), lambda array: 0)  # it lies in shared memory
    assert not written.full
    written.add(Returned(2, half.copy()))
    assert not written.full
    written.add(Returned(3, half.copy()))
    assert written.full


def test_targets_and_questions_come_as_they_went() -> None:
    targets: tuple[Target, ...] = (
        ClassTarget(3, against=True),
        UnitTarget("layer", 2),
        SimilarityTarget("layer", np.ones(4, np.float32), True),
        TextTarget("a cat", "layer", np.ones((2, 4), np.float32), "cosine", 0.5, "a dog"),
    )
    assert {type(each) for each in targets} == set(get_args(Target))
    seen = ModelInput(np.ones((8, 8, 3), np.uint8), Box(0, 0, 8, 8), b"digest")
    question = Question(targets, "gradcam", ("layer",), budget=5, signed=True)
    call = again(RemoteCall(1, "m", Explain(seen, [question], until=1.5), "f", True))
    assert (call.work.until, call.listens, call.fingerprint) == (1.5, True, "f")
    (asked,) = call.work.questions
    assert asked.targets[:2] == targets[:2]
    np.testing.assert_array_equal(asked.targets[2].embedding, np.ones(4))
    assert asked.targets[3] == targets[3]
    np.testing.assert_array_equal(asked.targets[3].weights, np.ones((2, 4)))
    np.testing.assert_array_equal(call.work.seen.pixels, seen.pixels)


def test_a_state_comes_as_it_went() -> None:
    problem = Unavailable("not yet", retry_after=1)
    states = {"a": ModelSnapshot(True, None, info("a")), "b": ModelSnapshot(False, problem)}
    found = again(State(states, True, "", True, 5))
    assert found.models["a"].info.preprocessing == info().preprocessing
    assert found.models["a"].info.labels.meant("dog") == 1
    assert found.models["b"].problem.detail == "not yet"


def test_problems_come_with_all_that_they_say() -> None:
    found = again(Raised(1, InvalidParameter("bad", pointer="/query/x"))).problem
    assert (type(found), found.detail, found.pointer) == (InvalidParameter, "bad", "/query/x")
    found = again(Raised(1, Unavailable("gone", retry_after=1, blamed="process"))).problem
    assert (found.retry_after, found.blamed) == (1, "process")
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    for kind in kinds:
        if issubclass(kind, Problem):
            assert type(again(Raised(1, kind("detail"))).problem) is kind


def test_answers_come_as_they_went() -> None:
    explanation = Explanation(
        ClassTarget(1), 0.5, None, "gradcam", "a", np.ones((2, 2), np.float32)
    )
    assert again(Returned(1, explanation)).value.target == ClassTarget(1)
    assert again(Returned(1, Explanation)).value is Explanation
    token = AnswerToken(7, " cat", 0.5, (Alternative(" dog", 0.25),), explanation.map, 1.5)
    told = again(Progressed(1, AnswerProgress(1, 3, None, 0, token))).progress
    assert (told.number, told.token.alternatives) == (0, token.alternatives)


@pytest.mark.parametrize("piece", [1, 3, 8, 1000])
def test_frames_arrive_in_any_pieces(piece: int) -> None:
    got: list[bytes] = []
    protocol = FrameProtocol(
        codec(),
        lambda payload: got.append(bytes(payload)),
        opened=lambda transport: None,
        lost=lambda: None,
    )
    stream = b"".join(LENGTH.pack(size) + bytes([size]) * size for size in (1, 5, 20, 2))
    while stream:
        buffer = protocol.get_buffer(-1)
        fits = min(len(buffer), piece, len(stream))
        buffer[:fits] = stream[:fits]
        stream = stream[fits:]
        protocol.buffer_updated(fits)
    assert got == [bytes([size]) * size for size in (1, 5, 20, 2)]


@pytest.mark.parametrize("length", [0, MOST_BYTES + 1, 2**64 - 1])
def test_a_frame_that_is_too_long_ends_the_connection(length: int) -> None:
    aborted: list[bool] = []
    protocol = FrameProtocol(
        codec(),
        lambda payload: pytest.fail("it was read"),
        opened=lambda transport: None,
        lost=lambda: None,
    )
    protocol.connection_made(SimpleNamespace(abort=lambda: aborted.append(True)))  # type: ignore[arg-type]
    protocol.get_buffer(-1)[:] = LENGTH.pack(length)
    protocol.buffer_updated(LENGTH.size)
    assert aborted
