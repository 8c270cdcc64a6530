"""Signals of the loss on a GPU: the same numbers, and the training thread does not wait for them."""

from __future__ import annotations

import pytest
import torch
from tests.probe.training import batches, mlp
from torch import nn
from torch.nn import functional as F  # noqa: N812

from undertow.schema import LossKind

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

LABELS = torch.tensor([0, 0, 1, 2, 3, 4, 1, 0])


def test_values(watch):
    model = mlp(20, 40, 5).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    x = batches(20, 8)(0).cuda()
    with watch(model, activations=True) as w:
        logits = model(x)
        scaler.scale(F.cross_entropy(logits, LABELS.cuda()) / 4).backward()
        scaler.step(optimizer)
        scaler.update()
    run, exact = w.run, logits.detach().double().cpu()
    assert run.status == "finished"
    assert run.scalars("loss_kind")[0] == LossKind.CROSS_ENTROPY
    assert run.scalars("loss_factor")[0] == pytest.approx(0.25)
    assert run.scalars("output_log_z")[0] == pytest.approx(float(exact.logsumexp(1).mean()), rel=1e-3)
    assert run.scalars("output_accuracy")[0] == pytest.approx(float((exact.argmax(1) == LABELS).double().mean()))
    assert run.scalars("input_std")[0] == pytest.approx(float(x.double().std(correction=0)), rel=1e-4)
    assert run.series("activation_training", "0")[0] == 1.0
    assert run.series("optimizer_rate", "0.weight")[0] == pytest.approx(1e-3)


@pytest.mark.parametrize("loss_of", [
    lambda out: F.mse_loss(out[..., 0], torch.ones_like(out[..., 0])),
    lambda out: F.cross_entropy(out.reshape(-1, 16).softmax(1), torch.zeros_like(out[..., 0]).long().flatten()),
    lambda out: -out.log_softmax(-1)[..., 0].mean() * 0.5,
    lambda out: F.binary_cross_entropy_with_logits(out, torch.zeros_like(out)),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_no_form_of_loss_or_attention_makes_the_training_wait(watch, loss_of):
    model = nn.Sequential(
        nn.Embedding(30, 16), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.LayerNorm(16)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 30, (4, 9)).cuda()
    with watch(model, activations=True) as w:
        held: list = []  # the background thread may wait; the mode below would not let it
        handle, w._mailbox._handle = w._mailbox._handle, held.extend
        try:
            for step in range(6):
                if step == 2:
                    torch.cuda.set_sync_debug_mode("error")
                optimizer.zero_grad()
                loss_of(model(tokens)).backward()
                optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        w._mailbox.flush(10)
        handle(held)
        w._mailbox._handle = handle
    assert w.run.status == "finished", w.run.facts.message
