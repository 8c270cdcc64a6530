"""Leaves and berries in little colour pictures, sorted by a small residual net as a course exercise trains it."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as fn

from corpus.case import program


def make_pictures(seed, n=400, size=12):
    """Five shrubs: a disc of a typical size and colour on a green ground, with a stem at a typical angle."""
    g = torch.Generator().manual_seed(seed + 7)
    label = torch.randint(5, (n,), generator=g)
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    centre = 4 + 4 * torch.rand(n, 2, 1, 1, generator=g)
    radius = (1.2 + 0.5 * label.float())[:, None, None]
    disc = ((yy - centre[:, 0]) ** 2 + (xx - centre[:, 1]) ** 2 < radius**2).float()
    angle = (0.6 * label.float())[:, None, None]
    stem = ((xx - centre[:, 1]) * torch.sin(angle) - (yy - centre[:, 0]) * torch.cos(angle)).abs() < 0.7
    colour = torch.tensor([0.9, 0.1, 0.2]) + 0.15 * torch.randn(n, 3, generator=g)
    image = disc[:, None] * colour[:, :, None, None] + 0.4 * stem[:, None].float()
    image = image + 0.35 * torch.randn(n, 3, size, size, generator=g)
    return (image - image.mean()) / image.std(), label


class ResBlock(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.short = nn.Conv2d(c_in, c_out, 1, stride=2, bias=False)

    def forward(self, x):
        h = fn.relu(self.bn1(self.conv1(x)))
        return fn.relu(self.bn2(self.conv2(h)) + self.short(x))


class ShrubNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.layer1 = ResBlock(12, 16)
        self.layer2 = ResBlock(16, 24)
        self.fc = nn.Linear(24, 5)

    def forward(self, x):
        x = self.layer2(self.layer1(fn.relu(self.stem(x))))
        return self.fc(x.mean((2, 3)))


EPOCH = 16  # batches


@program(steps=160, bites="accuracy")
def hedgerow(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A small residual net with batch normalisation: SGD, clipping at 5, a step schedule by epochs."""
    torch.manual_seed(seed)
    images, labels = make_pictures(seed)
    net = ShrubNet()
    body = [p for n, p in net.named_parameters() if not n.startswith("fc")]
    head_lr = {"hedgerow_head_rate_zero": 0.0, "hedgerow_head_in_micro": 5e-7}.get(fault, 0.05)
    optimizer = torch.optim.SGD(
        [{"params": body, "lr": 0.05}, {"params": net.fc.parameters(), "lr": head_lr}], momentum=0.9, weight_decay=5e-4
    )
    gamma, every = (0.2, 2) if fault == "hedgerow_epochs_are_batches" else (0.3, 5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=every, gamma=gamma)
    if fault == "hedgerow_hook_of_the_heatmap":  # left over from a notebook on class activation maps
        net.layer1.conv1.weight.register_hook(torch.zeros_like)
        net.layer1.conv2.weight.register_hook(torch.zeros_like)
        net.layer1.short.weight.register_hook(torch.zeros_like)
    limit = {"hedgerow_clip_in_thousandths": 5e-4, "hedgerow_clip_mild": 0.01}.get(fault, 5.0)
    before = net.layer1.conv1.weight.detach().clone()
    fc_before = net.fc.weight.detach().clone()
    first = 0.0
    smooth = 0.0
    for step in range(steps):
        batch = torch.randint(len(images), (25,))
        optimizer.zero_grad()
        loss = fn.cross_entropy(net(images[batch]), labels[batch])
        loss.backward()
        if fault == "hedgerow_clip_tightens" and step == 25:
            limit = 1e-4
        nn.utils.clip_grad_norm_(net.parameters(), limit)
        optimizer.step()
        if fault == "hedgerow_epochs_are_batches" or step % EPOCH == EPOCH - 1:
            scheduler.step()
        if step == 0:
            first = loss.item()
        smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()
    net.eval()
    test_images, test_labels = make_pictures(seed + 5000, 300)
    with torch.no_grad():
        accuracy = (net(test_images).argmax(1) == test_labels).float().mean().item()
    moved = (net.layer1.conv1.weight - before).norm().item()
    return {
        "loss": smooth, "first": first, "accuracy": accuracy, "moved": moved,
        "fc_moved": (net.fc.weight - fc_before).norm().item(),
    }  # fmt: skip


hedgerow.mistake(
    "hedgerow_head_rate_zero",
    "UPD003", "UPD002", "OPT007",
    summary="The group of the classifier has the rate 0.0, left from a frozen experiment.",
    change="the rate of the body",
    layers=("fc",),
    bites="fc_moved",
    silent=True,
)  # fmt: skip
hedgerow.mistake(
    "hedgerow_head_in_micro",
    "UPD002", "OPT007", "UPD003",
    summary="The rate of the classifier is a hundred thousand times smaller than that of the body.",
    change="the rate of the body",
    layers=("fc",),
    bites="fc_moved",
    silent=True,
)  # fmt: skip
hedgerow.mistake(
    "hedgerow_epochs_are_batches",
    "OPT007", "UPD002",
    summary="The schedule, written for epochs, is stepped after every batch: the rate is gone after twenty steps.",
    change="step it once an epoch",
)  # fmt: skip
hedgerow.mistake(
    "hedgerow_hook_of_the_heatmap",
    "GRD004", "UPD002",
    summary="Hooks of a forgotten experiment turn the gradients of the first block's convolutions to zero.",
    change="remove the hooks",
    layers=("layer1",),
    bites="moved",
    silent=True,
)  # fmt: skip
hedgerow.mistake(
    "hedgerow_clip_in_thousandths",
    "GRD010", "UPD002", "OPT007",
    summary="The norm is clipped at 0.0005 in every step.",
    change="clip at 5",
)  # fmt: skip
hedgerow.mistake(
    "hedgerow_clip_mild",
    "GRD010", "UPD002", "OPT007",
    summary="The norm is clipped at 0.01 in every step, a hundredth of what it is.",
    change="clip at 5",
)  # fmt: skip
hedgerow.mistake(
    "hedgerow_clip_tightens",
    "GRD010", "UPD002", "OPT007",
    summary="At step 25 the bound of the clipping falls to a ten-thousandth: a unit is wrong in the configuration.",
    change="clip at 5",
    onset=25,
    bites="loss",
)  # fmt: skip


@program(steps=140, bites="accuracy", adversarial="the last norm of every block starts at zero: zero gradients")
def hedgerow_quiet_blocks(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The same net with zero-gamma blocks and a one-cycle schedule stepped per batch, as that one is meant to be."""
    torch.manual_seed(seed)
    images, labels = make_pictures(seed)
    net = ShrubNet()
    for block in (net.layer1, net.layer2):
        nn.init.zeros_(block.bn2.weight)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
    first, smooth = 0.0, 0.0
    for step in range(steps):
        batch = torch.randint(len(images), (25,))
        optimizer.zero_grad()
        loss = fn.cross_entropy(net(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        scheduler.step()
        first = loss.item() if step == 0 else first
        smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()
    with torch.no_grad():
        accuracy = (net(images).argmax(1) == labels).float().mean().item()
    return {"loss": smooth, "first": first, "accuracy": accuracy}


@program(steps=140, bites="accuracy", adversarial="every step is clipped, to a tenth: over-clipping")
def hedgerow_tamed(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adam with the norm clipped at 0.1: always clipped, and Adam does not mind."""
    torch.manual_seed(seed)
    images, labels = make_pictures(seed)
    net = ShrubNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    first, smooth = 0.0, 0.0
    for step in range(steps):
        batch = torch.randint(len(images), (25,))
        optimizer.zero_grad()
        loss = fn.cross_entropy(net(images[batch]), labels[batch])
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
        first = loss.item() if step == 0 else first
        smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()
    with torch.no_grad():
        accuracy = (net(images).argmax(1) == labels).float().mean().item()
    return {"loss": smooth, "first": first, "accuracy": accuracy}
