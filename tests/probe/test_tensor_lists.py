"""Lists of tensors: what they are asked about in one call, and whether a change is noticed."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch

from undertow.measure.kernels import available
from undertow.measure.partials import Moment
from undertow.probe.reader import TensorReader
from undertow.probe.readings import host
from undertow.probe.tensor_list import TensorList, are_trainable, have_gradient, sample, single


def _parameters() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(size)) for size in ((3, 4), (5,), (2000,))]


def _list(tensors: list[torch.Tensor], of_gradients: bool = False) -> TensorList:
    return TensorList(np.arange(len(tensors)), [*map(weakref.ref, tensors)], of_gradients)


@pytest.fixture(params=["native", "torch"])
def reader(request, monkeypatch) -> TensorReader:
    if request.param not in available():
        pytest.skip("built without a C compiler")
    monkeypatch.setenv("UNDERTOW_KERNEL", request.param)
    return TensorReader()


def test_flags():
    tensors = _parameters()
    tensors[1].grad = torch.zeros(5)
    tensors[2].requires_grad_(False)
    references = [*map(weakref.ref, tensors)]
    assert have_gradient(references) == bytes([0, 1, 0])
    assert are_trainable(references) == bytes([1, 1, 0])
    del tensors
    assert have_gradient(references) == are_trainable(references) == bytes(3)


@pytest.mark.parametrize("of_gradients", [False, True])
def test_what_is_gone_is_not_read(reader, of_gradients):
    tensors = _parameters()
    for tensor in tensors:
        tensor.grad = torch.ones_like(tensor)
    of = _list(tensors, of_gradients)
    _, marks = reader.read_and_mark(of)
    assert reader.unchanged(marks, of)
    del tensor, tensors[1]
    assert reader.read(of) == []
    assert reader.read_and_mark(of) is None
    assert not reader.unchanged(marks, of)
    assert not reader.any_nonfinite(of)


NOT_PLAIN = [
    torch.ones(3).double(),
    torch.ones(2, 3).t(),
    torch.empty(0),
    torch.eye(3).to_sparse(),
    torch.ones(3, device="meta"),
    torch.ones(1, dtype=torch.complex64).conj().imag,
    None,
]


@pytest.mark.skipif("native" not in available(), reason="built without a C compiler")
class TestSomeElements:
    def test_single_numbers(self):
        loss = torch.tensor(0.1, requires_grad=True) * 3
        assert single(loss, torch.float32) == loss.item()
        for other in (*NOT_PLAIN, torch.ones(2)):
            assert single(other, torch.float32) is None

    @pytest.mark.parametrize("size", [1, 10, 1023, 1024, 1025, 2047, 2048, 5000, 70_001])
    def test_samples(self, size):
        values = torch.randn(size)
        expected = values.numpy()[:: max(1, size // 1024)].astype(np.float64)
        np.testing.assert_array_equal(np.frombuffer(sample(values, torch.float32, 1024)), expected)

    @pytest.mark.parametrize("other", NOT_PLAIN, ids=str)
    def test_no_samples(self, other):
        assert sample(other, torch.float32, 1024) is None


@pytest.mark.parametrize(
    "edit",
    [
        lambda t: t[0].detach().add_(1),
        lambda t: setattr(t[1], "data", t[1].data.clone()),
        lambda t: setattr(t[1], "data", torch.zeros(7)),
        lambda t: setattr(t[1], "data", t[1].data.double()),
        lambda t: setattr(t[0], "data", torch.zeros(4, 3).t()),
    ],
)
def test_edits_are_noticed(reader, edit):
    tensors = _parameters()
    of = _list(tensors)
    _, marks = reader.read_and_mark(of)
    assert reader.unchanged(marks, of)
    assert reader.unchanged(marks, _list(tensors))
    edit(tensors)
    assert not reader.unchanged(marks, of)
    readings, _ = reader.read_and_mark(of)  # and what is read is what is there now
    assert [int(count) for one in readings for count in one.partials.moments[:, 0]] == [t.numel() for t in tensors]


def test_edits_past_the_version_counter_are_noticed():
    if "native" not in available():
        pytest.skip("built without a C compiler")
    reader, tensors = TensorReader(), _parameters()
    of = _list(tensors)
    _, marks = reader.read_and_mark(of)
    tensors[2].data.mul_(2)
    assert not reader.unchanged(marks, of)


def test_gradients(reader):
    tensors = _parameters()
    for tensor in tensors:
        tensor.grad = torch.zeros_like(tensor)
    of = _list(tensors, of_gradients=True)
    assert reader.are_zero(of).all()
    assert not reader.any_nonfinite(of)
    _, marks = reader.read_and_mark(of)
    tensors[2].grad[1500] = torch.inf
    assert reader.any_nonfinite(of)
    assert not reader.unchanged(marks, of)


def test_a_reading_is_never_overwritten_while_somebody_holds_it():
    if "native" not in available():
        pytest.skip("built without a C compiler")
    reader, tensors = TensorReader(), _parameters()
    of = _list(tensors)
    held: list[tuple[float, Any]] = []
    for number in range(40):
        tensors[0].data.fill_(number)
        (reading,), _ = reader.read_and_mark(of)
        if number % 3 == 0:  # some are held as they came, some as arrays that look into them
            held.append((number, reading.partials))
        elif number % 3 == 1:
            held.append((number, host(reading.partials)))
    for number, partials in held:
        assert host(partials).moments[0, Moment.MAXIMUM] == number
        assert host(partials).moments[2, Moment.COUNT] == 2000


def test_memory_of_readings_is_used_again():
    if "native" not in available():
        pytest.skip("built without a C compiler")
    tensors = _parameters()
    reader, of = TensorReader(), _list(tensors)
    places: set[int] = set()
    others: list[bytes] = []
    for _ in range(100):
        (reading,), _ = reader.read_and_mark(of)
        places.add(reading.partials.moments.ctypes.data)
        others.append(bytes(len(reading.partials.data)))  # takes the place that was given back, if any was
    assert len(places) < 5


def test_lists_let_go_of_tensors_and_memory():
    if "native" not in available():
        pytest.skip("built without a C compiler")
    tensors = _parameters()
    alive = [weakref.ref(tensor) for tensor in tensors]
    of = _list(tensors)
    reading, marks = TensorReader().read_and_mark(of)
    del tensors, of, marks
    assert [ref() for ref in alive] == [None] * 3
    assert host(reading[0].partials).moments[2, Moment.COUNT] == 2000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf, None])
def test_a_glance_sees_what_is_not_finite_wherever_it_is(reader, dtype, bad):
    limits = torch.finfo(dtype)
    tensors = [torch.tensor([limits.max, limits.min, limits.tiny, 0.0, -0.0], dtype=dtype), torch.ones(37, dtype=dtype)]
    assert not reader.any_nonfinite(_list(tensors))
    for place in range(37) if bad is not None else ():
        tensors[1] = torch.ones(37, dtype=dtype)
        tensors[1][place] = bad
        assert reader.any_nonfinite(_list(tensors))


def test_a_glance_at_gradients_that_come_and_go(reader):
    tensors = _parameters()
    of = _list(tensors, of_gradients=True)
    for tensor in tensors:
        tensor.grad = torch.ones_like(tensor)
    assert not reader.any_nonfinite(of)
    tensors[0].grad = None
    assert not reader.any_nonfinite(of)
    tensors[2].grad = torch.full_like(tensors[2], torch.inf).to_sparse()
    assert reader.any_nonfinite(of)
