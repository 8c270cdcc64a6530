"""Capture on a GPU: right values, and the training thread never waits for the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.probe.training import batches, mlp
from torch import nn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def _steps(model, optimizer, steps, scaler=None, clip=None):
    """The truth is kept on the device until the end: reading it earlier would hide a wait of ours."""
    truth, losses, scales = [], [], []
    data = [(batches(20)(i).cuda(), torch.randint(0, 5, (16,)).cuda()) for i in range(steps)]
    torch.cuda.synchronize()
    for x, y in data:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=scaler is not None):
            output = model(x)
        loss = nn.functional.cross_entropy(output.float(), y)
        if scaler is not None:
            scales.append(scaler._scale.clone() if scaler._scale is not None else torch.tensor(1024.0).cuda())
        (scaler.scale(loss) if scaler is not None else loss).backward()
        losses.append(loss.detach().clone())
        truth.append(model[0].weight.grad.double().norm())
        if clip is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
    norms = np.array([t.item() for t in truth])
    if scales:
        norms = norms / np.array([s.item() for s in scales])
    return norms, np.array([loss.item() for loss in losses])


@pytest.mark.parametrize("clip", [None, 0.05])
def test_values(watch, clip):
    model = mlp(20, 40, 30, 5).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch(model) as w:
        norms, losses = _steps(model, optimizer, 8, clip=clip)
    run = w.run
    assert run.status == "finished"
    np.testing.assert_allclose(run.series("gradient_norm", "0.weight"), norms, rtol=1e-5)
    np.testing.assert_allclose(run.scalars("loss"), losses, rtol=1e-5)
    if clip is not None:
        totals = run.scalars("gradient_norm_total")
        np.testing.assert_allclose(run.scalars("clip_coefficient"), np.minimum(1, clip / totals), rtol=1e-4)
    assert (run.series("update_ratio", "0.weight") > 0).all()


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler(watch, fused):
    model = mlp(20, 40, 30, 5).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    with watch(model) as w:
        norms, losses = _steps(model, optimizer, 8, scaler=scaler)
    np.testing.assert_allclose(w.run.series("gradient_norm", "0.weight"), norms, rtol=1e-5)
    np.testing.assert_allclose(w.run.scalars("loss"), losses, rtol=1e-5)
    np.testing.assert_allclose(w.run.scalars("loss_scale"), 1024.0)


def test_the_training_thread_never_waits(watch):
    model = mlp(20, 40, 30, 5).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = [(batches(20)(i).cuda(), torch.randint(0, 5, (16,)).cuda()) for i in range(8)]
    with watch(model, activations=True) as w:
        held: list = []  # the background thread may wait; the mode below would not let it
        handle, w._mailbox._handle = w._mailbox._handle, held.extend
        for step, (x, y) in enumerate(data):
            if step == 2:
                torch.cuda.set_sync_debug_mode("error")
            try:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            finally:
                if step == 7:
                    torch.cuda.set_sync_debug_mode("default")
        w._mailbox.flush(10)
        handle(held)
        w._mailbox._handle = handle
    assert w.run.status == "finished", w.run.facts.message
    assert w.run.steps.tolist() == list(range(8))


def test_training_is_bit_identical(watch):
    results = []
    for watched in (False, True):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 5)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if watched:
            with watch(model, activations=True):
                _steps(model, optimizer, 8)
        else:
            _steps(model, optimizer, 8)
        results.append([p.detach().cpu() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results))
