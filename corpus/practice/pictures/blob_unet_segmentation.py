"""A small U-Net that paints three kinds of blobs; script style, everything in one configuration."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from corpus.case import program

CFG = {"lr": 2e-3, "batch_size": 8, "base": 8, "size": 16}


def make_batch(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures with a bright disc and a dark square on noise, and the class of every pixel."""
    size = CFG["size"]
    ys, xs = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    centres = torch.randint(3, int(size) - 3, (n, 4), generator=generator)[:, :, None, None]
    disc = (ys - centres[:, 0]) ** 2 + (xs - centres[:, 1]) ** 2 <= 6
    square = ((ys - centres[:, 2]).abs() <= 2) & ((xs - centres[:, 3]).abs() <= 2) & ~disc
    mask = disc.long() + 2 * square.long()
    image = disc.float() - square.float() + 0.4 * torch.randn(n, int(size), int(size), generator=generator)
    return image.unsqueeze(1), mask


def conv_block(c_in: int, c_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(c_in, c_out, 3, padding=1), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, base: int, final_relu: bool) -> None:
        super().__init__()
        self.enc1, self.enc2 = conv_block(1, base), conv_block(base, 2 * base)
        self.mid = conv_block(2 * base, 2 * base)
        self.up = nn.ConvTranspose2d(2 * base, base, 2, stride=2)
        self.dec1 = conv_block(2 * base, base)
        head: list[nn.Module] = [nn.Conv2d(base, 3, 1)]
        if final_relu:
            head.append(nn.ReLU())
        self.head = nn.Sequential(*head)

    def forward(self, x: Tensor) -> Tensor:
        e1 = self.enc1(x)
        e2 = self.enc2(F.max_pool2d(e1, 2))
        d1 = self.dec1(torch.cat([self.up(self.mid(e2)), e1], dim=1))
        return self.head(d1)


@torch.no_grad()
def evaluate(net: UNet, generator: torch.Generator) -> float:
    """Mean accuracy over the three classes: most pixels are background."""
    net.eval()
    image, mask = make_batch(64, generator)
    guess = net(image).argmax(1)
    return torch.stack([(guess[mask == c] == c).float().mean() for c in range(3)]).mean().item()


@program(steps=120, bites="accuracy")
def blob_segmentation(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A U-Net with batch norm, validated every 30 steps."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed)
    net = UNet(int(CFG["base"]), final_relu=fault == "rectified_class_scores")
    if fault == "rectified_class_scores":
        nn.init.constant_(net.get_parameter("head.0.bias"), -3.0)
    opt = torch.optim.Adam(net.parameters(), lr=CFG["lr"])
    moved, before = 0.0, torch.zeros(1)
    loss = torch.tensor(0.0)
    net.train()
    for it in range(steps):
        image, mask = make_batch(int(CFG["batch_size"]), gen)
        out = net(image)
        if fault == "log_softmax_over_columns":
            loss = F.nll_loss(F.log_softmax(out, dim=-1), mask)
        else:
            loss = F.cross_entropy(out, mask)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        running = net.get_buffer("mid.1.running_mean")
        moved, before = float((running != before).any()), running.clone()
        if it % 30 == 29 and it < steps - 1:
            evaluate(net, torch.Generator().manual_seed(99))
            if fault != "norms_stay_in_eval_after_validation":
                net.train()
    return {"loss": loss.item(), "norm_moved": moved, "accuracy": evaluate(net, torch.Generator().manual_seed(99))}


_NORMS = ("enc1", "enc2", "mid", "dec1")

blob_segmentation.mistake(
    "norms_stay_in_eval_after_validation",
    "MOD001",
    summary="The first validation calls `eval()` and nobody calls `train()` again: batch norm stands still from there.",
    change="call net.train() after every validation",
    layers=_NORMS,
    onset=30,
    bites="norm_moved",
    silent=True,
)
blob_segmentation.mistake(
    "log_softmax_over_columns",
    "LSS001", "LSS003", "OPT005",
    summary="log_softmax runs over the picture's columns instead of the classes before nll_loss.",
    change="log_softmax over dim 1",
)  # fmt: skip
blob_segmentation.mistake(
    "rectified_class_scores",
    "ACT001", "GRD004",
    summary="A ReLU stands behind the last convolution, whose bias starts at −3: no class ever gets a score.",
    change="remove the ReLU behind the head",
    layers=("head",),
)  # fmt: skip
