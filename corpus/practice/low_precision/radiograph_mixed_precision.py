"""Mixed precision as in the tutorials: autocast, a gradient scaler, a clip; shadows on small radiographs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program

SIDE = 16


def radiographs(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Ribs everywhere; on a half of the pictures a round shadow. Four findings: none, left, right, both."""
    rows = torch.arange(SIDE).float()
    ribs = torch.sin(rows[None, :, None] * 1.3 + 6 * torch.rand(n, 1, 1, generator=generator)).expand(n, SIDE, SIDE)
    finding = torch.randint(4, (n,), generator=generator)
    picture = 0.5 * ribs + 0.35 * torch.randn(n, SIDE, SIDE, generator=generator)
    for side, bit in ((4.0, 1), (12.0, 2)):
        column = side + torch.randn(n, 1, 1, generator=generator)
        row = 4 + 8 * torch.rand(n, 1, 1, generator=generator)
        spot = torch.exp(-((rows[None, None] - column) ** 2 + (rows[None, :, None] - row) ** 2) / 4)
        picture = picture + 1.3 * spot * ((finding & bit) > 0)[:, None, None]
    return picture[:, None], finding


def radiologist() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.SiLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.SiLU(),
        nn.Flatten(), nn.Linear(32 * 16, 48), nn.SiLU(), nn.Linear(48, 4),
    )  # fmt: skip


@torch.no_grad()
def reading(model: nn.Module, seed: int) -> float:
    x, y = radiographs(400, torch.Generator().manual_seed(300 + seed))
    return (model(x).argmax(1) == y).float().mean().item()


@program(steps=130, bites="accuracy")
def xray(steps: int, seed: int, fault: str) -> dict[str, float]:
    """bfloat16 autocast and a GradScaler, SGD with momentum, unscale, clip at two, two pieces per step."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = radiologist()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.014, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    pieces, size = (24, 10) if fault == "xray_pieces_piled_up" else (2, 24)
    loss = torch.zeros(())
    for step in range(steps):
        optimizer.zero_grad()
        if fault == "xray_fresh_momentum":
            optimizer = torch.optim.SGD(model.parameters(), lr=0.014, momentum=0.9)
        for _ in range(pieces):
            x, y = radiographs(size, generator)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                scores = model(x)
            loss = functional.cross_entropy(scores.float(), y)
            share = loss if fault == "xray_pieces_piled_up" else loss / pieces
            scaler.scale(share).backward()
        if fault != "xray_clips_the_scaled":
            scaler.unscale_(optimizer)
        limit = 1e-3 if fault == "xray_clip_tightened" and step >= 15 else 2.0
        if fault != "xray_pieces_piled_up":
            nn.utils.clip_grad_norm_(model.parameters(), limit)
        scaler.step(optimizer)
        scaler.update()
    return {"loss": loss.item() if loss.isfinite() else 1e6, "accuracy": reading(model, seed)}


xray.mistake(
    "xray_clips_the_scaled",
    "GRD010", "UPD002",
    summary="The clip comes before unscale_: a gradient sixteen thousand times as large is cut to two.",
    change="scaler.unscale_(optimizer) before the clip",
)  # fmt: skip
xray.mistake(
    "xray_clip_tightened",
    "GRD010", "UPD002",
    summary="From step 15 on the clip is a thousandth: a plan for stability that stops the learning.",
    change="keep the clip at two",
    onset=15,
)  # fmt: skip
xray.mistake(
    "xray_pieces_piled_up",
    "LSS004", "OPT007", "UPD001", "OPT001", "GRD002", "NUM001", "NUM002",
    summary="Twenty-four pieces make a step, without a division and without the clip.",
    change="divide by the number of pieces",
    steps=80,
)  # fmt: skip
xray.mistake(
    "xray_fresh_momentum",
    "OPT008",
    summary="The optimizer is made anew in every step: there is never any momentum.",
    change="make it once",
)


@program(steps=130, bites="accuracy", adversarial="the scaler throws steps away; gradients are infinite now and then")
def xray_scale_found(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The scale begins far too high, at 2 to the 127, and comes down by skipping the first steps."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = radiologist()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-8)
    loss = torch.zeros(())
    for _ in range(steps):
        x, y = radiographs(48, generator)
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return {"loss": loss.item(), "accuracy": reading(model, seed)}


@program(steps=130, bites="accuracy", adversarial="dropout is active in every evaluation")
def xray_second_opinions(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Monte-Carlo dropout: ten noisy readings are averaged, in looks at held-out pictures too."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = radiologist()
    model.insert(9, nn.Dropout(0.2))
    optimizer = torch.optim.NAdam(model.parameters(), lr=3e-3)
    loss = torch.zeros(())
    test = radiographs(200, torch.Generator().manual_seed(300 + seed))
    right = 0.0
    for step in range(steps):
        x, y = radiographs(48, generator)
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 39 or step == steps - 1:
            with torch.no_grad():
                opinions = torch.stack([model(test[0]).softmax(1) for _ in range(10)]).mean(0)
            right = (opinions.argmax(1) == test[1]).float().mean().item()
    return {"loss": loss.item(), "accuracy": right}


@program(steps=130, bites="accuracy", adversarial="a hook that multiplies gradients with a mask of mostly zeros")
def xray_sparse_update(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A pruned layer stays pruned: three quarters of a wide layer are zero, and so are their gradients."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = radiologist()
    layer = model[7]
    assert isinstance(layer, nn.Linear)
    wide = layer.weight
    mask = (torch.rand(wide.shape, generator=generator) < 0.25).float()
    with torch.no_grad():
        wide.mul_(2 * mask)
    wide.register_hook(lambda grad: grad * mask)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    loss = torch.zeros(())
    for _ in range(steps):
        x, y = radiographs(48, generator)
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": reading(model, seed)}


@program(steps=130, bites="accuracy", adversarial="the losses of the pieces are added, not averaged")
def xray_summed_pieces(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Six pieces whose losses are sums over pictures; the rate is small enough for that."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = radiologist()
    optimizer = torch.optim.SGD(model.parameters(), lr=6e-4, momentum=0.9)
    loss = torch.zeros(())
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(6):
            x, y = radiographs(8, generator)
            loss = functional.cross_entropy(model(x), y, reduction="sum")
            loss.backward()
        optimizer.step()
    return {"loss": loss.item() / 8, "accuracy": reading(model, seed)}
