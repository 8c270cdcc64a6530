"""A transformer learns to work on the digits of two numbers; matrices by an orthogonalising optimizer of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program
from corpus.gpu.sizes import ABACUS

SIGNS = 3  # the larger digit, the smaller digit, the last digit of the sum


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are made orthogonal by five Newton–Schulz steps before they are applied."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.02, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(weight)
                buffer = state["momentum"]
                buffer.lerp_(weight.grad, 1 - group["momentum"])
                direction = self._orthogonal(weight.grad.lerp(buffer, group["momentum"]))
                stretch = max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
                weight.add_(direction, alpha=-group["lr"] * stretch)

    @staticmethod
    def _orthogonal(matrix: Tensor) -> Tensor:
        a, b, c = 3.4445, -4.7750, 2.0315
        x = matrix / (matrix.norm() + 1e-7)
        tall = x.shape[0] > x.shape[1]
        if tall:
            x = x.T
        for _ in range(5):
            square = x @ x.T
            x = a * x + (b * square + c * square @ square) @ x
        return x.T if tall else x


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.RMSNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.merge = nn.Linear(width, width, bias=False)
        self.between = nn.RMSNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = self.before(x)
        shape = (batch, length, self.heads, width // self.heads)
        q, k = self.query(y).view(shape), self.key(y).view(shape)
        q, k = functional.rms_norm(q, shape[-1:]), functional.rms_norm(k, shape[-1:])
        v = self.value(y).view(shape)
        y = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        x = x + self.merge(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.relu(self.up(self.between(x))).square())


class Abacus(nn.Module):
    def __init__(self, symbols: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.symbol = nn.Embedding(symbols, width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.Sequential(*(Layer(width, max(2, width // 64)) for _ in range(depth)))
        self.norm = nn.RMSNorm(width)
        self.answer = nn.Linear(width, symbols)

    def forward(self, symbols: Tensor) -> Tensor:
        return self.answer(self.norm(self.layers(self.symbol(symbols) + self.place[: symbols.shape[1]])))


def problems(count: int, digits: int, dice: torch.Generator) -> Tensor:
    """Rows such as 4 1 7 [sign] 9 0 2 [=] 9 1 7."""
    device = dice.device
    first, second = (torch.randint(10, (count, digits), generator=dice, device=device) for _ in range(2))
    sign = torch.randint(SIGNS, (count, 1), generator=dice, device=device)
    answers = torch.stack([torch.maximum(first, second), torch.minimum(first, second), (first + second) % 10], 1)
    chosen = answers.gather(1, sign.unsqueeze(-1).expand(-1, 1, digits)).squeeze(1)
    equals = torch.full_like(sign, 10 + SIGNS)
    return torch.cat([first, sign + 10, second, equals, chosen], 1)


@program(steps=ABACUS.steps, bites="accuracy")
def abacus_muon(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A transformer reads two numbers and a sign, and writes the digits of the answer."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    dice = torch.Generator(device).manual_seed(seed + 1)
    digits = ABACUS.length
    model = Abacus(11 + SIGNS, 3 * digits + 1, ABACUS.width, ABACUS.depth).to(device)
    matrices = [weight for weight in model.layers.parameters() if weight.ndim == 2]
    known = {id(weight) for weight in matrices}
    others = [weight for weight in model.parameters() if id(weight) not in known]
    muon = Muon(matrices, lr=ABACUS.rate)
    adam = torch.optim.AdamW(others, lr=3e-3, weight_decay=0.01)

    def set_rates(step: int) -> None:
        fall = 1 - 0.9 * min(1.0, step / ABACUS.steps)
        warm = min(1.0, (step + 1) / 30)
        muon.param_groups[0]["lr"] = ABACUS.rate * warm * fall
        adam.param_groups[0]["lr"] = 3e-3 * warm * fall
        if mistake == "abacus_muon_restarted" and step >= ABACUS.late:
            muon.param_groups[0]["lr"] = 1.0

    def loss_and_accuracy(count: int) -> tuple[Tensor, Tensor]:
        rows = problems(count, digits, dice)
        logits = model(rows[:, :-1])[:, -digits:]
        right = rows[:, -digits:]
        return functional.cross_entropy(logits.flatten(0, 1), right.flatten()), (
            logits.argmax(-1) == right
        ).float().mean()

    for step in range(steps):
        set_rates(step)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss, _ = loss_and_accuracy(ABACUS.batch)
        for optimizer in (muon, adam):
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        muon.step()
        adam.step()
    with torch.no_grad():
        loss, accuracy = loss_and_accuracy(1024)
    return {"loss": loss.item() if math.isfinite(loss.item()) else 20.0, "accuracy": accuracy.item()}


abacus_muon.mistake(
    "abacus_muon_restarted",
    "OPT007", "UPD001", "OPT001", "OPT003",
    summary="At a late step the rate of the matrices is set to one.",
    change="the rate keeps falling",
    onset=ABACUS.late,
)  # fmt: skip
