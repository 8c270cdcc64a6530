"""Stitch patterns: 8×8 cross-stitch charts in four colours, told apart by mixers and plain towers of blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

PATTERNS, COLOURS = 6, 4


def charts(seed: int, n: int) -> tuple[Tensor, Tensor]:
    """One hot colours; a pattern is a wave over the chart, and one stitch in seven is wrong."""
    g = torch.Generator().manual_seed(9000 + seed)
    kind = torch.randint(PATTERNS, (n,), generator=g)
    row, col = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    shift = torch.randint(4, (n, 1, 1), generator=g)
    slope = (kind % 3)[:, None, None]
    steep = (1 + kind // 3)[:, None, None]
    colour = (row * steep + col * slope + shift) % COLOURS
    wrong = torch.rand(n, 8, 8, generator=g) < 1 / 7
    colour = torch.where(wrong, torch.randint(COLOURS, (n, 8, 8), generator=g), colour)
    return nn.functional.one_hot(colour, COLOURS).float().flatten(1, 2) - 0.25, kind


class Stitch(nn.Module):
    """Mixes over stitches, then over channels."""

    def __init__(self, width: int, plain: bool) -> None:
        super().__init__()
        self.plain = plain
        self.norm_a, self.norm_b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Linear(16, 16)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        if self.plain:  # "the skips and norms only cost time"
            h = torch.relu(self.across(h.transpose(1, 2))).transpose(1, 2)
            return self.down(torch.relu(self.up(h)))
        h = h + self.across(self.norm_a(h).transpose(1, 2)).transpose(1, 2)
        return h + self.down(nn.functional.gelu(self.up(self.norm_b(h))))


class Sampler(nn.Module):
    def __init__(self, blocks: int = 6, width: int = 24, plain: bool = False) -> None:
        super().__init__()
        self.patch = nn.Linear(4 * COLOURS, width)
        self.blocks = nn.ModuleList(Stitch(width, plain) for _ in range(blocks))
        self.norm = nn.Identity() if plain else nn.LayerNorm(width)
        self.head = nn.Linear(width, PATTERNS)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x.view(len(x), 16, -1))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h).mean(1))


@program(steps=150, bites="accuracy")
def embroidery_mixer(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A mixer of six pre-norm blocks, AdamW with warm-up and cosine, batches of 64."""
    torch.manual_seed(seed)
    x, y = charts(seed, 1500)
    model = Sampler(plain=fault == "embroidery_no_skips_no_norms")
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=max(steps, 40), pct_start=0.1)
    loss = torch.zeros(())
    for _ in range(steps):
        at = torch.randint(0, 1200, (64,))
        loss = nn.functional.cross_entropy(model(x[at]), y[at])
        if fault == "embroidery_loss_made_a_leaf":
            loss = loss.detach().requires_grad_(True)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
    with torch.no_grad():
        accuracy = (model(x[1200:]).argmax(1) == y[1200:]).float().mean().item()
    return {"loss": loss.item(), "accuracy": accuracy}


embroidery_mixer.mistake(
    "embroidery_no_skips_no_norms",
    "GRD001", "ACT003", "OPT005", "WGT003", "OPT002",
    summary="The skips and norms of all six blocks were taken out to save time: eighteen matrices in a row.",
    change="put the skips and norms back",
)  # fmt: skip
embroidery_mixer.mistake(
    "embroidery_loss_made_a_leaf",
    "GRD003", "UPD003", "OPT005",
    summary="The loss is detached and made a leaf again: backward reaches no parameter at all.",
    change="backward of the loss itself",
)  # fmt: skip


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, 96) for a in (256, 96, 96, 96))
        self.last = nn.Linear(96, PATTERNS)

    def forward(self, x: Tensor) -> Tensor:
        h = x.flatten(1)
        for layer in self.layers:
            h = nn.functional.relu(layer(h))
        return self.last(h)


def start_standard_normal(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight)  # the default standard deviation is one
        nn.init.zeros_(module.bias)


@program(steps=160, bites="accuracy")
def embroidery_tower(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four wide ReLU layers on the flattened chart, SGD with momentum and a step schedule."""
    torch.manual_seed(seed)
    x, y = charts(seed, 3000)
    net = Tower()
    if fault == "tower_standard_normal":
        net.apply(start_standard_normal)
    if fault == "tower_second_layer_sunk":
        nn.init.constant_(net.get_parameter("layers.1.bias"), -4.0)
    rate = 0.3 if fault == "tower_burnt_by_its_rate" else 0.05
    opt = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.MultiStepLR(opt, [100, 140], gamma=0.3)
    loss = torch.zeros(())
    for _ in range(steps):
        at = torch.randint(0, 2600, (64,))
        loss = nn.functional.cross_entropy(net(x[at]), y[at])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
    with torch.no_grad():
        out = net(x[2600:])
    bad = not bool(out.isfinite().all())
    accuracy = 1 / PATTERNS if bad else (out.argmax(1) == y[2600:]).float().mean().item()
    return {"loss": loss.item() if loss.isfinite() else 1e9, "accuracy": accuracy}


embroidery_tower.mistake(
    "tower_standard_normal",
    "WGT003", "GRD002", "OPT001", "UPD001", "NUM001", "NUM002", "NUM004", "ACT001", "NUM003",
    summary="Weights drawn with a standard deviation of one: every layer multiplies by seven.",
    change="He initialisation",
)  # fmt: skip
embroidery_tower.mistake(
    "tower_burnt_by_its_rate",
    "OPT007", "ACT001", "UPD001", "OPT001", "OPT005", "GRD002", "GRD006", "OPT003",
    summary="A learning rate of 0.3: within a few steps nine in ten units of the inner layers are dead.",
    change="a rate of 0.05",
)  # fmt: skip
embroidery_tower.mistake(
    "tower_second_layer_sunk",
    "ACT001", "GRD004", "WGT003",
    summary="The second layer's biases start at minus four: none of its units ever speaks.",
    change="biases of zero",
    layers=("layers.1",),
)  # fmt: skip


@program(steps=150, adversarial="nine in ten activations are zero: dead units")
def embroidery_sparse_code(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A wide hidden layer of which only the 24 largest of 256 units pass, in other samples other ones."""
    torch.manual_seed(seed)
    x, y = charts(seed, 2000)
    inp, out = nn.Linear(256, 256), nn.Linear(256, PATTERNS)
    opt = torch.optim.Adam([*inp.parameters(), *out.parameters()], lr=2e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        at = torch.randint(0, 2000, (64,))
        h = torch.relu(inp(x[at].flatten(1)))
        floor = h.topk(24, dim=1).values[:, -1:]
        loss = nn.functional.cross_entropy(out(h * (h >= floor)), y[at])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


@program(steps=150, adversarial="gradients differ by decades between blocks, and some are zero at first: vanishing")
def embroidery_layer_scale(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Ten blocks with a gain of 1e-4 on each branch, which the training raises; stochastic depth of a tenth."""
    torch.manual_seed(seed)
    x, y = charts(seed, 2000)
    model = Sampler(blocks=10)
    gains = nn.ParameterList(nn.Parameter(torch.full((24,), 1e-4)) for _ in range(10))
    opt = torch.optim.AdamW([*model.parameters(), *gains], lr=4e-3)
    losses: list[float] = []
    for _ in range(steps):
        at = torch.randint(0, 2000, (48,))
        h = model.patch(x[at].view(48, 16, -1))
        for block, gain in zip(model.blocks, gains):
            if torch.rand(()) > 0.1:
                h = h + gain * (block(h) - h)
        loss = nn.functional.cross_entropy(model.head(model.norm(h).mean(1)), y[at])
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return {"loss": sum(losses[-5:]) / min(5, steps)}
