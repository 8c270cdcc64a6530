"""Inputs, labels and batches that nothing can be learned from."""

import torch
from torch import Tensor
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, share_correct
from undertow.demos.models import perceptron


@sick(
    "DAT001", steps=150, architecture="perceptron", catalogue=(55,), ladder=(0.1, 1.0, 10.0),
    change="inputs = (inputs − mean) / standard deviation",
)  # fmt: skip
def raw_inputs(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Inputs come straight from the sensor: values of some thousands, all far from zero."""
    torch.manual_seed(seed)

    def readings(seed: int) -> tuple[Tensor, Tensor]:
        pictures, labels = glyphs(seed)
        return (pictures * 4080 * fault.strength + 1000 if fault else pictures), labels  # at fault

    pictures, labels = readings(seed)
    model = perceptron(64, 64, 32, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *readings(seed + 1000))}


@sick(
    "DAT002", "OPT003", "GRD006", steps=150, onset=100, architecture="perceptron", catalogue=(58,),
    ladder=(100, 1e4, 1e6), onsets=(50,), change="skip the batch, or clip the gradient",
)  # fmt: skip
def batch_of_garbage(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """One batch at step 100 is ten thousand times too large."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, noise=0.8)
    model = perceptron(64, 64, 32, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for step in range(steps):
        batch = torch.randint(len(pictures), (64,))
        inputs = pictures[batch]
        if fault and step == fault.onset:
            inputs = inputs * fault.strength  # at fault
        loss = functional.cross_entropy(model(inputs), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000, noise=0.8))}


@sick(
    "DAT004", "OPT005", steps=300, architecture="perceptron", catalogue=(56,), ladder=(0.5, 0.98, 1.0),
    change="shuffle inputs and labels together",
)  # fmt: skip
def shuffled_labels(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Almost all labels were shuffled and the inputs were not."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, count=2048)
    if fault:
        chosen = torch.rand(len(labels)).argsort()[: int(fault.strength * len(labels))]
        labels[chosen] = labels[chosen[torch.randperm(len(chosen))]]  # at fault
    model = perceptron(64, 64, 32, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}
