"""Tensors of the Open Inference Protocol: their bytes, by hand, and what is not a tensor."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.errors import MalformedRequest
from service.features.open_inference.tensors import NUMBERS, Tensor, from_list, from_raw


def listed(tensor: Tensor) -> Any:
    return json.loads(b"".join(tensor.json_data()))


def test_raw_bytes_by_hand() -> None:
    strings = Tensor("x", (2,), strings=[b"cat", b""])
    assert strings.raw() == b"\x03\x00\x00\x00cat\x00\x00\x00\x00"
    assert strings.datatype == "BYTES"
    numbers = Tensor("x", (1, 2), np.array([[1, -2]], "<i2"))
    assert (numbers.raw(), numbers.datatype) == (b"\x01\x00\xfe\xff", "INT16")
    assert Tensor("x", (1,), np.array([1.5], "<f4")).raw() == b"\x00\x00\xc0\x3f"


def test_json_has_text_as_text_and_other_bytes_in_base64() -> None:
    text = Tensor("x", (1,), strings=["tabby, getigert ä".encode()], is_text=True)
    assert (listed(text), text.parameters) == (["tabby, getigert ä"], {})
    picture = Tensor("x", (1,), strings=[b"\x89PNG"])
    assert (listed(picture), picture.parameters) == (["iVBORw=="], {"content_type": "base64"})


def test_many_numbers_are_written_as_json_in_pieces() -> None:
    numbers = np.arange(40_000, dtype="<f4")
    pieces = list(Tensor("x", (40_000,), numbers).json_data())
    assert max(map(len, pieces)) < 200_000 < sum(map(len, pieces))
    assert json.loads(b"".join(pieces)) == numbers.tolist()
    assert json.loads(b"".join(Tensor("x", (0,), numbers[:0]).json_data())) == []


def test_a_long_text_among_many_costs_no_more_than_its_bytes() -> None:
    """NumPy would make an array in which each element has the length of the longest."""
    data: list[object] = ["a" * 30_000, *[""] * 15_000]
    tracemalloc.start()
    with pytest.raises(MalformedRequest, match="not a number of type UINT8"):
        from_list("x", "UINT8", [15_001], data)
    with pytest.raises(MalformedRequest, match="not a number of type FP16"):
        from_list("x", "FP16", [15_001], [str(one).encode() for one in data])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


@given(
    datatype=st.sampled_from(sorted(NUMBERS)),
    shape=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_numbers_come_back(datatype: str, shape: list[int], seed: int) -> None:
    made = np.random.default_rng(seed).integers(0, 2, shape).astype(NUMBERS[datatype])
    tensor = Tensor("x", tuple(shape), made)
    assert tensor.datatype == datatype
    for again in (
        from_raw("x", datatype, shape, tensor.raw()),
        from_list("x", datatype, shape, listed(tensor)),
        from_list("x", datatype, shape, made.tolist()),
    ):
        assert again.numbers is not None
        assert again.numbers.dtype == made.dtype
        np.testing.assert_array_equal(again.numbers, made)


@given(st.lists(st.binary(max_size=9), max_size=4))
@settings(max_examples=60, deadline=None)
def test_strings_come_back(strings: list[bytes]) -> None:
    sent = Tensor("x", (len(strings),), strings=strings)
    assert list(from_raw("x", "BYTES", [len(strings)], sent.raw()).strings) == strings


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "sentence"),
    [
        ("UINT8", [2], b"\x00", "input 'x' has 1 byte; UINT8 of shape [2] has 2"),
        ("FP33", [2], b"", "datatype 'FP33' is not one of the protocol's"),
        ("UINT8", [-1], b"", "has the shape [-1]"),
        ("UINT8", [2**31], b"", "has the shape"),
        ("UINT8", [1] * 9, b"\0", "has the shape"),
        ("BYTES", [1], b"\x09\0\0\0cat", "element 0 of BYTES is cut off"),
        ("BYTES", [1], b"\x09\0", "element 0 of BYTES is cut off"),
        ("BYTES", [2], b"\0\0\0\0", "has 1 element; its shape [2] has 2"),
        ("BYTES", [1], b"\0\0\0\0" * 9, "its shape [1] has 1"),
    ],
)
def test_bytes_that_are_no_such_tensor(
    datatype: str, shape: list[int], data: bytes, sentence: str
) -> None:
    with pytest.raises(MalformedRequest, match="input 'x'") as caught:
        from_raw("x", datatype, shape, data)
    assert sentence in caught.value.detail


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "sentence"),
    [
        ("UINT8", [2], [1, 256], "a number is not of type UINT8"),
        ("UINT8", [2], [1, -1], "a number is not of type UINT8"),
        ("UINT8", [2], [1, 0.5], "a number is not of type UINT8"),
        ("UINT8", [1], [10**30], "not"),
        ("UINT8", [2], ["1", "2"], "an element is not a number of type UINT8"),
        ("UINT8", [2, 2], [[1, 2], [3]], "the data are not UINT8 in lists of equal lengths"),
        ("UINT8", [3], [1, 2], "has 2 elements; its shape [3] has 3"),
        ("UINT8", [3], "abc", "has no data"),
        ("UINT8", [1], [None], "not"),
        ("UINT8", [1], [{}], "not"),
        ("BYTES", [1], [1], "BYTES in JSON are strings"),
        ("BYTES", [2], ["a"], "has 1 element; its shape [2] has 2"),
    ],
)
def test_lists_that_are_no_such_tensor(
    datatype: str, shape: list[int], data: Any, sentence: str
) -> None:
    with pytest.raises(MalformedRequest) as caught:
        from_list("x", datatype, shape, data)
    assert sentence in caught.value.detail
