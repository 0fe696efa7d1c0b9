"""Streams of requests over gRPC: their order, their bounds and their ends."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient import grpc as triton

from service.core.errors import TooSlow, Unavailable
from service.features.keys.keys import new_key
from service.features.open_inference.grpc_server import STREAM, STREAMS, STREAMS_OF_A_KEY
from service.features.open_inference.streaming import AT_ONCE, answer_in_order
from service.settings import Settings
from tests.service.conftest import encoded, noise, running_app
from tests.service.features.open_inference.test_grpc import calling, ended, image, outputs
from tests.service.http.test_overload import FRAGILE
from tests.service.live import free_port
from tests.waiting import settled, until_async

PHOTO = encoded(noise(8, 8))


def message(name: str, photo: bytes = PHOTO, **parameters: str) -> bytes:
    request = triton.service_pb2.ModelInferRequest(model_name="fragile", id=name)
    request.inputs.add(name="image", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(len(photo).to_bytes(4, "little") + photo)
    request.outputs.add(name="labels")
    for key, value in parameters.items():
        request.parameters[key].string_param = value
    return bytes(request.SerializeToString())


def told(answer: bytes) -> tuple[str, str]:
    """The id and the error of an answer."""
    read = triton.service_pb2.ModelStreamInferResponse.FromString(answer)
    return read.infer_response.id, read.error_message


def test_tritons_client_gets_the_answers_in_the_order_of_its_requests() -> None:
    port = free_port()
    heard: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with (
        running_app(Settings(grpc_port=port), [FRAGILE]) as http,
        triton.InferenceServerClient(f"127.0.0.1:{port}") as client,
    ):
        client.start_stream(lambda result, error: heard.put((result, error)))
        for turn in range(AT_ONCE + 4):
            model = "nope" if turn == 3 else "fragile"
            photo = image(encoded(noise(8, 8, seed=turn)))
            client.async_stream_infer(
                model, [photo], request_id=str(turn), outputs=outputs("heatmap")
            )
        answers = [heard.get(timeout=60) for _ in range(AT_ONCE + 4)]
        client.stop_stream()
        alone = client.infer(
            "fragile", [image(encoded(noise(8, 8, seed=9)))], outputs=outputs("heatmap")
        )
        metrics = http.get("/metrics").text
    for turn, (result, error) in enumerate(answers):
        if turn == 3:
            assert "no model 'nope'" in str(error)
        else:
            assert result.get_response().id == str(turn)
    assert (answers[9][0].as_numpy("heatmap") == alone.as_numpy("heatmap")).all()
    route = f'route="inference.GRPCInferenceService/{STREAM}"'
    assert f'gradcam_requests_total{{method="POST",{route},status="200"}} {AT_ONCE + 3}' in metrics
    assert f'gradcam_requests_total{{method="POST",{route},status="404"}} 1' in metrics


def test_a_request_that_is_wrong_is_told_and_the_stream_goes_on() -> None:
    sent = [message("a", b"x"), b"\xff", message("b", method="gradcan"), message("c")]
    with calling(Settings(), [FRAGILE], STREAM) as call:
        stream = call(iter(sent))
        answers = [told(answer) for answer in stream]
        assert stream.code() is grpc.StatusCode.OK
    assert [name for name, _ in answers] == ["a", "", "b", "c"]
    words = ("image", "is not a ModelInferRequest", "no method 'gradcan'")
    assert all(word in error for word, (_, error) in zip(words, answers[:3], strict=True))
    assert answers[3][1] == ""


def test_a_message_that_is_too_large_ends_its_stream() -> None:
    with calling(Settings(max_body_bytes=100_000), [FRAGILE], STREAM) as call:
        stream = call(iter([message("small"), message("large", bytes(200_000))]))
        assert [told(answer) for answer in stream_until_error(stream)] in ([], [("small", "")])
        assert ended(stream)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


def stream_until_error(stream: Any) -> Iterator[bytes]:
    with suppress(grpc.RpcError):
        yield from stream


def test_streams_that_never_send_are_few_and_end() -> None:
    released = threading.Event()

    def silent() -> Iterator[bytes]:
        released.wait(60)
        yield from ()

    with calling(Settings(receive_seconds=1.0), [FRAGILE], STREAM) as call:
        codes = [ended(one) for one in [call(silent()) for _ in range(STREAMS + 2)]]
        released.set()
        assert [told(answer) for answer in call(iter([message("next")]))] == [("next", "")]
    found = [code for code, _ in codes]
    assert found.count(grpc.StatusCode.DEADLINE_EXCEEDED) == STREAMS
    assert found.count(grpc.StatusCode.UNAVAILABLE) == 2
    assert {details for _, details in codes} == {
        "no message of the stream has arrived for 1 s",
        f"{STREAMS} streams are open; use one of them for more requests, or ModelInfer",
    }


def test_a_key_leaves_streams_to_others(tmp_path: Path) -> None:
    (greedy, first), (other, second) = (
        new_key(name, ["explain"], None) for name in ("greedy", "other")
    )
    file = tmp_path / "keys.toml"
    file.write_text(f"{first}\n{second}")
    released = threading.Event()

    def kept() -> Iterator[bytes]:
        yield message("a")
        released.wait(60)

    port = free_port()
    with (
        running_app(Settings(keys=file, grpc_port=port), [FRAGILE]),
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        call = channel.stream_stream(f"/inference.GRPCInferenceService/{STREAM}")

        def opened(key: str) -> Any:
            return call(kept(), metadata=[("x-api-key", key)])

        open_ones = [opened(greedy) for _ in range(STREAMS_OF_A_KEY)]
        assert {told(next(one)) for one in open_ones} == {("a", "")}
        one_more = opened(greedy)
        assert list(stream_until_error(one_more)) == []
        code, details = ended(one_more)
        assert code is grpc.StatusCode.UNAVAILABLE
        assert details.startswith(f"{STREAMS_OF_A_KEY} streams of the key 'greedy' are open")
        assert told(next(opened(other))) == ("a", "")
        released.set()
        assert {ended(one)[0] for one in open_ones} == {grpc.StatusCode.OK}
        assert told(next(opened(greedy))) == ("a", "")


def test_a_stream_whose_caller_keeps_it_open_ends_with_the_service() -> None:
    released = threading.Event()

    def kept() -> Iterator[bytes]:
        yield message("a")
        released.wait(60)

    port = free_port()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        with running_app(Settings(grpc_port=port, drain_seconds=5.0), [FRAGILE]):
            stream = channel.stream_stream(f"/inference.GRPCInferenceService/{STREAM}")(kept())
            assert told(next(stream)) == ("a", "")
        details = "the service is shutting down; open another stream"
        assert ended(stream) == (grpc.StatusCode.UNAVAILABLE, details)
        released.set()


def test_the_key_of_a_stream_is_checked_before_a_byte_is_read(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    key, entry = new_key("app", ["admin"], None)
    file.write_text(entry)
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield message("x")

    for sent_key, code in (("", "UNAUTHENTICATED"), (key, "PERMISSION_DENIED")):
        with calling(Settings(keys=file), [FRAGILE], STREAM, sent_key) as call:
            assert ended(call(endless()))[0] is grpc.StatusCode[code]
    assert sent < 20


class Talk:
    """A caller, and answers that are ready when the test says so."""

    def __init__(self, *, reads: bool = True) -> None:
        self.sent = 0
        self.begun: list[asyncio.Event] = []
        self.written: list[bytes] = []
        self.stopping = asyncio.Event()
        self.open = 0
        """Number of requests whose memory is counted."""
        self._reads = asyncio.Event()
        if reads:
            self._reads.set()

    async def stream(
        self,
        read: Callable[[], Coroutine[Any, Any, object]] | None = None,
        idle_seconds: float = 60,
    ) -> None:
        await answer_in_order(
            read or self.read,
            self.answer,
            self.write,
            stopping=self.stopping,
            idle_seconds=idle_seconds,
        )

    async def read(self) -> object:
        self.sent += 1
        return b"%d" % self.sent

    async def answer(self, body: bytes, held: ExitStack) -> bytes:
        self.open += 1
        held.callback(self._close)
        self.begun.append(asyncio.Event())
        await self.begun[-1].wait()
        return body

    def _close(self) -> None:
        self.open -= 1

    async def write(self, answer: bytes) -> None:
        await self._reads.wait()
        self.written.append(answer)


def test_a_stream_reads_no_more_than_it_may_work_on_and_keeps_the_order() -> None:
    async def run() -> None:
        talk = Talk()
        stream = asyncio.create_task(talk.stream())
        await until_async(lambda: len(talk.begun) == AT_ONCE)
        talk.begun[1].set()  # the second is ready before the first
        await settled(100)
        assert (talk.sent, talk.written) == (AT_ONCE, [])
        talk.begun[0].set()
        await until_async(lambda: len(talk.begun) == AT_ONCE + 2)
        assert (talk.sent, talk.written) == (AT_ONCE + 2, [b"1", b"2"])
        assert talk.open == AT_ONCE
        stream.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stream
        assert talk.open == 0

    asyncio.run(run())


def test_a_caller_who_does_not_read_sends_no_more() -> None:
    async def run() -> None:
        talk = Talk(reads=False)
        stream = asyncio.create_task(talk.stream())
        await until_async(lambda: len(talk.begun) == AT_ONCE)
        for event in talk.begun:
            event.set()
        await settled(100)
        assert (talk.sent, talk.open, talk.written) == (AT_ONCE, AT_ONCE, [])
        stream.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stream
        assert talk.open == 0

    asyncio.run(run())


def test_a_stream_that_stands_still_ends_after_its_answers() -> None:
    async def run() -> None:
        talk = Talk()
        silence = asyncio.Event()

        async def once() -> object:
            if talk.sent:
                await silence.wait()
            return await talk.read()

        stream = asyncio.create_task(talk.stream(once, idle_seconds=0.01))
        await until_async(lambda: talk.begun)
        talk.begun[0].set()
        with pytest.raises(TooSlow, match=r"for 0\.01 s"):
            await stream
        assert (talk.written, talk.open) == ([b"1"], 0)

    asyncio.run(run())


def test_a_stream_that_the_service_ends_takes_no_more_and_answers_what_is_due() -> None:
    async def run() -> None:
        talk = Talk()
        stream = asyncio.create_task(talk.stream())
        await until_async(lambda: len(talk.begun) == AT_ONCE)
        talk.begun[0].set()
        await until_async(lambda: len(talk.begun) == AT_ONCE + 1)
        talk.stopping.set()
        for event in talk.begun:
            event.set()
        with pytest.raises(Unavailable, match="the service is shutting down"):
            await stream
        assert len(talk.begun) == AT_ONCE + 1
        assert talk.written == [b"%d" % turn for turn in range(1, AT_ONCE + 2)]
        assert talk.open == 0

    asyncio.run(run())


def test_a_stream_whose_caller_is_silent_ends_when_the_service_does() -> None:
    async def run() -> None:
        talk = Talk()
        stream = asyncio.create_task(talk.stream(asyncio.Event().wait))
        await settled()
        assert not stream.done()
        talk.stopping.set()
        await until_async(stream.done)
        with pytest.raises(Unavailable):
            await stream

    asyncio.run(run())
