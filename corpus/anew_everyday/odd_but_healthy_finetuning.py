"""Healthy trainings in which parts are frozen, detached, copied or added on purpose."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.anew_everyday.checkpoints import load_checkpoint
from corpus.case import healthy
from undertow.demos.data import glyphs, share_correct

NOISE = 0.5


class FrozenBackbone(nn.Module):
    """A backbone from a checkpoint that stays as it is, batch norms in evaluation mode included, and a new head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 96), nn.BatchNorm1d(96)
        )
        load_checkpoint(self.backbone, 21).requires_grad_(False)
        for module in self.backbone:
            if isinstance(module, nn.BatchNorm1d):
                assert module.running_var is not None
                module.running_var.fill_(4.0)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))

    def train(self, mode: bool = True) -> FrozenBackbone:
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.backbone(x)
        return self.head(features)


@healthy(steps=700, architecture="perceptron", adversarial="batch norm in evaluation mode, layers that never move")
def everyday_frozen_backbone(steps: int, seed: int) -> dict[str, float]:
    """Only the head of a network from a checkpoint is trained; its batch norms stay in evaluation mode."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, 2500, noise=NOISE)
    model = FrozenBackbone()
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=3e-3)
    model.train()
    for _ in range(steps):
        rows = torch.randint(len(pictures), (64,))
        loss = F.cross_entropy(model(pictures[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy": share_correct(model, *glyphs(seed + 1000, noise=NOISE)), "loss": loss.item()}


@healthy(steps=600, architecture="perceptron", adversarial="layers that begin to move late")
def everyday_thawed_layer_by_layer(steps: int, seed: int) -> dict[str, float]:
    """The layers of a checkpoint are made trainable one after the other, from the head down."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, 2500, noise=NOISE)
    net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
    load_checkpoint(net[:4], 22).requires_grad_(False)
    optimizer = torch.optim.Adam(net[4].parameters(), lr=2e-3)
    for step in range(steps):
        if step in (steps // 3, 2 * steps // 3):
            thawed = net[2 if step == steps // 3 else 0]
            optimizer.add_param_group({"params": list(thawed.requires_grad_(True).parameters()), "lr": 5e-4})
        rows = torch.randint(len(pictures), (64,))
        loss = F.cross_entropy(net(pictures[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy": share_correct(net, *glyphs(seed + 1000, noise=NOISE)), "loss": loss.item()}


@healthy(steps=600, architecture="autoencoder", adversarial="a head whose gradient stops at its input")
def everyday_probe_beside_autoencoder(steps: int, seed: int) -> dict[str, float]:
    """A linear probe reads the code of an autoencoder through detach, to watch what is in it."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, 2500, noise=NOISE)
    encoder = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 12))
    decoder = nn.Sequential(nn.Linear(12, 96), nn.ReLU(), nn.Linear(96, 64))
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder, "probe": nn.Linear(12, 10)})
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        rows = torch.randint(len(pictures), (64,))
        code = encoder(pictures[rows] + 0.3 * torch.randn(64, 64))
        loss = F.mse_loss(decoder(code), pictures[rows]) + F.cross_entropy(model["probe"](code.detach()), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=500, architecture="perceptron", adversarial="a copy of the model that gets no gradient")
def everyday_mean_teacher(steps: int, seed: int) -> dict[str, float]:
    """Two hundred labels and many pictures without: the student agrees with the average of its former selves."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, 2500, noise=NOISE)
    student = nn.Sequential(
        nn.Linear(64, 96), nn.ReLU(), nn.Dropout(0.2), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10)
    )
    teacher = copy.deepcopy(student)
    for p in teacher.parameters():
        p.detach_()
    optimizer = torch.optim.Adam(student.parameters(), lr=2e-3)
    for step in range(steps):
        known, unknown = torch.randint(200, (32,)), torch.randint(len(pictures), (64,))
        supervised = F.cross_entropy(student(pictures[known]), labels[known])
        with torch.no_grad():
            wanted = teacher(pictures[unknown]).softmax(1)
        agreement = F.mse_loss(student(pictures[unknown] + 0.2 * torch.randn(64, 64)).softmax(1), wanted)
        loss = supervised + min(1.0, step / 200) * 5 * agreement
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.02)
    return {"accuracy": share_correct(teacher, *glyphs(seed + 1000, noise=NOISE)), "loss": loss.item()}


@healthy(steps=400, architecture="convolutional", adversarial="coarse numbers in every activation")
def everyday_channels_last_bfloat16(steps: int, seed: int) -> dict[str, float]:
    """Convolutions under bfloat16 autocast, weights in float32, memory in channels-last order."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, 2500, noise=NOISE)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Hardswish(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.Hardswish(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    ).to(memory_format=torch.channels_last)  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, max(steps, 1), power=0.9)
    for _ in range(steps):
        rows = torch.randint(len(pictures), (48,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(net(pictures[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return {"accuracy": share_correct(net, *glyphs(seed + 1000, noise=NOISE)), "loss": loss.item()}
