"""Parameters that no optimizer moves."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, share_correct
from undertow.demos.models import perceptron


@sick(
    "UPD003", steps=150, layers=("0",), architecture="perceptron", catalogue=(17,),
    change="leave requires_grad on: this layer was never trained",
)  # fmt: skip
def frozen_by_mistake(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Layer 0 has `requires_grad=False`, left over from fine-tuning, though its weights are random."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, noise=0.5)
    model = perceptron(64, 12, 32, 10)
    if fault:
        for name, parameter in model.named_parameters():
            if name.startswith("0."):
                parameter.requires_grad = False  # at fault
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000, noise=0.5))}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 48)
        self.middle = nn.Linear(48, 24)
        self.head = nn.Linear(24, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        hidden = functional.relu(self.middle(functional.relu(self.first(pictures))))
        return self.head(hidden)


@sick(
    "UPD003", steps=150, layers=("middle",), bites="moved", silent=True,
    change="give model.parameters() to the optimizer", architecture="perceptron", catalogue=(19,),
)  # fmt: skip
def layer_left_out(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The list of layers given to the optimizer misses the middle one; the loss falls all the same."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = Classifier()
    start = model.middle.weight.detach().clone()
    given = [*model.first.parameters(), *model.head.parameters()]  # at fault
    if not fault:
        given += model.middle.parameters()
    optimizer = torch.optim.SGD(given, lr=0.05, momentum=0.9)  # at fault
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    moved = ((model.middle.weight.detach() - start).norm() / start.norm()).item()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000)), "moved": moved}


@sick(
    "UPD003", steps=150, layers=("head",), bites="moved", silent=True,
    change="build the optimizer after replacing the head", architecture="perceptron", catalogue=(20,),
)  # fmt: skip
def head_replaced(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The head is replaced after the optimizer was built, so the optimizer trains the old one."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)  # at fault
    model.head = nn.Linear(24, 10)  # at fault
    if not fault:
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    start = model.head.weight.detach().clone()
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    moved = ((model.head.weight.detach() - start).norm() / start.norm()).item()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000)), "moved": moved}
