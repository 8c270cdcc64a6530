"""What other tools get wrong: scaled, accumulated, clipped and skipped gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.probe.training import Book, batches, classes, exact, mlp, train
from torch import nn


def test_accumulation_is_one_frame_per_step(watch):
    model = mlp(8, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    micro: list[list[dict[str, np.ndarray]]] = []
    book = Book()
    with watch(model) as w:
        for step in range(5):
            optimizer.zero_grad()
            losses, parts, last = 0.0, [], {}
            for k in range(4):
                loss = classes(4)(model(batches(8)(step * 4 + k)), step * 4 + k) / 4
                loss.backward()
                losses += float(loss.detach())
                now = {name: exact(p.grad) for name, p in model.named_parameters()}
                parts.append({name: value - last.get(name, 0.0) for name, value in now.items()})
                last = now
            micro.append(parts)
            book.losses.append(losses)
            book.note_gradients(model.named_parameters())
            optimizer.step()
    run = w.run
    assert run.steps.tolist() == list(range(5))
    assert run.scalars("backward_count").tolist() == [4.0] * 5
    np.testing.assert_allclose(run.scalars("loss"), book.losses, rtol=1e-6)
    for name, _ in model.named_parameters():
        np.testing.assert_allclose(run.series("gradient_norm", name), book.norms(name), rtol=1e-6)
        np.testing.assert_allclose(
            run.series("gradient_noise_scale", name), [noise_scale(parts, name) for parts in micro], rtol=1e-4
        )


def noise_scale(parts: list[dict[str, np.ndarray]], name: str) -> float:
    each = np.array([part[name].ravel() for part in parts])
    mean, count = each.mean(axis=0), len(each)
    variance = ((each - mean) ** 2).sum() / (count - 1)
    signal = (mean**2).sum() - variance / count
    return variance / signal if signal > 0 else np.inf


def test_clipping_by_norm(watch):
    model = mlp(8, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stepped, coefficients = [], []

    def clip(step: int) -> None:
        total = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        coefficients.append(min(1.0, 0.05 / (float(total) + 1e-6)))
        stepped.append(float(model[0].weight.grad.norm()))

    with watch(model) as w:
        book = train(model, optimizer, 6, batches(8), classes(4), between=clip)
    run = w.run
    np.testing.assert_allclose(run.series("gradient_norm", "0.weight"), book.norms("0.weight"), rtol=1e-6)
    np.testing.assert_allclose(run.series("stepped_gradient_norm", "0.weight"), stepped, rtol=1e-5)
    np.testing.assert_allclose(run.scalars("clip_coefficient"), coefficients, rtol=1e-5)
    totals = [np.sqrt(sum((g**2).sum() for g in entry.values())) for entry in book.gradients]
    np.testing.assert_allclose(run.scalars("gradient_norm_total"), totals, rtol=1e-6)


def test_clipping_by_value(watch):
    model = mlp(8, 16, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    stepped = []

    def clip(step: int) -> None:
        nn.utils.clip_grad_value_(model.parameters(), 1e-3)
        stepped.append(float(model[2].weight.grad.norm()))

    with watch(model) as w:
        book = train(model, optimizer, 4, batches(8), classes(4), between=clip)
    run = w.run
    np.testing.assert_allclose(run.series("gradient_norm", "2.weight"), book.norms("2.weight"), rtol=1e-6)
    np.testing.assert_allclose(run.series("stepped_gradient_norm", "2.weight"), stepped, rtol=1e-5)
    np.testing.assert_allclose(run.series("stepped_gradient_max_abs", "2.weight"), 1e-3, rtol=1e-5)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_grad_scaler(watch, fused, clip):
    """Unscaled values whatever the scale; the scale and the skipped step are recorded."""
    model = mlp(8, 16, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    book, scales = Book(), []
    with watch(model) as w:
        for step in range(8):
            optimizer.zero_grad()
            x = batches(8)(step)
            if step == 4:
                x[0, 0] = torch.inf
            with torch.autocast("cpu", torch.bfloat16):
                output = model(x)
            loss = classes(4)(output, step)
            scales.append(scaler.get_scale())
            scaler.scale(loss).backward()
            book.losses.append(float(loss.detach()))
            book.note_gradients(model.named_parameters(), 1 / scales[-1])
            if clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
            scaler.step(optimizer)
            scaler.update()
    run = w.run
    assert run.steps.tolist() == list(range(8))
    good = np.arange(8) != 4
    assert run.scalars("step_skipped").tolist() == [0, 0, 0, 0, 1, 0, 0, 0]
    np.testing.assert_array_equal(run.scalars("loss_scale"), scales)
    np.testing.assert_allclose(run.scalars("loss")[good], np.array(book.losses)[good], rtol=1e-5)
    np.testing.assert_allclose(run.series("gradient_norm", "0.weight")[good], book.norms("0.weight")[good], rtol=1e-5)
    assert (run.series("gradient_nonfinite_count", "0.weight") > 0).tolist() == (~good).tolist()
    coefficient = run.scalars("clip_coefficient")[good]
    if clip:
        assert (coefficient < 0.5).all()
    else:
        np.testing.assert_allclose(coefficient, 1.0, rtol=1e-4)
    assert not [f for f in w.findings if f.severity.is_alarm]


def test_bf16_autocast(watch):
    model = mlp(8, 16, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    book = Book()
    with watch(model) as w:
        for step in range(5):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                output = model(batches(8)(step))
            classes(4)(output, step).backward()
            book.note_gradients(model.named_parameters())
            optimizer.step()
    for name, _ in model.named_parameters():
        np.testing.assert_allclose(w.run.series("gradient_norm", name), book.norms(name), rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_parameters_of_other_types(watch, dtype):
    model = mlp(8, 16, 4).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model) as w:
        book = train(model, optimizer, 5, lambda step: batches(8)(step).to(dtype), classes(4))
    for name, _ in model.named_parameters():
        np.testing.assert_allclose(w.run.series("gradient_norm", name), book.norms(name), rtol=1e-6)
        truth = [np.linalg.norm(entry[name]) for entry in book.after]
        np.testing.assert_allclose(w.run.series("weight_norm", name), truth, rtol=1e-6)
    assert w.run.layers["0.weight"].dtype == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("on_device", [False, True])
def test_a_loss_scale_that_has_fallen_to_nothing_leaves_no_loss_and_does_not_end_the_watch(
    watch, monkeypatch, on_device
):
    """As when every step overflows: the scaler halves its scale until nothing is left of it."""
    if on_device:  # the scale is then known only later
        monkeypatch.setattr("undertow.probe.step.scale_of", lambda scaler: scaler._scale.clone())
    model = mlp(8, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    with watch(model) as w:
        for step in range(6):
            optimizer.zero_grad()
            scaler.scale(classes(4)(model(batches(8)(step)), step)).backward()
            scaler.step(optimizer)
            scaler.update(0.0 if step >= 2 else 1.0)
    run = w.run
    assert str(run.status) == "finished"
    assert run.scalars("loss_scale").tolist() == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert np.isnan(run.scalars("loss")).tolist() == [False] * 3 + [True] * 3
    assert run.series("gradient_norm", "0.weight")[3] == 0.0
