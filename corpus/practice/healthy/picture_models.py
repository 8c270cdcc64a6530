"""Healthy trainings on pictures that nobody gets wrong; most of them would trip a naive rule."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program


def digits() -> tuple[Tensor, Tensor]:
    pictures, labels = load_digits(return_X_y=True)
    return torch.tensor(pictures, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1, torch.tensor(labels)


def verdict(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        out = model(x)
    return {"loss": F.cross_entropy(out, y).item(), "accuracy": (out.argmax(1) == y).float().mean().item()}


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, smooth: float = 0.0) -> dict[str, float]:
    x, y = digits()
    for _ in range(steps):
        rows = torch.randint(1400, (48,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows], label_smoothing=smooth).backward()
        optimizer.step()
    return verdict(model, x[1400:], y[1400:])


class Gated(nn.Module):
    """A residual branch behind a gate that starts at zero, or that is sometimes skipped."""

    def __init__(self, width: int, gate: float | None = None, survive: float = 1.0) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.gate = None if gate is None else nn.Parameter(torch.tensor(gate))
        self.survive = survive

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.rand(()).item() > self.survive:
            return x
        branch = self.second(F.relu(self.first(F.relu(x))))
        return x + (branch if self.gate is None else self.gate * branch)


def tower(blocks: list[nn.Module], width: int = 10) -> nn.Sequential:
    ending = [nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(width * 16, 10)]
    return nn.Sequential(nn.Conv2d(1, width, 3, padding=1), *blocks, *ending)


@program(steps=120, adversarial="a gradient of zero at the first step is a dead layer")
def gates_from_zero(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Residual branches behind gates that start at zero, as ReZero has it."""
    torch.manual_seed(seed)
    model = tower([Gated(10, gate=0.0) for _ in range(4)])
    return fit(model, torch.optim.Adam(model.parameters(), lr=3e-3), steps)


@program(steps=140, adversarial="a layer without a gradient is cut off")
def blocks_that_sometimes_rest(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Stochastic depth: each block is skipped in a third of the steps."""
    torch.manual_seed(seed)
    model = tower([Gated(10, survive=0.67) for _ in range(4)])
    return fit(model, torch.optim.AdamW(model.parameters(), lr=2e-3), steps)


@program(steps=120)
def groups_and_smooth_labels(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A plain convolutional network with group norm and smoothed labels, Nesterov momentum."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for _ in range(2):
        layers += [nn.GroupNorm(2, 10), nn.ReLU(), nn.Conv2d(10, 10, 3, padding=1)]
    model = tower(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    return fit(model, optimizer, steps, smooth=0.1)


@program(steps=120)
def directions_and_lengths(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Weight normalisation on every convolution, Adam."""
    torch.manual_seed(seed)
    wrapped = nn.utils.parametrizations.weight_norm
    model = nn.Sequential(
        wrapped(nn.Conv2d(1, 12, 3, padding=1)), nn.SiLU(), wrapped(nn.Conv2d(12, 12, 3, padding=1)), nn.SiLU(),
        nn.AvgPool2d(2), nn.Flatten(), wrapped(nn.Linear(192, 10)),
    )  # fmt: skip
    return fit(model, torch.optim.Adam(model.parameters(), lr=3e-3), steps)


class Shifted(nn.Module):
    """Fires rarely on purpose: most units are silent for most pictures."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x - x.mean(1, keepdim=True) - 1.1 * x.std(1, keepdim=True))


@program(steps=140, adversarial="a layer whose outputs are mostly zero is dead")
def few_units_at_a_time(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A wide hidden layer in which about one unit in eight fires for a picture, each of them for some."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 200), Shifted(), nn.Linear(200, 10))
    return fit(model, torch.optim.Adam(model.parameters(), lr=3e-3), steps)


def filters_from_the_data(x: Tensor) -> nn.Sequential:
    """A front that was made elsewhere: principal directions of patches, with the statistics of the data."""
    patches = F.unfold(x[:800], 3, padding=1).transpose(1, 2).reshape(-1, 9)
    _, _, directions = torch.linalg.svd(patches[::16] - patches[::16].mean(0), full_matrices=False)
    conv, norm = nn.Conv2d(1, 9, 3, padding=1, bias=False), nn.BatchNorm2d(9)
    conv.weight.data = directions.reshape(9, 1, 3, 3)
    with torch.no_grad():
        seen = conv(x[:800])
        norm.running_mean, norm.running_var = seen.mean((0, 2, 3)), seen.var((0, 2, 3))
    return nn.Sequential(conv, norm).requires_grad_(False).eval()


class OnAFixedFront(nn.Module):
    def __init__(self, front: nn.Sequential) -> None:
        super().__init__()
        self.front = front
        self.body = nn.Sequential(nn.Conv2d(9, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))

    def train(self, mode: bool = True) -> OnAFixedFront:
        super().train(mode)
        self.front.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.front(x))


@program(steps=120, adversarial="a batch norm in eval while training, and weights that never move, are mistakes")
def front_kept_as_it_came(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A frozen front with its batch norm in eval, on purpose; the body above it learns."""
    torch.manual_seed(seed)
    model = OnAFixedFront(filters_from_the_data(digits()[0])).train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    return fit(model, optimizer, steps)


@program(steps=150, adversarial="a jump of the loss is a spike")
def first_coarse_then_fine(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A curriculum: blurred pictures of five digits first, then all digits; at step 75 the loss jumps by plan."""
    torch.manual_seed(seed)
    x, y = digits()
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    easy = torch.nonzero(y[:1400] < 5).flatten()
    for step in range(steps):
        rows = easy[torch.randint(len(easy), (48,))] if step < 75 else torch.randint(1400, (48,))
        batch = F.avg_pool2d(x[rows], 3, 1, 1) if step < 75 else x[rows]
        loss = F.cross_entropy(model(batch), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return verdict(model, x[1400:], y[1400:])


@program(steps=150)
def rotation_as_a_task(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Self-supervision: by how many quarter turns was the digit rotated? Depthwise convolutions, RMSprop."""
    torch.manual_seed(seed)
    x, _ = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 24, 1),
        nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(384, 4),
    )  # fmt: skip
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    turned = torch.cat([torch.rot90(x, k, (2, 3)) for k in range(4)])
    turns = torch.arange(4).repeat_interleave(len(x))
    for _ in range(steps):
        rows = torch.randint(len(turned), (48,))
        optimizer.zero_grad()
        F.cross_entropy(model(turned[rows]), turns[rows]).backward()
        optimizer.step()
    return verdict(model, turned[::7], turns[::7])
