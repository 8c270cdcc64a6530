"""Steps of more than one backward: LBFGS with its closure, accumulation, sharpness-aware steps, noise by example."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from corpus.case import healthy
from undertow.demos.case import Fault, sick
from undertow.demos.data import curves, glyphs, share_correct


@sick(
    "GRD007", steps=100, bites="test_loss", architecture="perceptron",
    change="optimizer.zero_grad() at the top of the closure",
)  # fmt: skip
def closure_that_never_clears(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """LBFGS asks its closure again and again, and the closure adds each gradient to the last."""
    torch.manual_seed(seed)
    inputs, targets = curves(seed, count=512)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=10, history_size=10)

    def closure() -> Tensor:
        if not fault:
            optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs).squeeze(1), targets)
        loss = loss + 1e-4 * sum(weight.square().sum() for weight in model.parameters())
        loss.backward()  # at fault: closure_that_never_clears
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    fresh, truth = curves(seed + 1000)
    with torch.no_grad():
        loss = functional.mse_loss(model(fresh).squeeze(1), truth)
    return {"test_loss": loss.nan_to_num(100.0).clamp(max=100).item()}


@sick(
    "LSS004", steps=250, bites="test_loss", architecture="perceptron",
    change="loss / 16 for each micro-batch",
)  # fmt: skip
def sixteen_losses_added(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Sixteen micro-batches are accumulated for each step, and their losses added instead of averaged."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, count=4096, noise=0.6)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9)
    micro_batches = 16
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            rows = torch.randint(len(pictures), (8,))
            loss = functional.cross_entropy(model(pictures[rows]), labels[rows])
            if not fault:
                loss = loss / micro_batches
            loss.backward()  # at fault: sixteen_losses_added
        optimizer.step()
    fresh, truth = glyphs(seed + 1000, noise=0.6)
    with torch.no_grad():
        loss = functional.cross_entropy(model(fresh), truth).nan_to_num(100.0).clamp(max=100)
    return {"test_loss": loss.item(), "accuracy": share_correct(model, fresh, truth)}


@healthy(steps=600, adversarial="two backwards for each step, weights moved uphill and back between them")
def sharpness_aware_steps(steps: int, seed: int) -> dict[str, float]:
    """Sharpness-aware minimisation: up the gradient, a second gradient there, back, and a step along the second."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, count=1024, noise=0.6)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        rows = torch.randint(len(pictures), (64,))
        functional.cross_entropy(model(pictures[rows]), labels[rows]).backward()
        weights = list(model.parameters())
        with torch.no_grad():
            length = torch.stack([weight.grad.norm() for weight in weights]).norm()  # type: ignore[union-attr]
            climbs = [0.05 * weight.grad / length for weight in weights]  # type: ignore[operator]
            for weight, climb in zip(weights, climbs, strict=True):
                weight.add_(climb)
        optimizer.zero_grad()
        functional.cross_entropy(model(pictures[rows]), labels[rows]).backward()
        with torch.no_grad():
            for weight, climb in zip(weights, climbs, strict=True):
                weight.sub_(climb)
        optimizer.step()
        optimizer.zero_grad()
    share = share_correct(model, *glyphs(seed + 1000, noise=0.6))
    return {"loss": 1 - share, "accuracy": share}


@healthy(steps=900, adversarial="every gradient is clipped, and noise larger than the mean gradient is added")
def private_descent(steps: int, seed: int) -> dict[str, float]:
    """Differentially private descent: gradients of single examples, clipped, summed, and noise on top."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, count=4096, noise=0.3)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def loss_of(weights: dict[str, Tensor], picture: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(model, weights, (picture[None],)), label[None])

    each = vmap(grad(loss_of), in_dims=(None, 0, 0))
    for _ in range(steps):
        rows = torch.randint(len(pictures), (128,))
        weights = {name: weight.detach() for name, weight in model.named_parameters()}
        slopes = each(weights, pictures[rows], labels[rows])
        lengths = torch.stack([slope.flatten(1).norm(dim=1) for slope in slopes.values()]).norm(dim=0)
        factor = (1.0 / lengths).clamp(max=1.0)
        for name, weight in model.named_parameters():
            total = torch.einsum("b,b...->...", factor, slopes[name])
            weight.grad = (total + 1.0 * torch.randn_like(total)) / 128
        optimizer.step()
    share = share_correct(model, *glyphs(seed + 1000, noise=0.3))
    return {"loss": 1 - share, "accuracy": share}


@healthy(
    steps=250, adversarial="gradients added over eight unequal micro-batches, with the true weights, and one huge step"
)
def accumulated_by_tokens(steps: int, seed: int) -> dict[str, float]:
    """Sums over micro-batches of unequal size, divided by the true count before the step."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, count=4096, noise=0.4)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        seen = 0
        optimizer.zero_grad()
        for _ in range(8):
            size = int(torch.randint(8, 96, ()).item())
            rows = torch.randint(len(pictures), (size,))
            loss = functional.cross_entropy(model(pictures[rows]), labels[rows], reduction="sum")
            loss.backward()
            seen += size
        for weight in model.parameters():
            assert weight.grad is not None
            weight.grad /= seen
        optimizer.step()
    share = share_correct(model, *glyphs(seed + 1000, noise=0.4))
    return {"loss": 1 - share, "accuracy": share}
