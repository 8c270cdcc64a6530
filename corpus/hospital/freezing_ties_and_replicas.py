"""Wiring: layers frozen by mistake, parameter groups with the wrong rate, broken ties, replicas that part."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, sentences, share_correct
from undertow.demos.models import Decoder, next_token_loss, perceptron, share_of_next_tokens


@sick(
    "UPD002", "OPT007", "UPD003", steps=150, layers=("head",), bites="moved", silent=True, architecture="transformer",
    catalogue=(36,), ladder=(1e-5, 1e-7, 1e-9), change="one learning rate, or a higher one for the head",
)  # fmt: skip
def head_hardly_moves(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Discriminative learning rates the wrong way round: the new head has one that is thousands of times too low."""
    torch.manual_seed(seed)
    tokens = sentences(seed)
    model = Decoder()
    start = model.head.weight.detach().clone()
    body = [parameter for name, parameter in model.named_parameters() if not name.startswith("head")]
    rate = fault.strength if fault else 3e-3
    groups = [{"params": body}, {"params": model.head.parameters(), "lr": rate}]  # at fault
    optimizer = torch.optim.AdamW(groups, lr=3e-3)  # at fault
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = next_token_loss(model, tokens[torch.randint(len(tokens), (16,))])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    moved = ((model.head.weight.detach() - start).norm() / start.norm()).item()
    return {"loss": loss.item(), "accuracy": share_of_next_tokens(model, sentences(seed + 1000)), "moved": moved}


@sick(
    "OPT008", "WGT005", steps=150, layers=("norm1", "norm2"), architecture="perceptron", catalogue=(36,),
    ladder=(20, 100, 300), change="no weight decay for norms and biases",
)  # fmt: skip
def norms_decay(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The groups of AdamW are swapped: the strong decay meant for nothing falls on the scales of the layer norms."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.norm1 = nn.Linear(64, 48), nn.LayerNorm(48)
            self.fc2, self.norm2 = nn.Linear(48, 48), nn.LayerNorm(48)
            self.head = nn.Linear(48, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = functional.gelu(self.norm1(self.fc1(x)))
            return self.head(functional.gelu(self.norm2(self.fc2(x))))

    model = Network()
    norms = [parameter for name, parameter in model.named_parameters() if "norm" in name]
    others = [parameter for name, parameter in model.named_parameters() if "norm" not in name]
    groups = [
        {"params": others, "weight_decay": 0.0},
        {"params": norms, "weight_decay": fault.strength if fault else 0.0},  # at fault
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)  # at fault
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "WGT006", "UPD003", steps=100, layers=("head", "wte"), bites="apart", silent=True, architecture="transformer",
    catalogue=(30,), change="self.head.weight = self.wte.weight",
)  # fmt: skip
def tie_broken(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Embedding and head should share one weight; the head was given a copy, and the two drift apart."""
    torch.manual_seed(seed)
    tokens = sentences(seed)
    model = Decoder()
    nn.init.normal_(model.wte.weight, std=0.1)
    model.head.weight = nn.Parameter(model.wte.weight.clone()) if fault else model.wte.weight  # at fault
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = next_token_loss(model, tokens[torch.randint(len(tokens), (16,))])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    apart = ((model.head.weight - model.wte.weight).norm() / model.wte.weight.norm()).item()
    return {"loss": loss.item(), "accuracy": share_of_next_tokens(model, sentences(seed + 1000)), "apart": apart}


def _average(replicas: list[nn.Sequential], leave_out: str) -> None:
    """What a data-parallel wrapper does after backward, for all parameters but one."""
    for (name, one), (_, two) in zip(replicas[0].named_parameters(), replicas[1].named_parameters(), strict=True):
        if name != leave_out and one.grad is not None and two.grad is not None:  # at fault
            mean = (one.grad + two.grad) / 2
            one.grad.copy_(mean)
            two.grad.copy_(mean)


@sick(
    "DST001", steps=100, layers=("2", "sequential.2"), bites="apart", silent=True, architecture="perceptron",
    catalogue=(31,), change="average the gradients of every parameter",
)  # fmt: skip
def replicas_part(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Two replicas in one process; one tensor is left out of the averaging, so that they become two models."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    replicas = [perceptron(64, 64, 32, 10) for _ in range(2)]
    replicas[1].load_state_dict(replicas[0].state_dict())
    optimizers = [torch.optim.SGD(replica.parameters(), lr=0.05, momentum=0.9) for replica in replicas]
    loss = torch.tensor(0.0)
    for _ in range(steps):
        for replica, optimizer in zip(replicas, optimizers, strict=True):
            batch = torch.randint(len(pictures), (32,))
            optimizer.zero_grad()
            loss = functional.cross_entropy(replica(pictures[batch]), labels[batch])
            loss.backward()
        _average(replicas, "2.weight" if fault else "")  # at fault
        for optimizer in optimizers:
            optimizer.step()
    one, two = (replica[2].weight for replica in replicas)
    assert isinstance(one, Tensor)
    assert isinstance(two, Tensor)
    apart = ((one - two).norm() / one.norm()).item()
    return {"loss": loss.item(), "accuracy": share_correct(replicas[0], *glyphs(seed + 1000)), "apart": apart}
