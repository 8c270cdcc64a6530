"""How strong is the rope? A set of fibres, an attention pool, and a break test."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from corpus.case import program

FIBRES, TRAITS, GRADES = 10, 6, 4


@dataclass
class Ropes:
    fibres: Tensor
    strength: Tensor
    grade: Tensor


def twist(seed: int, count: int = 700) -> Ropes:
    """The strength is that of the weakest fibres, the grade its quarter."""
    g = torch.Generator().manual_seed(seed + 60)
    fibres = torch.randn(count, FIBRES, TRAITS, generator=g)
    each = fibres[..., 0] + 0.7 * fibres[..., 1] * fibres[..., 2] - 0.4 * fibres[..., 3].square()
    strength = -torch.logsumexp(-each, 1) + 0.1 * torch.randn(count, generator=g)
    strength = (strength - strength.mean()) / strength.std()
    return Ropes(fibres, strength, torch.bucketize(strength, torch.tensor([-0.7, 0.0, 0.7])))


class RopeNet(nn.Module):
    def __init__(self, outputs: int, width: int = 32) -> None:
        super().__init__()
        self.spin = nn.Sequential(nn.Linear(TRAITS, width), nn.ReLU(), nn.Linear(width, width))
        self.norm1 = nn.LayerNorm(width)
        self.attend = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mix = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width))
        self.seed = nn.Parameter(torch.randn(1, 1, width) * 0.2)
        self.pool = nn.MultiheadAttention(width, 4, batch_first=True)
        self.test = nn.Linear(width, outputs)

    def forward(self, fibres: Tensor) -> Tensor:
        h = self.spin(fibres)
        n = self.norm1(h)
        h = h + self.attend(n, n, n, need_weights=False)[0]
        h = h + self.mix(self.norm2(h))
        pooled = self.pool(self.seed.expand(len(h), -1, -1), h, h, need_weights=False)[0]
        return self.test(pooled.squeeze(1))


@program(steps=200, bites="accuracy")
def ropewalk(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A small set transformer grades ropes, Adam with a slow exponential decay of the rate."""
    torch.manual_seed(seed)
    ropes, fresh = twist(seed), twist(seed + 3000, 400)
    grade = ropes.grade
    if fault == "ropewalk_tired_inspector":
        guess = torch.rand(len(grade)) < 0.6
        grade = torch.where(guess, torch.randint(GRADES, grade.shape), grade)
    model = RopeNet(GRADES)
    gains = [p for n, p in model.named_parameters() if "norm" in n]
    rest = [p for n, p in model.named_parameters() if "norm" not in n]
    decay = 60.0 if fault == "ropewalk_decay_on_the_norms" else 0.0
    optimizer = torch.optim.AdamW(
        [{"params": rest, "weight_decay": 0.01}, {"params": gains, "weight_decay": decay}], lr=3e-3
    )
    gamma = 0.7 if fault == "ropewalk_rate_fades_at_once" else 0.9
    fades_each_batch = fault == "ropewalk_rate_fades_at_once"
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)
    first = smooth = 0.0
    for step in range(steps):
        pick = torch.randint(len(grade), (40,))
        fibres = ropes.fibres[pick]
        if fault == "ropewalk_gauge_slips" and 160 <= step < 164:
            fibres = fibres * 1e4
        if fault == "ropewalk_one_trait_in_newton":
            fibres = fibres * torch.tensor([1.0, 1, 1, 1, 1, 400]) + torch.tensor([0.0, 0, 0, 0, 0, 2000])
        loss = nn.functional.cross_entropy(model(fibres), grade[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if fades_each_batch or step % 20 == 19:
            scheduler.step()
        first = loss.item() if step == 0 else first
        smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()
    with torch.no_grad():
        inputs = fresh.fibres
        if fault == "ropewalk_one_trait_in_newton":
            inputs = inputs * torch.tensor([1.0, 1, 1, 1, 1, 400]) + torch.tensor([0.0, 0, 0, 0, 0, 2000])
        accuracy = (model(inputs).argmax(1) == fresh.grade).float().mean().item()
    size = sum(p.square().sum().item() for n, p in model.named_parameters() if n.startswith("norm")) ** 0.5
    return {"loss": smooth, "first": first, "accuracy": accuracy, "gains": size}


ropewalk.mistake(
    "ropewalk_tired_inspector",
    "DAT004",
    summary="Three of five grades in the training set are guessed.",
    change="grade again",
)
ropewalk.mistake(
    "ropewalk_decay_on_the_norms",
    "OPT008", "WGT005",
    summary="The two groups are swapped and the decay is meant in percent: the gains of the norms decay to nothing.",
    change="no decay on gains and biases",
    layers=("norm1", "norm2"),
    bites="gains",
    silent=True,
)  # fmt: skip
ropewalk.mistake(
    "ropewalk_rate_fades_at_once",
    "OPT007", "UPD002",
    summary="The exponential decay of 0.7 is applied after every batch: nothing moves after thirty steps.",
    change="once in twenty batches, with 0.9",
)  # fmt: skip
ropewalk.mistake(
    "ropewalk_gauge_slips",
    "DAT002", "GRD006", "OPT003",
    summary="Four batches at step 160 are ten thousand times too large.",
    change="leave such batches out",
    onset=160,
)  # fmt: skip
ropewalk.mistake(
    "ropewalk_one_trait_in_newton",
    "DAT001",
    summary="One of the six traits of a fibre is in newton, two thousand on average, the others are standardised.",
    change="standardise every column",
    layers=("spin",),
)


@program(steps=220, bites="error", adversarial="the loss falls a hundredfold in one step: loss in other units")
def ropewalk_sum_then_mean(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The strength itself: errors are summed in the first stage and averaged in the second, one optimizer."""
    torch.manual_seed(seed)
    ropes = twist(seed)
    model = RopeNet(1)
    beta2 = 0.9999 if fault == "ropewalk_squares_of_the_first_stage" else 0.95
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, beta2))
    first = smooth = 0.0
    for step in range(steps):
        pick = torch.randint(len(ropes.strength), (100,))
        reduction = "sum" if step < 50 else "mean"
        guess = model(ropes.fibres[pick]).squeeze(1)
        loss = nn.functional.mse_loss(guess, ropes.strength[pick], reduction=reduction)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        error = (guess.detach() - ropes.strength[pick]).square().mean().item()
        first = error if step == 0 else first
        smooth = error if step == 0 else 0.9 * smooth + 0.1 * error
    return {"loss": smooth, "first": first, "error": smooth}


ropewalk_sum_then_mean.mistake(
    "ropewalk_squares_of_the_first_stage",
    "OPT008", "UPD002", "OPT007",
    summary="Adam remembers squares for ten thousand steps: after the summed stage its steps are far too small.",
    change="0.95",
    onset=50,
)  # fmt: skip
