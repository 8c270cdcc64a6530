"""Land cover from satellite tiles: a tiny encoder and decoder with a shortcut, trained by a class with callbacks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from corpus.case import program

BANDS, COVERS, SIDE = 5, 4, 16


def tiles(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Smooth patches of four covers; every cover reflects the five bands in its own way."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, COVERS, 5, 5, generator=rng)
    cover = nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear").argmax(1)
    colours = torch.randn(COVERS, BANDS, generator=torch.Generator().manual_seed(3))
    light = colours[cover].permute(0, 3, 1, 2)
    return light + 1.3 * torch.randn(count, BANDS, SIDE, SIDE, generator=rng), cover


class CoverNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(BANDS, 12, 3, padding=1)
        self.down = nn.Conv2d(12, 16, 3, stride=2, padding=1)
        self.bottom = nn.Conv2d(16, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 12, 2, stride=2)
        self.leave = nn.Conv2d(24, COVERS, 1)

    def forward(self, x: Tensor) -> Tensor:
        shallow = torch.relu(self.enter(x))
        deep = torch.relu(self.bottom(torch.relu(self.down(shallow))))
        return self.leave(torch.cat([shallow, torch.relu(self.up(deep))], 1))


class Mapper:
    """Trains a network; `before_step` may look at the gradients, `after_step` at the clock."""

    def __init__(self, net: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
        self.net, self.optimizer, self.losses = net, optimizer, list[float]()
        self.x, self.y = tiles(seed, 256)
        self.rng = torch.Generator().manual_seed(seed)
        self.before_batch: Callable[[int, Tensor], Tensor] = lambda _, x: x
        self.before_step: Callable[[int], object] = lambda _: None
        self.after_step: Callable[[int], object] = lambda _: None

    def fit(self, steps: int) -> None:
        for step in range(steps):
            index = torch.randint(256, (12,), generator=self.rng)
            x = self.before_batch(step, self.x[index])
            loss = nn.functional.cross_entropy(self.net(x), self.y[index])
            self.optimizer.zero_grad()
            loss.backward()
            self.before_step(step)
            self.optimizer.step()
            self.after_step(step)
            self.losses.append(loss.item())

    def report(self, seed: int) -> dict[str, float]:
        x, y = tiles(seed + 77, 64)
        with torch.no_grad():
            accuracy = (self.net(x).argmax(1) == y).float().mean().item()
        return {"loss": sum(self.losses[-10:]) / len(self.losses[-10:]), "first": self.losses[0], "accuracy": accuracy}


@program(steps=130, bites="accuracy")
def satellites(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Nesterov descent with a clipped norm, and a schedule that is stepped once every 26 batches."""
    torch.manual_seed(seed)
    net = CoverNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    mapper = Mapper(net, optimizer, seed)

    def clip(step: int) -> None:
        if fault == "tile_clip_of_a_thousandth":
            nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
        elif fault == "tile_values_clipped_at_the_resume" and step >= 40:
            nn.utils.clip_grad_value_(net.parameters(), 1e-6)
        else:
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        if fault == "tile_bottom_masked" and net.bottom.weight.grad is not None:
            net.bottom.weight.grad.mul_(0.0)

    def tick(step: int) -> None:
        if fault == "tile_schedule_every_batch" or step % 26 == 25:
            schedule.step()

    def sky(step: int, x: Tensor) -> Tensor:
        if fault == "tile_without_data" and 115 <= step < 118:
            x = x.clone()
            x[:8] = -9999.0  # the marker for missing pixels
        return x

    if fault == "tile_hook_for_a_saliency_map":
        net.enter.weight.register_hook(torch.zeros_like)
        if net.enter.bias is not None:
            net.enter.bias.register_hook(torch.zeros_like)
    mapper.before_step, mapper.after_step, mapper.before_batch = clip, tick, sky
    start = net.bottom.weight.detach().clone()
    mapper.fit(steps)
    moved = ((net.bottom.weight - start).norm() / start.norm()).item()
    return mapper.report(seed) | {"rests": float(moved == 0), "peak": max(mapper.losses)}


satellites.mistake(
    "tile_clip_of_a_thousandth",
    "GRD010", "UPD002", "OPT007",
    summary="The norm is clipped to a thousandth, and plain descent has nothing left to go by.",
    change="clip at 5",
)  # fmt: skip
satellites.mistake(
    "tile_values_clipped_at_the_resume",
    "GRD010", "UPD002", "OPT007",
    summary="From step 40 on every value of the gradient is cut to a millionth.",
    change="clip the norm at 5",
    onset=40,
    bites="loss",
)  # fmt: skip
satellites.mistake(
    "tile_bottom_masked",
    "GRD004", "UPD003",
    summary="A mask left from a pruning trial multiplies the gradient of the bottom convolution by zero.",
    change="remove the mask",
    layers=("bottom",),
    bites="rests",
    silent=True,
)  # fmt: skip
satellites.mistake(
    "tile_hook_for_a_saliency_map",
    "GRD004", "UPD003",
    summary="Hooks that a saliency map once needed return zeros for the first convolution.",
    change="remove the hooks",
    layers=("enter",),
)  # fmt: skip
satellites.mistake(
    "tile_schedule_every_batch",
    "OPT007", "UPD002",
    summary="The schedule meant for epochs is stepped after every batch: the rate halves every third step.",
    change="step it once an epoch",
)  # fmt: skip
satellites.mistake(
    "tile_without_data",
    "DAT002", "OPT003", "GRD006", "DAT001",
    summary="Three batches from step 115 on hold tiles full of the marker for missing pixels, -9999.",
    change="drop tiles without data",
    onset=115,
)  # fmt: skip


@program(steps=130, bites="accuracy", adversarial="a norm that is clipped at every step")
def tile_clipped_always(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Every step is clipped to a small norm on purpose, and the rate is chosen for that."""
    torch.manual_seed(seed)
    net = CoverNet()
    mapper = Mapper(net, torch.optim.SGD(net.parameters(), lr=1.0), seed)
    mapper.before_step = lambda _: nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    mapper.fit(steps)
    return mapper.report(seed)


@program(steps=130, bites="accuracy", adversarial="a rate that falls by two decades, and updates with it")
def tile_long_tail(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adagrad over a polynomial schedule that ends at nothing; most is learned in the first third."""
    torch.manual_seed(seed)
    net = CoverNet()
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.03)
    mapper = Mapper(net, optimizer, seed)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=steps + 1, power=2.0)
    mapper.after_step = lambda _: schedule.step()
    mapper.fit(steps)
    return mapper.report(seed)


@program(steps=130, bites="accuracy", adversarial="a layer whose gradient is masked in part, on purpose")
def tile_sparse_bottom(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Half of the bottom's weights are pruned from the start: their values and gradients are held at zero."""
    torch.manual_seed(seed)
    net = CoverNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    mapper = Mapper(net, optimizer, seed)
    keep = (torch.rand(net.bottom.weight.shape, generator=torch.Generator().manual_seed(seed)) < 0.5).float()
    net.bottom.weight.data.mul_(keep)

    def mask(_: int) -> None:
        if net.bottom.weight.grad is not None:
            net.bottom.weight.grad.mul_(keep)

    mapper.before_step = mask
    mapper.fit(steps)
    return mapper.report(seed)
