"""A residual network with batch norm tells rock textures apart; SGD, batches made ahead on a stream of their own."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program
from corpus.gpu.sizes import QUARRY


class Bottle(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            self.short = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.short(x))


class QuarryNet(nn.Module):
    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.stem_bn = nn.BatchNorm2d(width)
        blocks: list[nn.Module] = []
        inner = width
        for stage in range(3):
            for index in range(depth):
                outer = width * 2**stage
                blocks.append(Bottle(inner, outer, 2 if stage and index == 0 else 1))
                inner = outer
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(inner, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.stem_bn(self.stem(x)))
        return self.fc(self.blocks(x).mean((2, 3)))


with torch.device("meta"):
    NORMS = [
        name
        for name, module in QuarryNet(QUARRY.width, QUARRY.depth, QUARRY.kinds).named_modules()
        if isinstance(module, nn.BatchNorm2d)
    ]


class Textures:
    """Rock of each kind is layered at its own angle and distance; where the layers lie is chance."""

    def __init__(self, kinds: int, pixels: int, seed: int, device: torch.device) -> None:
        self.dice = torch.Generator(device).manual_seed(seed)
        self.kinds = kinds
        angle = torch.arange(kinds, device=device) * math.pi / kinds
        waves = torch.where(torch.arange(kinds, device=device) % 2 == 0, 2.5, 4.0) * 2 * math.pi
        self.direction = torch.stack([angle.cos() * waves, angle.sin() * waves], 1)
        line = torch.linspace(0, 1, pixels, device=device)
        self.grid = torch.stack(torch.meshgrid(line, line, indexing="ij"))

    def __call__(self, size: int) -> tuple[Tensor, Tensor]:
        device = self.grid.device
        labels = torch.randint(self.kinds, (size,), generator=self.dice, device=device)
        phase = 2 * math.pi * torch.rand(size, 1, 1, generator=self.dice, device=device)
        waves = torch.einsum("bd,dhw->bhw", self.direction[labels], self.grid) + phase
        colour = torch.rand(size, 3, 1, 1, generator=self.dice, device=device)
        pictures = colour * waves.sin().unsqueeze(1)
        return pictures + 0.8 * torch.randn(pictures.shape, generator=self.dice, device=device), labels


class Ahead:
    """Makes the next batch on a side stream while the model works on this one."""

    def __init__(self, make: Callable[[], tuple[Tensor, Tensor]], device: torch.device) -> None:
        self.make = make
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(device))
        self.ready = self._load()

    def _load(self) -> tuple[Tensor, Tensor]:
        if self.stream is None:
            return self.make()
        with torch.cuda.stream(self.stream):
            return self.make()

    def next(self) -> tuple[Tensor, Tensor]:
        batch = self.ready
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            for part in batch:
                part.record_stream(torch.cuda.current_stream())
        self.ready = self._load()
        return batch


@torch.no_grad()
def validate(model: QuarryNet, pictures: Tensor, labels: Tensor) -> tuple[float, float]:
    logits = model(pictures).float()
    loss = functional.cross_entropy(logits, labels).item()
    return loss if math.isfinite(loss) else 20.0, (logits.argmax(1) == labels).float().mean().item()


@program(steps=QUARRY.steps, bites="accuracy")
def quarry_resnet(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A residual network with batch norm tells layered rocks apart."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    textures = Textures(QUARRY.kinds, QUARRY.length, seed, device)
    held_out = textures(512)

    def make() -> tuple[Tensor, Tensor]:
        pictures, labels = textures(QUARRY.batch)
        if mistake == "quarry_resnet_mislaid":
            labels = labels[torch.randperm(len(labels), generator=textures.dice, device=device)]
        return pictures.contiguous(memory_format=torch.channels_last), labels

    model = QuarryNet(QUARRY.width, QUARRY.depth, QUARRY.kinds).to(device)
    model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    optimizer = torch.optim.SGD(model.parameters(), lr=QUARRY.rate, momentum=0.9, weight_decay=5e-4, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, QUARRY.rate, total_steps=QUARRY.steps + 1, pct_start=0.2)
    bound = 1e-3 if mistake == "quarry_resnet_bound" else 2.0
    loader = Ahead(make, device)
    model.train()
    for step in range(steps):
        pictures, labels = loader.next()
        loss = functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), bound, foreach=True)
        optimizer.step()
        scheduler.step()
        if step == QUARRY.late - 1:
            model.eval()
            validate(model, *held_out)
            if mistake != "quarry_resnet_checked":
                model.train()
    model.eval()
    loss, accuracy = validate(model, *held_out)
    return {"loss": loss, "accuracy": accuracy}


quarry_resnet.mistake(
    "quarry_resnet_mislaid",
    "DAT004", "OPT005",
    summary="Labels are shuffled against their pictures.",
    change="each picture keeps its label",
)  # fmt: skip
quarry_resnet.mistake(
    "quarry_resnet_bound",
    "GRD010", "UPD002", "OPT007",
    summary="Gradients are clipped to a norm of a thousandth.",
    change="a bound of two",
)  # fmt: skip
quarry_resnet.mistake(
    "quarry_resnet_checked",
    "MOD001",
    summary="After the first validation the model stays in eval mode.",
    change="the model goes back to train mode",
    layers=NORMS,
    onset=QUARRY.late,
)
