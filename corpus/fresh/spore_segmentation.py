"""Where are the spores? Masks for small microscope pictures: an encoder and decoder with skips, and a plain one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import healthy, program


def spore_slides(count: int, seed: int, spores: int = 3) -> tuple[Tensor, Tensor]:
    """Round spores with a dark rim over a grainy ground that is brighter on one side."""
    rng = torch.Generator().manual_seed(seed)
    grid = torch.arange(20.0)
    rows, columns = grid[:, None], grid[None, :]
    mask = torch.zeros(count, 20, 20)
    for _ in range(spores):
        top, left = 3 + 14 * torch.rand(2, count, 1, 1, generator=rng)
        size = 1.5 + 1.8 * torch.rand(count, 1, 1, generator=rng)
        mask = torch.maximum(mask, ((rows - top) ** 2 + (columns - left) ** 2 < size**2).float())
    shade = 0.06 * columns * torch.randn(count, 1, 1, generator=rng)
    slide = 1.3 * mask + shade + 0.6 * torch.randn(count, 20, 20, generator=rng)
    return slide[:, None], mask[:, None]


def conv_block(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU())


class SporeUNet(nn.Module):
    def __init__(self, sigmoid: bool = False, clamp: bool = False) -> None:
        super().__init__()
        self.down1, self.down2 = conv_block(1, 8), conv_block(8, 16)
        self.bottom = conv_block(16, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.merge = conv_block(16, 8)
        self.mask = nn.Conv2d(8, 1, 1)
        self.last: nn.Module = nn.Sigmoid() if sigmoid else nn.ReLU() if clamp else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        deep = self.bottom(self.down2(fn.max_pool2d(first, 2)))
        return self.last(self.mask(self.merge(torch.cat([first, self.up(deep)], 1))))


def soft_dice(logits: Tensor, mask: Tensor) -> Tensor:
    share = logits.sigmoid()
    overlap = (share * mask).sum((1, 2, 3))
    return 1 - ((2 * overlap + 1) / (share.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)).mean()


@torch.no_grad()
def spore_iou(net: nn.Module, seed: int, cut: float = 0.0, spores: int = 3) -> float:
    x, mask = spore_slides(200, seed + 7000, spores)
    found = (net.eval()(x) > cut).float()
    return ((found * mask).sum() / torch.maximum(found, mask).sum()).item()


@program(steps=160, bites="error")
def spore_hunt(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Cross-entropy and dice in equal parts by Adam; slides are mirrored at random, and their masks with them."""
    torch.manual_seed(seed)
    x, mask = spore_slides(600, seed)
    net = SporeUNet(sigmoid=fault == "spore_sigmoid_twice", clamp=fault == "spore_relu_on_the_mask")
    if fault == "spore_relu_on_the_mask":
        nn.init.constant_(net.mask.bias, -4.6)  # the usual prior of a rare foreground
    opt = torch.optim.Adam(net.parameters(), lr=4e-3)
    net.train()
    total = 0.0
    for _ in range(steps):
        pick = torch.randint(600, (12,))
        slides, masks = x[pick], mask[pick]
        flip = torch.rand(12, 1, 1, 1) < 0.5
        slides = torch.where(flip, slides.flip(3), slides)
        if fault != "spore_mirrored_without_mask":
            masks = torch.where(flip, masks.flip(3), masks)
        if fault == "spore_worker_shuffles_masks":
            masks = masks[torch.randperm(12)]
        out = net(slides)
        loss = fn.binary_cross_entropy_with_logits(out, masks) + soft_dice(out, masks)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total = loss.item()
    return {"loss": total, "error": 1 - spore_iou(net, seed, 0.5 if fault == "spore_sigmoid_twice" else 0.0)}


spore_hunt.mistake(
    "spore_sigmoid_twice",
    "LSS001",
    summary="The network ends in a sigmoid, and both losses take another one of it.",
    change="logits into binary_cross_entropy_with_logits",
    layers=("last",),
    bites="loss",
)
spore_hunt.mistake(
    "spore_relu_on_the_mask",
    "ACT001", "GRD004",
    summary="A ReLU stands on the mask's logits, whose bias starts at the log odds of a rare spore: it never opens.",
    change="no activation on the logits",
    layers=("last", "mask"),
)  # fmt: skip
spore_hunt.mistake(
    "spore_mirrored_without_mask",
    "DAT004",
    summary="Every other slide is mirrored at random and its mask is not.",
    change="mirror both",
    bites="loss",
)
spore_hunt.mistake(
    "spore_worker_shuffles_masks",
    "DAT004", "OPT005",
    summary="Slides and masks come from two loaders that shuffle on their own: each mask belongs to another slide.",
    change="one data set of pairs",
)  # fmt: skip


class SporeStack(nn.Module):
    """No skips: strided convolutions down, transposed ones up."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2, 1), nn.BatchNorm2d(16, eps=eps), nn.LeakyReLU(0.1),
            nn.Conv2d(16, 24, 3, 1, 1), nn.BatchNorm2d(24, eps=eps), nn.LeakyReLU(0.1),
        )  # fmt: skip
        self.decoder = nn.Sequential(nn.ConvTranspose2d(24, 12, 4, 2, 1), nn.ReLU(), nn.Conv2d(12, 1, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


def spore_parameter_groups(net: SporeStack, fault: str) -> list[dict[str, object]]:
    groups: list[dict[str, object]] = [{"params": net.encoder.parameters(), "lr": 0.05}]
    if fault == "spore_decoder_left_out":
        return groups
    return [*groups, {"params": net.decoder.parameters(), "lr": 0.05, "weight_decay": 1e-4}]


@program(steps=200, bites="loss")
def spore_census(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Strided convolutions by SGD with momentum in two groups; spores are rare and weigh four times as much."""
    torch.manual_seed(seed)
    x, mask = spore_slides(800, seed)
    eps = 1e3 if fault == "spore_norm_of_a_thousand" else 1e-5
    net = SporeStack(eps).train()
    optimizer = torch.optim.SGD(spore_parameter_groups(net, fault), lr=0.05, momentum=0.9)
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(4.0))
    late = 0.0
    for _ in range(steps):
        pick = torch.randint(len(x), (16,))
        loss = criterion(net(x[pick]), mask[pick])
        net.zero_grad()
        loss.backward()
        optimizer.step()
        late += 0.08 * (loss.item() - late)
    return {"loss": late, "error": 1 - spore_iou(net, seed)}


spore_census.mistake(
    "spore_decoder_left_out",
    "UPD003",
    summary="Only the encoder's group reaches the optimizer: the decoder stays as it was drawn.",
    change="both groups",
    layers=("decoder",),
)
spore_census.mistake(
    "spore_norm_of_a_thousand",
    "MOD002",
    summary="eps of the batch norms was typed as 1e3 for 1e-3: they divide by thirty-two, whatever comes.",
    change="eps=1e-3",
    layers=("encoder.1", "encoder.4"),
)


@healthy(steps=160, architecture="unet", adversarial="a loss near its floor from the start is not learning")
def spore_rare_focal(steps: int, seed: int) -> dict[str, float]:
    """One small spore a slide and the focal loss: numbers are tiny from the first step on."""
    torch.manual_seed(seed)
    x, mask = spore_slides(600, seed, spores=1)
    net = SporeUNet()
    nn.init.constant_(net.mask.bias, -3.0)
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3)
    late = 0.0
    for _ in range(steps):
        pick = torch.randint(600, (12,))
        out = net(x[pick])
        plain = fn.binary_cross_entropy_with_logits(out, mask[pick], reduction="none")
        loss = ((1 - (-plain).exp()) ** 2 * plain).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        late = loss.item()
    return {"loss": late, "error": 1 - spore_iou(net, seed, -0.5, spores=1)}


@healthy(steps=180, architecture="unet", adversarial="a part without gradient is cut off")
def spore_second_opinion(steps: int, seed: int) -> dict[str, float]:
    """A second head at low resolution helps for the first hundred steps, and is then no longer asked."""
    torch.manual_seed(seed)
    x, mask = spore_slides(600, seed)
    net = SporeUNet()
    coarse = nn.Conv2d(16, 1, 1)
    kept: list[Tensor] = []
    net.bottom.register_forward_hook(lambda _module, _inputs, output: kept.append(output))
    opt = torch.optim.Adam([{"params": net.parameters()}, {"params": coarse.parameters(), "lr": 1e-3}], lr=3e-3)
    loss = torch.zeros(())
    for step in range(steps):
        kept.clear()
        pick = torch.randint(600, (12,))
        out = net(x[pick])
        loss = fn.binary_cross_entropy_with_logits(out, mask[pick]) + soft_dice(out, mask[pick])
        if step < 100:
            loss = loss + 0.4 * fn.binary_cross_entropy_with_logits(coarse(kept[0]), fn.avg_pool2d(mask[pick], 2))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item(), "error": 1 - spore_iou(net, seed)}
