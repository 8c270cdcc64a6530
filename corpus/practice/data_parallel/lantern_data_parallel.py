"""Lantern signals seen by two cameras: one small network, copied once per camera and kept in step by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from corpus.case import program

SIGNALS = 5


def shoot(seed: int, camera: int, count: int) -> tuple[Tensor, Tensor]:
    """Twelve by twelve pictures of a lantern pattern; the second camera sees everything brighter."""
    rng = torch.Generator().manual_seed(1000 * seed + camera)
    patterns = torch.randn(SIGNALS, 1, 12, 12, generator=torch.Generator().manual_seed(5))
    label = torch.randint(SIGNALS, (count,), generator=rng)
    picture = 0.6 * patterns[label] + torch.randn(count, 1, 12, 12, generator=rng)
    return picture + 0.5 * camera, label


class LanternNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.eye = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.deeper = nn.Conv2d(8, 12, 3, stride=2, padding=1, bias=False)
        self.deeper_norm = nn.BatchNorm2d(12)
        self.signal = nn.Linear(12 * 36, SIGNALS)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.eye(x)))
        x = torch.relu(self.deeper_norm(self.deeper(x)))
        return self.signal(x.flatten(1))


def average_gradients(ranks: Sequence[nn.Module], leave_out: int = 0) -> None:
    bundles = list(zip(*(rank.parameters() for rank in ranks), strict=True))
    for bundle in bundles[: len(bundles) - leave_out]:
        grads = [p.grad for p in bundle if p.grad is not None]
        mean = torch.stack(grads).mean(0)
        for grad in grads:
            grad.copy_(mean)


def share_buffers(ranks: Sequence[nn.Module]) -> None:
    for bundle in zip(*(rank.buffers() for rank in ranks), strict=True):
        if bundle[0].is_floating_point():
            mean = torch.stack(list(bundle)).mean(0)
            for buffer in bundle:
                buffer.copy_(mean)


def distance(a: nn.Module, b: nn.Module) -> tuple[float, float]:
    weights = sum((p - q).norm().item() for p, q in zip(a.parameters(), b.parameters(), strict=True))
    buffers = sum(
        (p - q).float().norm().item() for p, q in zip(a.buffers(), b.buffers(), strict=True) if p.is_floating_point()
    )
    return weights, buffers


def both(*names: str) -> tuple[str, ...]:
    """A layer's path in either copy, whatever the copies are called."""
    copies = ("", "rank.", "ranks.0.", "ranks.1.", "0.", "1.", "first.", "second.", "lanternnet.", "LanternNet.")
    return tuple(chain.from_iterable((copy + name for copy in copies) for name in names))


@program(steps=120, bites="accuracy")
def lanterns(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two copies, a camera each: gradients averaged by hand before both step, statistics shared afterwards."""
    torch.manual_seed(seed)
    ranks = [LanternNet(), LanternNet()]
    if fault != "lantern_copies_drawn_apart":
        ranks[1].load_state_dict(ranks[0].state_dict())
    data = [shoot(seed, camera, 512) for camera in range(2)]
    optimizers = [torch.optim.SGD(rank.parameters(), lr=0.02, momentum=0.9, nesterov=True) for rank in ranks]
    rng = torch.Generator().manual_seed(seed)
    first, total = 0.0, 0.0
    silent_cameras = False
    for step in range(steps):
        if fault == "lantern_exchange_off_since_the_check" and step == 60:
            silent_cameras = True  # switched off for the check on one camera, never on again
        index = torch.randint(512, (32,), generator=rng)
        total = 0.0
        for rank, optimizer, (pictures, labels) in zip(ranks, optimizers, data, strict=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(rank(pictures[index]), labels[index])
            loss.backward()
            total += loss.item() / 2
        if not silent_cameras:
            average_gradients(ranks, leave_out=2 if fault == "lantern_last_bundle_forgotten" else 0)
        for optimizer in optimizers:
            optimizer.step()
        if fault != "lantern_statistics_stay_at_home":
            share_buffers(ranks)
        first = total if step == 0 else first
    weights, buffers = distance(ranks[0], ranks[1])
    test = [shoot(seed + 50, camera, 256) for camera in range(2)]
    with torch.no_grad():
        right = [
            (rank.eval()(x).argmax(1) == y).float().mean().item() for rank, (x, y) in zip(ranks, test, strict=True)
        ]
    return {"loss": total, "first": first, "accuracy": sum(right) / 2, "weights": weights, "buffers": buffers}


lanterns.mistake(
    "lantern_last_bundle_forgotten",
    "DST001",
    summary="The loop over the bundles ends two tensors early: the copies' last layers go their own ways.",
    change="average all tensors",
    layers=both("signal"),
    bites="weights",
    silent=True,
)
lanterns.mistake(
    "lantern_copies_drawn_apart",
    "DST001",
    summary="The copies never receive the same start: averaged gradients move two different networks.",
    change="load the first copy's state into the second",
    bites="weights",
    silent=True,
)
lanterns.mistake(
    "lantern_statistics_stay_at_home",
    "DST001",
    summary="The running statistics of the norms are never shared, and the cameras differ in brightness.",
    change="share the buffers",
    layers=both("norm", "deeper_norm"),
    bites="buffers",
    silent=True,
)
lanterns.mistake(
    "lantern_exchange_off_since_the_check",
    "DST001",
    summary="After the check at step 60 the averaging stays off, and the copies part.",
    change="switch the averaging on again",
    onset=60,
    bites="weights",
    silent=True,
)


@program(steps=120, bites="accuracy", adversarial="two models of one class whose weights part")
def lantern_local_steps(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two workers step alone and average their weights every eighth step, as local descent means it."""
    torch.manual_seed(seed)
    first_worker = LanternNet()
    second_worker = LanternNet()
    second_worker.load_state_dict(first_worker.state_dict())
    workers = [first_worker, second_worker]
    data = [shoot(seed, camera, 512) for camera in range(2)]
    optimizers = [torch.optim.SGD(w.parameters(), lr=0.03) for w in workers]
    rng = torch.Generator().manual_seed(seed)
    start, total = 0.0, 0.0
    for step in range(steps):
        index = torch.randint(512, (32,), generator=rng)
        total = 0.0
        for worker, optimizer, (pictures, labels) in zip(workers, optimizers, data, strict=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(worker(pictures[index]), labels[index])
            loss.backward()
            optimizer.step()
            total += loss.item() / 2
        if step % 8 == 7:
            with torch.no_grad():
                for p, q in zip(first_worker.parameters(), second_worker.parameters(), strict=True):
                    mean = (p + q) / 2
                    p.copy_(mean)
                    q.copy_(mean)
            share_buffers(workers)
        start = total if step == 0 else start
    x, y = shoot(seed + 50, 0, 256)
    with torch.no_grad():
        accuracy = (first_worker.eval()(x).argmax(1) == y).float().mean().item()
    return {"loss": total, "first": start, "accuracy": accuracy}


@program(steps=120, bites="accuracy")
def lantern_one_camera(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The same network alone, one camera, Adamax with an exponential schedule."""
    torch.manual_seed(seed)
    net = LanternNet()
    pictures, labels = shoot(seed, 0, 640)
    optimizer = torch.optim.Adamax(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    rng = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    for _ in range(steps):
        index = torch.randint(640, (40,), generator=rng)
        loss = nn.functional.cross_entropy(net(pictures[index]), labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    x, y = shoot(seed + 50, 0, 256)
    with torch.no_grad():
        accuracy = (net.eval()(x).argmax(1) == y).float().mean().item()
    return {"loss": losses[-1], "first": losses[0], "accuracy": accuracy}


@program(steps=120, bites="accuracy", adversarial="one copy that never gets a gradient and follows the other slowly")
def lantern_self_taught(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A slow copy names unlabelled pictures and the fast one learns from them where the slow one is sure."""
    torch.manual_seed(seed)
    fast, slow = LanternNet(), LanternNet()
    slow.load_state_dict(fast.state_dict())
    slow.requires_grad_(False)
    pictures, labels = shoot(seed, 0, 200)
    unknown, _ = shoot(seed, 1, 800)
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.03, momentum=0.9, weight_decay=5e-4)
    rng = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    for step in range(steps):
        known = torch.randint(200, (32,), generator=rng)
        other = torch.randint(800, (32,), generator=rng)
        with torch.no_grad():
            sure, guess = slow(unknown[other]).softmax(1).max(1)
        loss = nn.functional.cross_entropy(fast(pictures[known]), labels[known])
        if step > 30:
            per_picture = nn.functional.cross_entropy(fast(unknown[other]), guess, reduction="none")
            loss = loss + 0.5 * (per_picture * (sure > 0.9)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(slow.parameters(), fast.parameters(), strict=True):
                p.lerp_(q, 0.05)
        losses.append(loss.item())
    x, y = shoot(seed + 50, 0, 256)
    with torch.no_grad():
        accuracy = (fast.eval()(x).argmax(1) == y).float().mean().item()
    return {"loss": losses[-1], "first": losses[0], "accuracy": accuracy}
