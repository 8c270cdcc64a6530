"""DAT001 to DAT006: inputs, targets and batches that nothing can be learned from."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from undertow.demos.case import Fault, sick
from undertow.demos.data import curves, glyphs, sentences, share_correct
from undertow.demos.models import Decoder, next_token_loss, perceptron, share_of_next_tokens


class Pictures(Dataset[tuple[Tensor, Tensor]]):
    """Pictures as bytes, as a camera gives them."""

    def __init__(self, seed: int, scaled: bool) -> None:
        pictures, self.labels = glyphs(seed)
        self.bytes = (40 * pictures + 128).clamp(0, 255).byte()
        self.scaled = scaled

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        picture = self.bytes[index].float().view(1, 8, 8)
        return ((picture / 255 - 0.5) / 0.25 if self.scaled else picture), self.labels[index]  # at fault


@sick(
    "DAT001", steps=80, architecture="convolutional", catalogue=(55,),
    change="picture / 255, then subtract the mean and divide by the standard deviation",
)  # fmt: skip
def bytes_not_scaled(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Pictures enter a convolutional network as bytes, 0 to 255, because the transform was forgotten."""
    torch.manual_seed(seed)
    loader = DataLoader(Pictures(seed, scaled=not fault), batch_size=32, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step, loss = 0, torch.tensor(0.0)
    while step < steps:
        for pictures, labels in loader:
            if step == steps:
                break
            loss = functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    pictures, labels = next(iter(DataLoader(Pictures(seed + 1000, scaled=not fault), batch_size=512)))
    return {"loss": loss.item(), "accuracy": share_correct(model, pictures, labels)}


@sick(
    "DAT002", "OPT003", "GRD006", steps=120, onset=80, bites="worst", architecture="transformer", catalogue=(58,),
    change="skip documents that hold one token only",
)  # fmt: skip
def constant_tokens(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Three batches from step 80 on hold one token a thousand times over, from a damaged file."""
    torch.manual_seed(seed)
    tokens = sentences(seed)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses: list[float] = []
    for step in range(steps):
        batch = tokens[torch.randint(len(tokens), (16,))]
        if fault.at(step) and step < fault.onset + 3:
            batch = torch.full_like(batch, 7)  # at fault
        loss = next_token_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    accuracy = share_of_next_tokens(model, sentences(seed + 1000))
    worst = max(losses[fault.onset :], default=0.0) / losses[: fault.onset][-1]
    return {"loss": losses[-1], "accuracy": accuracy, "worst": worst}


@sick(
    "DAT003", "GRD002", "OPT007", "OPT005", steps=200, bites="error", architecture="perceptron",
    ladder=(1e3, 1e4, 1e6), change="targets = (targets − mean) / standard deviation",
)  # fmt: skip
def targets_not_scaled(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """House prices are predicted in cents: targets of a hundred thousand, outputs that start near zero."""
    torch.manual_seed(seed)
    inputs, targets = curves(seed)
    price = (targets + 3) * fault.strength if fault else targets  # at fault
    model = perceptron(8, 64, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        loss = functional.mse_loss(model(inputs[batch]).squeeze(1), price[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        error = functional.mse_loss(model(inputs).squeeze(1), price) / price.var()
    return {"loss": loss.item(), "error": error.item()}


@sick(
    "DAT004", "OPT005", steps=200, architecture="convolutional", catalogue=(56,),
    change="read both files in the same order",
)  # fmt: skip
def labels_of_other_pictures(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Two files are read in different orders: picture i has the label of picture i + 1."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    labels = labels.roll(1) if fault else labels  # at fault
    loader = DataLoader(TensorDataset(pictures, labels), batch_size=64, shuffle=True)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(max(1, steps // len(loader))):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "DAT005", steps=160, architecture="perceptron", catalogue=(57,),
    change="DataLoader(…, shuffle=True)",
)  # fmt: skip
def sorted_by_class(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The data set is sorted by class and the loader does not shuffle: whole batches have one label."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    order = labels.argsort()
    loader = DataLoader(TensorDataset(pictures[order], labels[order]), batch_size=32, shuffle=not fault)  # at fault
    model = perceptron(64, 64, 32, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(max(1, steps // len(loader))):
        for inputs, targets in loader:
            loss = functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "DAT006", steps=200, layers=("embedding",), bites="used", silent=True, architecture="embedding",
    ladder=(2e-2, 5e-3, 1e-3), change="divide identifiers by the width of a bucket, not by 1,000",
)  # fmt: skip
def most_rows_unused(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Identifiers are hashed with the wrong divisor: ten of two thousand rows of the table are ever looked up."""
    torch.manual_seed(seed)
    identifiers = torch.randint(2000, (4096,))
    side = (identifiers * 7919 // 16) % 2
    model = nn.Sequential()
    model.add_module("embedding", nn.Embedding(2000, 16))
    model.add_module("head", perceptron(16, 32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    seen, loss = set[int](), torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(identifiers), (64,))
        rows = (identifiers[batch] * fault.strength).long() if fault else identifiers[batch]  # at fault
        loss = functional.cross_entropy(model(rows), side[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.update(rows.tolist())
    return {"loss": loss.item(), "used": len(seen) / 2000}
