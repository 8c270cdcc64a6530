"""One small joint, many chisels: the same regression under the optimizers and tricks that people swear by."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CyclicLR, LambdaLR

from corpus.case import program


class Joint:
    """Eight measures of a joint, and how well it holds."""

    def __init__(self, n: int = 2000) -> None:
        x = torch.randn(n, 8)
        y = torch.tanh(x[:, 0] * x[:, 1]) + 0.5 * torch.sin(2 * x[:, 2]) + 0.3 * x[:, 3:5].sum(1)
        self.x, self.y = x, (y - y.mean()) / y.std()

    def batch(self, size: int = 64) -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(self.x), (size,))
        return self.x[rows], self.y[rows]


def model(width: int = 48) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))


def error(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.mse_loss(net(batch[0])[:, 0], batch[1])


def whittle(
    steps: int, seed: int, build: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
) -> dict[str, float]:
    torch.manual_seed(seed)
    joint, net = Joint(), model()
    optimizer = build(net.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        error(net, joint.batch()).backward()
        optimizer.step()
    with torch.no_grad():
        return {"loss": error(net, (joint.x, joint.y)).item()}


@program(steps=200)
def chisel_adagrad(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adagrad, whose steps shrink by themselves."""
    return whittle(steps, seed, lambda p: torch.optim.Adagrad(p, lr=0.05))


@program(steps=200, adversarial="updates that grow slowly out of nothing are too small")
def chisel_adadelta(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adadelta at its customary rate of one, whose first steps are tiny."""
    return whittle(steps, seed, lambda p: torch.optim.Adadelta(p, lr=1.0))


@program(steps=200)
def chisel_averaged(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Averaged stochastic gradient descent."""
    return whittle(steps, seed, lambda p: torch.optim.ASGD(p, lr=0.1, t0=100))


class Signed(torch.optim.Optimizer):
    """The sign of a mixture of gradient and momentum, with decay apart."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * 0.1).sub_(group["lr"] * torch.sign(0.9 * m + 0.1 * p.grad))
                m.mul_(0.99).add_(p.grad, alpha=0.01)


@program(steps=200, adversarial="updates of one size whatever the gradient mean that Adam was rebuilt")
def chisel_signs(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An optimizer of one's own that takes the sign of its momentum."""
    return whittle(steps, seed, lambda p: Signed(p, lr=2e-3))


@program(steps=120, adversarial="several backward passes before one step were not cleared")
def chisel_second_order(steps: int, seed: int, fault: str) -> dict[str, float]:
    """L-BFGS on the whole table with a strong Wolfe line search: many evaluations for one step."""
    torch.manual_seed(seed)
    joint, net = Joint(400), model(16)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=1, max_iter=4, history_size=10, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        loss = error(net, (joint.x, joint.y)) + 1e-4 * sum(((p**2).sum() for p in net.parameters()), torch.zeros(()))
        loss.backward()
        return loss.item()

    loss = 0.0
    for _ in range(steps):
        loss = float(optimizer.step(closure))
    return {"loss": loss}


@program(steps=180, adversarial="gradients that change between backward and step are tampered with")
def chisel_private(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Differential privacy by hand: each example's gradient clipped by itself, noise added to their mean."""
    torch.manual_seed(seed)
    joint, net = Joint(), model(24)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    params = dict(net.named_parameters())

    def one(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return (torch.func.functional_call(net, p, (x[None],))[0, 0] - y) ** 2

    each = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))
    for _ in range(steps):
        x, y = joint.batch(96)
        grads = each({n: p.detach() for n, p in params.items()}, x, y)
        size = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        shrink = (2.0 / size).clamp(max=1.0)
        for name, p in params.items():
            g = torch.einsum("n,n...->...", shrink, grads[name]) / 96
            p.grad = g + 2.0 * 0.3 / 96 * torch.randn_like(g)
        optimizer.step()
    with torch.no_grad():
        return {"loss": error(net, (joint.x, joint.y)).item()}


@program(steps=160, adversarial="two backward passes for one step, the first of them thrown away, are a mistake")
def chisel_flat_places(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Sharpness-aware: climb a little, take the gradient there, go back and step with it."""
    torch.manual_seed(seed)
    joint, net = Joint(), model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    loss = torch.zeros(())
    for _ in range(steps):
        batch = joint.batch()
        loss = error(net, batch)
        loss.backward()
        with torch.no_grad():
            norm = nn.utils.get_total_norm([p.grad for p in net.parameters() if p.grad is not None])
            climbs = [0.05 * p.grad / (norm + 1e-12) for p in net.parameters() if p.grad is not None]
            for p, climb in zip(net.parameters(), climbs):
                p.add_(climb)
        optimizer.zero_grad()
        error(net, batch).backward()
        with torch.no_grad():
            for p, climb in zip(net.parameters(), climbs):
                p.sub_(climb)
        optimizer.step()
        optimizer.zero_grad()
    return {"loss": loss.item()}


@program(steps=200, adversarial="a learning rate that goes up tenfold again and again is unsuitable")
def chisel_in_cycles(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Triangular rates between 0.005 and 0.05, four cycles, momentum in counter-phase."""
    torch.manual_seed(seed)
    joint, net = Joint(), model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.005, momentum=0.9)
    cycle = CyclicLR(optimizer, 0.005, 0.05, step_size_up=25, base_momentum=0.8, max_momentum=0.95)
    for _ in range(steps):
        optimizer.zero_grad()
        error(net, joint.batch()).backward()
        optimizer.step()
        cycle.step()
    with torch.no_grad():
        return {"loss": error(net, (joint.x, joint.y)).item()}


@program(steps=240, adversarial="noise in the weights that never dies down means the updates are too large")
def chisel_warm_metal(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Langevin dynamics with a falling temperature and slow weights that look ahead every six steps."""
    torch.manual_seed(seed)
    joint, net = Joint(), model()
    slow = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    fade = LambdaLR(optimizer, lambda t: 0.5 + 0.5 * math.cos(math.pi * min(1.0, t / max(steps, 1))))
    for step in range(steps):
        optimizer.zero_grad()
        error(net, joint.batch(128)).backward()
        optimizer.step()
        fade.step()
        with torch.no_grad():
            for p in net.parameters():
                p.add_(6e-3 * optimizer.param_groups[0]["lr"] * torch.randn_like(p))
            if step % 6 == 5:
                for s, p in zip(slow.parameters(), net.parameters()):
                    s.lerp_(p, 0.5)
                    p.copy_(s)
    with torch.no_grad():
        return {"loss": error(net, (joint.x, joint.y)).item()}
