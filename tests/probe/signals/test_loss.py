"""What the loss function was given: every scalar against a value computed by hand in the same loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.probe.signals.loss_steps import CLASSES, LABELS, ROWS, SHARES, TARGETS, first, one_step
from tests.probe.training import batches, mlp
from torch import nn
from torch.nn import functional as F  # noqa: N812

from undertow.schema import LossKind, LossReduction

CROSS_ENTROPIES = {
    "functional": lambda x: F.cross_entropy(x, LABELS),
    "module": lambda x: nn.CrossEntropyLoss()(x, LABELS),
    "label smoothing": lambda x: F.cross_entropy(x, LABELS, label_smoothing=0.1),
    "class weights": lambda x: F.cross_entropy(x, LABELS, weight=torch.tensor([1.0, 2.0, 3.0, 4.0])),
    "averaged by hand": lambda x: F.cross_entropy(x, LABELS, reduction="none").mean(),
    "summed, then divided": lambda x: F.cross_entropy(x, LABELS, reduction="sum") / ROWS,
    "log-softmax and nll": lambda x: F.nll_loss(x.log_softmax(1), LABELS),
    "gathered": lambda x: -x.log_softmax(1).gather(1, LABELS[:, None]).mean(),
    "indexed": lambda x: -x.log_softmax(-1)[torch.arange(ROWS), LABELS].mean(),
    "one-hot": lambda x: F.cross_entropy(x, F.one_hot(LABELS, CLASSES).float()),
    "one-hot by hand": lambda x: -(F.one_hot(LABELS, CLASSES) * x.log_softmax(1)).sum(1).mean(),
    "classes in the middle": lambda x: F.cross_entropy(
        x.reshape(3, 4, CLASSES).transpose(1, 2), LABELS.reshape(3, 4)
    ),
    "rows of tokens": lambda x: F.cross_entropy(x.reshape(3, 4, CLASSES).reshape(-1, CLASSES), LABELS),
    "softened by a mask": lambda x: F.cross_entropy(x, LABELS, reduction="none")[LABELS >= 0].mean(),
    "autocast": lambda x: F.cross_entropy(x.bfloat16().float(), LABELS),
}  # fmt: skip


@pytest.mark.parametrize("name", CROSS_ENTROPIES)
def test_cross_entropy(watch, name):
    scalars, (logits, *_) = one_step(watch, CROSS_ENTROPIES[name])
    found = first(scalars)
    assert found["loss_kind"] == LossKind.CROSS_ENTROPY
    assert found["loss_reduction"] == LossReduction.MEAN
    assert found["loss_factor"] == pytest.approx(1.0)
    assert (found["loss_rows"], found["loss_classes"]) == (ROWS, CLASSES)
    assert found["loss_input_is_probability"] == 0.0
    assert "loss_broadcast" not in found
    exact = logits.double()
    assert found["output_accuracy"] == pytest.approx(float((exact.argmax(1) == LABELS).double().mean()))
    assert found["output_max_probability"] == pytest.approx(float(exact.softmax(1).max(1).values.mean()), rel=1e-2)
    shares = np.bincount(LABELS.numpy()) / ROWS
    assert found["label_entropy"] == pytest.approx(-(shares * np.log(shares)).sum())
    repeats = np.mean(LABELS.numpy()[1:] == LABELS.numpy()[:-1])
    assert found["label_repeat"] == pytest.approx(repeats - (shares**2).sum())
    if name not in ("classes in the middle",):
        assert found["output_log_z"] == pytest.approx(float(exact.logsumexp(1).mean()), rel=1e-2)


def test_where_wrong_answers_have_the_label(watch):
    scalars, outputs = one_step(watch, lambda x: F.cross_entropy(x, LABELS))
    order = outputs[0].argsort(1, descending=True)
    ranks = [(row == label).nonzero().item() for row, label in zip(order, LABELS, strict=True)]
    expected = np.mean([(rank - 1) / (CLASSES - 2) for rank in ranks if rank > 0])
    assert first(scalars)["output_miss_rank"] == pytest.approx(expected)


def test_places_of_a_sequence_are_no_samples(watch):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, CLASSES)

        def forward(self, x):
            return self.head(x.reshape(-1, 2, 3)).flatten(0, 1)

    labels = LABELS.repeat(2)
    assert "output_miss_rank" not in one_step(watch, lambda x: F.cross_entropy(x, labels), Reader())[0]


def test_targets_that_come_again(watch):
    new = iter(range(10))
    of = {
        "copies": (lambda x: F.cross_entropy(x, LABELS.clone()), {0.5, 1.0}),  # memory may be used again at once
        "one tensor": (lambda x: F.cross_entropy(x, LABELS), {0.5}),
        "others": (lambda x: F.cross_entropy(x, LABELS.roll(next(new))), {0.0}),
        "numbers": (lambda x: F.mse_loss(x, TARGETS), {0.5}),
    }
    for loss_of, expected in of.values():
        found = one_step(watch, loss_of, steps=4)[0]["targets_repeated"]
        assert np.isnan(found[0])
        assert set(found[1:].tolist()) <= expected


def test_pinball(watch):
    levels = torch.tensor([0.1, 0.4, 0.6, 0.9])

    def pinball(x, choose):
        error = TARGETS[:, :1] - x
        return choose(levels * error, (levels - 1) * error).mean()

    for loss_of, factor in (
        (lambda x: pinball(x, torch.maximum), 1.0),
        (lambda x: pinball(x, torch.max), 1.0),
        (lambda x: pinball(x, torch.minimum), -1.0),
        (lambda x: -pinball(x, torch.maximum), -1.0),
    ):
        found = first(one_step(watch, loss_of)[0])
        assert (found["loss_kind"], found["loss_factor"]) == (LossKind.ABSOLUTE, pytest.approx(factor))
        assert found.get("loss_broadcast") in (None, 0.0)
    found = first(one_step(watch, lambda x: torch.maximum(0.9 * (TARGETS - x), -0.1 * (TARGETS - x)).mean())[0])
    assert found["loss_kind"] == LossKind.UNKNOWN  # two differences: it cannot be known that they are the same


def test_numbers_of_elementwise_losses(watch):
    for loss_of, kind in (
        (lambda x: F.mse_loss(x, 3 * TARGETS + 1), LossKind.MEAN_SQUARE),
        (lambda x: F.smooth_l1_loss(x, 3 * TARGETS + 1), LossKind.ABSOLUTE),
    ):
        scalars, (output, *_) = one_step(watch, loss_of)
        found = first(scalars)
        assert found["loss_kind"] == kind
        assert (found["loss_rows"], found["loss_classes"]) == (ROWS, CLASSES)
        assert found["prediction_mean"] == pytest.approx(float(output.double().mean()))
        assert found["prediction_std"] == pytest.approx(float(output.double().std(correction=0)))
        assert found["target_mean"] == pytest.approx(float((3 * TARGETS + 1).double().mean()))
        assert found["target_std"] == pytest.approx(float((3 * TARGETS + 1).double().std(correction=0)))
        assert "output_accuracy" not in found
        assert "label_entropy" not in found


def test_logits_of_a_linear_layer_of_three_dimensions(watch):
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.GRU(3, 8, batch_first=True), nn.Linear(8, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x.reshape(ROWS, 2, 3))[0])

    labels = LABELS.repeat_interleave(2)
    scalars, (logits, *_) = one_step(watch, lambda x: F.cross_entropy(x.reshape(-1, CLASSES), labels), Tokens())
    expected = logits.double().reshape(-1, CLASSES).logsumexp(1).mean()
    assert first(scalars)["output_log_z"] == pytest.approx(float(expected), rel=1e-5)


def test_binary_losses(watch):
    labels = (LABELS > 1).float()
    shares = np.array([np.mean(LABELS.numpy() <= 1), np.mean(LABELS.numpy() > 1)])
    entropy = -(shares * np.log(shares)).sum()
    found = first(one_step(watch, lambda x: F.binary_cross_entropy_with_logits(x[:, 0], labels))[0])
    assert (found["loss_kind"], found["loss_input_is_probability"]) == (LossKind.BINARY_OF_LOGITS, 0.0)
    assert found["label_entropy"] == pytest.approx(entropy)
    found = first(one_step(watch, lambda x: F.binary_cross_entropy(x[:, 0].sigmoid(), labels))[0])
    assert (found["loss_kind"], found["loss_input_is_logit"]) == (LossKind.BINARY_OF_PROBABILITIES, 0.0)
    assert found["target_mean"] == pytest.approx(shares[1])
    found = first(one_step(watch, lambda x: F.binary_cross_entropy_with_logits(x, SHARES))[0])
    assert "label_entropy" not in found


def test_divergence(watch):
    def distil(x):
        return F.kl_div((x / 2).log_softmax(1), SHARES, reduction="batchmean") * 4

    found = first(one_step(watch, distil)[0])
    assert (found["loss_kind"], found["loss_factor"]) == (LossKind.DIVERGENCE, pytest.approx(4.0))
    assert found["loss_input_is_logit"] == 0.0
    assert (found["loss_rows"], found["loss_classes"]) == (ROWS, CLASSES)
    assert "label_entropy" not in found
    found = first(one_step(watch, lambda x: F.kl_div(x.softmax(1), SHARES, reduction="batchmean"))[0])
    assert (found["loss_kind"], found["loss_input_is_logit"]) == (LossKind.DIVERGENCE, 1.0)


def test_soft_targets_count_by_their_largest_share(watch):
    scalars, (logits, *_) = one_step(watch, lambda x: F.cross_entropy(x, SHARES))
    found, best = first(scalars), SHARES.argmax(1)
    assert found["loss_factor"] == pytest.approx(1.0)
    assert found["output_accuracy"] == pytest.approx(float((logits.argmax(1) == best).double().mean()))
    shares = np.bincount(best.numpy(), minlength=CLASSES) / ROWS
    assert found["label_entropy"] == pytest.approx(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())


def test_padding_is_left_out(watch):
    labels = LABELS.clone()
    labels[::3] = -100
    kept = labels >= 0
    scalars, (logits, *_) = one_step(watch, lambda x: F.cross_entropy(x, labels))
    found = first(scalars)
    assert found["loss_rows"] == ROWS
    right = (logits.argmax(1) == labels)[kept].double().mean()
    assert found["output_accuracy"] == pytest.approx(float(right))
    shares = np.bincount(labels[kept].numpy()) / int(kept.sum())
    assert found["label_entropy"] == pytest.approx(-(shares * np.log(shares)).sum())


def test_labels_are_pooled_over_steps(watch):
    steps = [torch.full((ROWS,), step) for step in range(CLASSES)]
    counter = iter(steps)
    scalars, _ = one_step(watch, lambda x: F.cross_entropy(x, next(counter)), steps=CLASSES)
    np.testing.assert_allclose(scalars["label_entropy"], 0.0, atol=1e-12)
    np.testing.assert_allclose(scalars["label_entropy_pooled"], np.log(np.arange(1, CLASSES + 1)), atol=1e-12)
    np.testing.assert_allclose(scalars["label_repeat"], 1 - 1 / np.arange(1, CLASSES + 1), atol=1e-12)


def test_a_loss_computed_inside_the_model_under_autocast(watch):
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(6, 10, CLASSES)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.body(x)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    model = WithLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model) as w:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(batches(6, ROWS)(0), LABELS)
        out["loss"].backward()
        optimizer.step()
    logits = out["logits"].detach().double()
    assert w.run.scalars("loss_kind").tolist() == [LossKind.CROSS_ENTROPY]
    assert w.run.scalars("output_log_z")[0] == pytest.approx(float(logits.logsumexp(1).mean()), rel=2e-2)
    assert w.run.scalars("output_accuracy")[0] == pytest.approx(float((logits.argmax(1) == LABELS).double().mean()))


def test_the_layer_whose_output_the_loss_was_given(watch):
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.policy, self.value = nn.Linear(6, 8), nn.Linear(8, CLASSES), nn.Linear(8, 1)
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            hidden = torch.relu(self.body(x))
            return self.policy(hidden) * self.scale, self.value(hidden).tanh()

    model, found = Heads(), []
    for of in (
        lambda policy, value: F.cross_entropy(policy, LABELS) + 0 * value.sum(),
        lambda policy, value: (value - TARGETS[:, 0]).square().mean() + F.cross_entropy(policy, LABELS),
    ):
        with watch(model) as w:
            of(*model(batches(6, ROWS)(0))).backward()
            torch.optim.SGD(model.parameters(), lr=0.05).step()
        found.append(w.run.layers[int(w.run.scalars("loss_layer")[0])].group)
    assert found == ["policy", "value"]  # of the second sum, the part whose shapes are wrong
