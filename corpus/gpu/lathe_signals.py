"""Vibrations of a lathe tell which tool is worn; plain convolutions, and the Lion optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program
from corpus.gpu.sizes import LATHE


class Lion(torch.optim.Optimizer):
    """Moves every weight by the rate, in the direction of the sign of its momentum."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            fast, slow = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["mean"] = torch.zeros_like(weight)
                mean = state["mean"]
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(weight.grad.lerp(mean, fast).sign_(), alpha=-group["lr"])
                mean.lerp_(weight.grad, 1 - slow)


class LatheNet(nn.Module):
    def __init__(self, width: int, depth: int, tools: int) -> None:
        super().__init__()
        sizes = [2, *(width for _ in range(depth))]
        self.convs = nn.ModuleList(
            nn.Conv1d(a, b, 5, stride=2 if at % 2 else 1, padding=2) for at, (a, b) in enumerate(pairwise(sizes))
        )
        self.hidden = nn.Linear(width, width)
        self.tool = nn.Linear(width, tools)
        for module in self.modules():
            if isinstance(module, (nn.Conv1d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.normal_(self.tool.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = functional.relu(conv(x))
        return self.tool(functional.relu(self.hidden(x.mean(-1))))


class Lathe:
    """Two sensors hear a turning spindle; a worn tool adds chatter of its own pitch and delay between them."""

    def __init__(self, tools: int, length: int, seed: int, device: torch.device) -> None:
        self.dice = torch.Generator(device).manual_seed(seed)
        self.pitch = torch.linspace(0.4, 2.2, tools, device=device)
        self.delay = torch.arange(tools, device=device) % 3 * 0.8
        self.clock = torch.arange(length, device=device).float()

    def record(self, count: int) -> tuple[Tensor, Tensor]:
        device = self.clock.device
        tool = torch.randint(len(self.pitch), (count,), generator=self.dice, device=device)
        turn, phase, strength = (torch.rand(count, 1, generator=self.dice, device=device) for _ in range(3))
        spindle = torch.sin((0.1 + 0.1 * turn) * self.clock + 6.28 * phase)
        angle = self.pitch[tool].unsqueeze(1) * self.clock + 6.28 * turn
        left = spindle + (0.5 + strength) * torch.sin(angle)
        right = spindle + (0.5 + strength) * torch.sin(angle + self.delay[tool].unsqueeze(1))
        heard = torch.stack([left, right], 1)
        return heard + 0.7 * torch.randn(heard.shape, generator=self.dice, device=device), tool


@program(steps=LATHE.steps)
def lathe_lion(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Plain convolutions tell from vibrations which tool of a lathe is worn."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    lathe = Lathe(LATHE.kinds, LATHE.length, seed, device)
    model = LatheNet(LATHE.width, LATHE.depth, LATHE.kinds).to(device)
    base, warm_up = LATHE.rate, max(1, LATHE.steps // 20)
    if mistake == "lathe_lion_sgd_rate":  # a rate that suits SGD, not Lion
        base, warm_up = 100 * base, 1
    optimizer = Lion(model.parameters(), lr=base, weight_decay=0.1)

    for step in range(steps):
        rate = base * min(1.0, (step + 1) / warm_up) * (1 - 0.9 * min(1.0, step / LATHE.steps))
        if mistake == "lathe_lion_surge" and LATHE.late <= step < LATHE.late + 30:
            rate = 200 * LATHE.rate
        optimizer.param_groups[0]["lr"] = rate
        heard, tool = lathe.record(LATHE.batch)
        loss = functional.cross_entropy(model(heard), tool)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0, foreach=True)
        optimizer.step()
    with torch.no_grad():
        heard, tool = lathe.record(1024)
        logits = model(heard)
        loss = min(functional.cross_entropy(logits, tool).nan_to_num(20.0).item(), 20.0)
    return {"loss": loss, "accuracy": (logits.argmax(1) == tool).float().mean().item()}


lathe_lion.mistake(
    "lathe_lion_sgd_rate",
    "OPT007", "UPD001",
    summary="The rate is one that suits SGD, a hundred times too high here, and there is no warm-up.",
    change="a hundredth of the rate, with a warm-up",
)  # fmt: skip
lathe_lion.mistake(
    "lathe_lion_surge",
    "OPT007", "UPD001", "OPT001", "OPT003",
    summary="For thirty steps the rate is two hundred times what it should be; units are dead afterwards.",
    change="the rate keeps falling",
    onset=LATHE.late,
    bites="accuracy",
)  # fmt: skip
