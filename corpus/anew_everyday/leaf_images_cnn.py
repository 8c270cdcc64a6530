"""Classify pictures of leaf veins with a plain convolutional network: a script with data loaders."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

from corpus.case import program

SPECIES = 6


def leaves(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Grey pictures of 16 × 16 bytes whose veins run in one of six directions, sorted by species as on the disk."""
    g = torch.Generator().manual_seed(seed)
    species = torch.arange(count) * SPECIES // count
    angle = species * math.pi / SPECIES
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    across = torch.cos(angle)[:, None, None] * x + torch.sin(angle)[:, None, None] * y
    phase = 2 * math.pi * torch.rand(count, 1, 1, generator=g)
    brightness = 0.55 + 0.25 * torch.sin(1.1 * across + phase) + 0.17 * torch.randn(count, 16, 16, generator=g)
    return (brightness.clamp(0, 1) * 255).to(torch.uint8).unsqueeze(1), species


def build_network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(24 * 16, 48),
        nn.ReLU(),
        nn.Linear(48, SPECIES),
    )


@program(steps=400, bites="accuracy")
def leaf_species_cnn(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A small network for six kinds of leaves, SGD with momentum, negative log-likelihood."""
    torch.manual_seed(seed)
    pictures, species = leaves(seed, 960)
    held_out, held_out_species = leaves(seed + 500, 300)

    def prepare(images: Tensor) -> Tensor:
        if mistake == "leaf_pixels_as_bytes":
            return images.float()  # at fault: leaf_pixels_as_bytes
        return (images.float() / 255 - 0.5) / 0.25

    shuffle = mistake != "leaf_folders_in_order"
    data = TensorDataset(prepare(pictures), species)
    loader = DataLoader(data, batch_size=48, shuffle=shuffle)  # at fault: leaf_folders_in_order
    net = build_network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    step = 0
    while step < steps:
        for x, y in loader:
            scores = net(x) if mistake == "leaf_likelihood_of_scores" else F.log_softmax(net(x), dim=1)
            loss = F.nll_loss(scores, y)  # at fault: leaf_likelihood_of_scores
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == steps:
                break
    with torch.no_grad():
        outputs = net(prepare(held_out))
    accuracy = (outputs.argmax(1) == held_out_species).float().mean().item()
    return {"accuracy": accuracy, "loss": F.cross_entropy(outputs, held_out_species).item()}


leaf_species_cnn.mistake(
    "leaf_pixels_as_bytes",
    "DAT001",
    summary="Pixels go into the network as 0 to 255.",
    change="pixels are standardised",
)
leaf_species_cnn.mistake(
    "leaf_folders_in_order",
    "DAT005",
    summary="The loader walks through the folders in order, one species after the other.",
    change="shuffle=True",
)
leaf_species_cnn.mistake(
    "leaf_likelihood_of_scores",
    "LSS001",
    "LSS003",
    summary="nll_loss is given the raw scores: log_softmax is missing.",
    change="log_softmax before nll_loss",
)
