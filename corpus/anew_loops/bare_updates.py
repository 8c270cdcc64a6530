"""Loops without an optimizer: weights moved by hand, in place, in functions, and in low precision."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from corpus.case import healthy, program
from undertow.demos.case import Fault, sick
from undertow.demos.data import curves, glyphs, share_correct


class PictureNet(nn.Module):
    """Four layers, the first of them called otherwise than the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 64)
        self.layer1 = nn.Linear(64, 64)
        self.layer2 = nn.Linear(64, 32)
        self.layer3 = nn.Linear(32, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        hidden = functional.relu(self.stem(pictures))
        hidden = functional.relu(self.layer1(hidden))
        return self.layer3(functional.relu(self.layer2(hidden)))


@program(steps=4000, bites="test_loss")
def descent_by_hand(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Gradient descent with weight decay, written out under no_grad."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, count=2048, noise=0.6)
    net = PictureNet()
    moved = [weight for name, weight in net.named_parameters() if name]
    if mistake == "stem_matches_no_name":
        moved = [weight for name, weight in net.named_parameters() if "layer" in name]  # at fault: stem_matches_no_name
    rate, decay = 0.1, 3e-3
    for _ in range(steps):
        rows = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(net(pictures[rows]), labels[rows])
        loss.backward()  # at fault: gradients_pile_up
        with torch.no_grad():
            for weight in moved:
                assert weight.grad is not None
                if mistake == "decay_with_a_plus":
                    weight.mul_(1 + rate * decay)  # at fault: decay_with_a_plus
                else:
                    weight.mul_(1 - rate * decay)
                weight -= rate * weight.grad
        if mistake != "gradients_pile_up":
            net.zero_grad()
    fresh = glyphs(seed + 1000, noise=0.6)
    with torch.no_grad():
        loss = functional.cross_entropy(net(fresh[0]), fresh[1]).nan_to_num(100.0).clamp(max=100)
    return {"test_loss": loss.item(), "accuracy": share_correct(net, *fresh)}


descent_by_hand.mistake(
    "gradients_pile_up", "GRD007",
    summary="Nothing clears the gradients between the steps of a hand-written descent.",
    change="net.zero_grad() at the end of the step",
)  # fmt: skip
descent_by_hand.mistake(
    "decay_with_a_plus", "WGT001",
    summary="The hand-written weight decay has the wrong sign: all weights grow a little at each step.",
    change="weight.mul_(1 − rate · decay)",
)  # fmt: skip
descent_by_hand.mistake(
    "stem_matches_no_name", "UPD003", layers=("stem",), silent=True, bites="test_loss",
    summary="The weights to move are chosen by name, and the first layer is called otherwise.",
    change="all named parameters",
)  # fmt: skip


@sick(
    "NUM005", "UPD002", steps=9000, bites="test_loss", architecture="perceptron",
    change="the weights are kept in float32 and copied to bfloat16",
)  # fmt: skip
def bfloat16_swallows_the_steps(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Weights in bfloat16 are moved in place by steps below their last digit."""
    torch.manual_seed(seed)
    inputs, targets = curves(seed, count=1024)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).bfloat16()
    masters = [weight.detach().float() for weight in model.parameters()]
    rate = 3e-3
    for _ in range(steps):
        rows = torch.randint(len(inputs), (64,))
        predicted = model(inputs[rows].bfloat16()).float().squeeze(1)
        loss = functional.mse_loss(predicted, targets[rows])
        model.zero_grad(set_to_none=True)
        loss.backward()
        with torch.no_grad():
            for weight, master in zip(model.parameters(), masters, strict=True):
                assert weight.grad is not None
                if fault:
                    weight -= rate * weight.grad  # at fault: bfloat16_swallows_the_steps
                else:
                    master -= rate * weight.grad.float()
                    weight.copy_(master)
    fresh, truth = curves(seed + 1000)
    with torch.no_grad():
        return {"test_loss": functional.mse_loss(model(fresh.bfloat16()).float().squeeze(1), truth).item()}


def member_weights(members: int, inputs: int, outputs: int, constant: bool) -> Tensor:
    if constant:
        return torch.full((members, outputs, inputs), 0.1)  # at fault: every_unit_begins_alike
    return torch.randn(members, outputs, inputs) / inputs**0.5


@sick(
    "WGT002", steps=2500, bites="test_loss", architecture="perceptron",
    change="weights drawn from a normal distribution",
)  # fmt: skip
def every_unit_begins_alike(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Four nets are trained at once by torch.func, from weights that are all 0.1."""
    torch.manual_seed(seed)
    inputs, targets = curves(seed, count=1024)
    skeleton = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    weights = {}
    for name, weight in skeleton.named_parameters():
        if weight.dim() == 2:
            weights[name] = member_weights(4, weight.shape[1], weight.shape[0], constant=bool(fault))
        else:
            weights[name] = torch.zeros(4, *weight.shape)

    def loss_of(one: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(functional_call(skeleton, one, (x,)).squeeze(1), y)

    slopes_of = vmap(grad(loss_of), in_dims=(0, None, None))
    for _ in range(steps):
        rows = torch.randint(len(inputs), (64,))
        slopes = slopes_of(weights, inputs[rows], targets[rows])
        weights = {name: weight - 0.05 * slopes[name] for name, weight in weights.items()}
    fresh, truth = curves(seed + 1000)
    with torch.no_grad():
        loss = vmap(loss_of, in_dims=(0, None, None))(weights, fresh, truth).mean()
    return {"test_loss": loss.item()}


@healthy(steps=1500, adversarial="no .grad, no optimizer and no module that changes: weights live in a dictionary")
def momentum_in_a_dictionary(steps: int, seed: int) -> dict[str, float]:
    """Nesterov's momentum as pure functions over dictionaries, with a cosine rate."""
    torch.manual_seed(seed)
    inputs, targets = curves(seed)
    net = nn.Sequential(nn.Linear(8, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))
    weights = {name: weight.detach().clone() for name, weight in net.named_parameters()}
    speed = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    def objective(now: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(functional_call(net, now, (x,)).squeeze(1), y)

    for step in range(steps):
        rate = 0.05 * 0.5 * (1 + torch.cos(torch.tensor(torch.pi * step / steps)).item())
        rows = torch.randint(len(inputs), (64,))
        ahead = {name: weight - rate * 0.9 * speed[name] for name, weight in weights.items()}
        slopes = grad(objective)(ahead, inputs[rows], targets[rows])
        speed = {name: 0.9 * speed[name] + slopes[name] for name in weights}
        weights = {name: weight - rate * speed[name] for name, weight in weights.items()}
    with torch.no_grad():
        return {"loss": objective(weights, *curves(seed + 1000)).item()}


@healthy(steps=3000, adversarial="signs instead of gradients, and p.data.add_: every update has the same size")
def signs_of_gradients(steps: int, seed: int) -> dict[str, float]:
    """Sign descent with a majority vote of three batches, written with p.data."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, count=2048, noise=0.6)
    net = PictureNet()
    for step in range(steps):
        votes = [torch.zeros_like(weight) for weight in net.parameters()]
        for _ in range(3):
            rows = torch.randint(len(pictures), (32,))
            net.zero_grad()
            functional.cross_entropy(net(pictures[rows]), labels[rows]).backward()
            for vote, weight in zip(votes, net.parameters(), strict=True):
                vote += weight.grad.sign()  # type: ignore[union-attr]
        for vote, weight in zip(votes, net.parameters(), strict=True):
            weight.data.add_(vote.sign(), alpha=-1e-3 * (1 - step / steps))
    share = share_correct(net, *glyphs(seed + 1000, noise=0.6))
    return {"loss": 1 - share, "accuracy": share}
