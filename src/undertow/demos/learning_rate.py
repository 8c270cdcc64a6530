"""Learning rates and schedules that cannot work."""

import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, share_correct
from undertow.demos.models import perceptron


@sick(
    "OPT007", "UPD001", steps=150, architecture="perceptron", catalogue=(38,), ladder=(2.0, 8.0, 40.0), onsets=(60,),
    change="a learning rate of 0.05",
)  # fmt: skip
def rate_too_high(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A tanh network under SGD with a learning rate of 8."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = perceptron(64, 64, 32, 10, activation=nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for step in range(steps):
        if fault.at(step):
            optimizer.param_groups[0]["lr"] = fault.strength  # at fault
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "OPT007", "UPD002", steps=150, architecture="convolutional", catalogue=(39,), ladder=(1e-5, 1e-6, 1e-8),
    change="a learning rate of 3e-3",
)  # fmt: skip
def rate_too_low(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A convolutional network under Adam with a learning rate of one in a million."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=fault.strength if fault else 3e-3)  # at fault
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "OPT007", "UPD002", steps=200, architecture="perceptron", catalogue=(41, 37), ladder=(20, 3, 1),
    change="schedule.step() once per epoch",
)  # fmt: skip
def schedule_stepped_per_batch(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """`StepLR(3, 0.1)` was meant for epochs and is stepped with every batch: the rate is nothing after twenty."""
    torch.manual_seed(seed)
    loader = DataLoader(TensorDataset(*glyphs(seed)), batch_size=64, shuffle=True)
    model = perceptron(64, 64, 32, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    schedule = lr_scheduler.StepLR(optimizer, step_size=int(fault.strength) if fault else 8, gamma=0.1)  # at fault
    loss = torch.tensor(0.0)
    for _ in range(max(1, steps // len(loader))):
        for pictures, labels in loader:
            loss = functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if fault:
                schedule.step()  # at fault
        if not fault:
            schedule.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "OPT007", "UPD001", "OPT003", "OPT001", steps=160, onset=100, architecture="perceptron", catalogue=(42,),
    ladder=(30, 100, 1000), onsets=(40,), change="leave the learning rate as it is",
)  # fmt: skip
def rate_leaps(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A home-made restart multiplies the learning rate by a hundred at step 100."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = perceptron(64, 64, 32, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for step in range(steps):
        if fault and step == fault.onset:
            optimizer.param_groups[0]["lr"] *= fault.strength  # at fault
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}
