"""Does the mosaic repeat, and where? A small vision transformer over patches of a tiled floor."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import healthy, program

PATCH, SIDE, WIDTH = 4, 16, 32


def lay_floor(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sixteen tiles in three colours of 4×4 pixels; the label is the quadrant that holds the odd bright tile."""
    rng = torch.Generator().manual_seed(seed)
    tiles = 0.4 * torch.randn(count, 4, 4, 3, PATCH, PATCH, generator=rng)
    motif = torch.randn(3, PATCH, PATCH, generator=torch.Generator().manual_seed(77))
    row, column = torch.randint(4, (2, count), generator=rng)
    tiles[torch.arange(count), row, column] += 1.2 * motif
    floor = tiles.permute(0, 3, 1, 4, 2, 5).reshape(count, 3, SIDE, SIDE)
    return floor, (row // 2) * 2 + column // 2


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, scale: float) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        weights = (q @ k.transpose(-1, -2) * self.scale).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    def __init__(self, width: int, heads: int, scale: float) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = SelfAttention(width, heads, scale)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class FloorViT(nn.Module):
    def __init__(self, depth: int = 2, scale: float = 8**-0.5) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos = nn.Parameter(0.2 * torch.randn(1, 17, WIDTH))
        self.layers = nn.ModuleList(EncoderLayer(WIDTH, 4, scale) for _ in range(depth))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), tokens], 1) + self.pos
        for layer in self.layers:
            tokens = layer(tokens)
        return self.head(self.norm(tokens[:, 0]))


@torch.no_grad()
def floor_accuracy(model: nn.Module, seed: int) -> float:
    x, y = lay_floor(400, seed + 4000)
    return (model.eval()(x).argmax(1) == y).float().mean().item()


class FloorTrainer:
    """Warm-up over a tenth of the training, then a cosine; clips; averages `micro` batches into a step."""

    def __init__(self, model: nn.Module, lr: float, steps: int, micro: int = 1, sgd: bool = False) -> None:
        self.model, self.steps, self.micro = model, steps, micro
        if sgd:
            self.optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        else:
            self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.05)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.pace)
        self.last = 0.0

    def pace(self, step: int) -> float:
        warm = max(1, self.steps // 10)
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + torch.cos(torch.tensor(3.1416 * (step - warm) / (self.steps - warm))).item()) + 0.01

    def fit(self, x: Tensor, y: Tensor, divide: bool = True) -> None:
        self.model.train()
        for _ in range(self.steps):
            self.optimizer.zero_grad(set_to_none=True)
            for _ in range(self.micro):
                index = torch.randint(len(x), (48 // self.micro,))
                loss = fn.cross_entropy(self.model(x[index]), y[index])
                (loss / self.micro if divide else loss).backward()
            self.optimizer.step()
            self.schedule.step()
            self.last += 0.06 * (loss.item() - self.last)


@program(steps=240, bites="accuracy")
def floor_of_tiles(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two pre-norm layers by AdamW with warm-up and a cosine."""
    torch.manual_seed(seed)
    model = FloorViT(scale=8.0 * 8**0.5 if fault == "floor_multiplied_by_root" else 8**-0.5)
    if fault == "floor_constant_fill":
        for weight in model.parameters():
            if weight.dim() > 1:
                nn.init.constant_(weight, 0.02)
    trainer = FloorTrainer(model, lr=1e-5 if fault == "floor_finetuning_rate" else 2e-3, steps=steps)
    trainer.fit(*lay_floor(6000, seed))
    return {"loss": trainer.last, "accuracy": floor_accuracy(model, seed)}


floor_of_tiles.mistake(
    "floor_multiplied_by_root",
    "ACT004",
    summary="Attention logits are multiplied by d·√d where they should be divided by √d: every row is a single one.",
    change="scale = head_width ** -0.5",
    layers=("layers.0.attn", "layers.1.attn"),
)
floor_of_tiles.mistake(
    "floor_constant_fill",
    "WGT002",
    summary="An init helper fills every matrix with 0.02: all units of a layer are one and the same.",
    change="trunc_normal_(std=0.02)",
    layers=("patch", "cls", "pos", "layers", "head"),
)
floor_of_tiles.mistake(
    "floor_finetuning_rate",
    "OPT007", "UPD002",
    summary="The rate of 1e-5 comes from a recipe for fine-tuning; this network starts from nothing.",
    change="lr=2e-3",
)  # fmt: skip


class FloorMixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.across = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.within = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
        self.head = nn.Linear(16 * WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.within(self.norm1(x))
        x = x + self.across(self.norm2(x).transpose(1, 2)).transpose(1, 2)
        return self.head(x.flatten(1))


@program(steps=150, bites="accuracy")
def floor_in_micro_batches(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Sixteen micro-batches of three to a step; an MLP-mixer by SGD with momentum."""
    torch.manual_seed(seed)
    model = FloorMixer()
    trainer = FloorTrainer(model, lr=0.15, steps=steps, micro=16, sgd=True)
    trainer.fit(*lay_floor(6000, seed), divide=fault != "floor_sixteen_added")
    return {"loss": trainer.last, "accuracy": floor_accuracy(model, seed)}


floor_in_micro_batches.mistake(
    "floor_sixteen_added",
    "LSS004", "OPT007", "UPD001",
    summary="The loss of a micro-batch is not divided by their number: gradients are sixteen times too large.",
    change="(loss / micro).backward()",
)  # fmt: skip


class GatedFloor(FloorViT):
    """Every layer's contribution is multiplied by a gate that starts at zero (ReZero)."""

    def __init__(self) -> None:
        super().__init__(depth=4)
        self.gates = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).transpose(1, 2) + self.pos[:, 1:]
        for gate, layer in zip(self.gates, self.layers):
            tokens = tokens + gate * (layer(tokens) - tokens)
        return self.head(self.norm(tokens).mean(1))


@healthy(steps=260, architecture="vit", adversarial="layers with exactly zero gradient are dead")
def floor_gates_from_zero(steps: int, seed: int) -> dict[str, float]:
    """Gates at zero: at first only gates, patches and head have a gradient, and then all do."""
    torch.manual_seed(seed)
    model = GatedFloor()
    del model.cls
    trainer = FloorTrainer(model, lr=2e-3, steps=steps)
    trainer.fit(*lay_floor(6000, seed))
    return {"loss": trainer.last, "accuracy": floor_accuracy(model, seed)}


@healthy(steps=200, architecture="vit", adversarial="low precision means trouble")
def floor_in_bfloat(steps: int, seed: int) -> dict[str, float]:
    """bf16 autocast on the CPU, weights kept in full precision, and an average of the weights to be used."""
    torch.manual_seed(seed)
    x, y = lay_floor(6000, seed)
    model = FloorViT()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.zeros(())
    for step in range(steps):
        index = torch.randint(len(x), (32,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = fn.cross_entropy(model(x[index]).float(), y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters()):
                slow.lerp_(fast, 1.0 if step < 20 else 0.05)
    return {"loss": loss.item(), "accuracy": floor_accuracy(average, seed)}
