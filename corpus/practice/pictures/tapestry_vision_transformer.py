"""Who wove the tapestry? Small vision transformers over woven patterns, made of torch's own encoder layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from corpus.case import program

SIDE, PATCH, WEAVERS, DIM = 12, 3, 5, 32


def cloth(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Each weaver has an angle and a thread count; the light differs from cloth to cloth."""
    gen = torch.Generator().manual_seed(88_000 + seed)
    weaver = torch.randint(WEAVERS, (count,), generator=gen)
    row, column = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    angle = weaver[:, None, None] * 0.6 + 0.15 * torch.randn(count, 1, 1, generator=gen)
    thread = 1.2 + 0.25 * (weaver[:, None, None] % 2)
    shift = 6.28 * torch.rand(count, 1, 1, generator=gen)
    image = torch.sin(thread * (row * angle.cos() + column * angle.sin()) + shift)
    image = image * (0.7 + 0.6 * torch.rand(count, 1, 1, generator=gen))
    return image + 0.35 * torch.randn(count, SIDE, SIDE, generator=gen), weaver


class ClothTransformer(nn.Module):
    def __init__(self, drop: float = 0.1, layers: int = 2) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, DIM, PATCH, stride=PATCH)
        self.place = nn.Parameter(0.02 * torch.randn(1, (SIDE // PATCH) ** 2, DIM))
        layer = nn.TransformerEncoderLayer(DIM, 4, 64, dropout=drop, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(DIM)
        self.weaver = nn.Linear(DIM, WEAVERS)

    def features(self, image: Tensor) -> Tensor:
        tokens = self.patch(image[:, None]).flatten(2).transpose(1, 2) + self.place
        return self.norm(self.encoder(tokens)).mean(1)

    def forward(self, image: Tensor) -> Tensor:
        return self.weaver(self.features(image))


def judge(model: nn.Module, seed: int) -> dict[str, float]:
    image, weaver = cloth(seed + 5000, 300)
    model.eval()
    with torch.no_grad():
        scores = model(image)
    late = nn.functional.cross_entropy(scores, weaver).item()
    return {"late": late, "accuracy": (scores.argmax(1) == weaver).float().mean().item()}


@program(steps=150, bites="accuracy")
def tapestry_weavers(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A vision transformer of two blocks, AdamW, decay on matrices only."""
    torch.manual_seed(seed)
    image, weaver = cloth(seed, 1500)
    if fault == "tapestry_labels_guessed":
        guessed = torch.rand(1500) < 0.6
        weaver = torch.where(guessed, torch.randint(WEAVERS, (1500,)), weaver)
    model = ClothTransformer(drop=0.95 if fault == "tapestry_threads_mostly_cut" else 0.1)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    gains = [p for p in model.parameters() if p.ndim < 2]
    gain_decay = 60.0 if fault == "tapestry_gains_decay" else 0.0
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": gains, "weight_decay": gain_decay}], lr=3e-3
    )
    loss = torch.tensor(0.0)
    for step in range(steps):
        if fault == "tapestry_warmed_up_again" and step == 90:
            for group in optimizer.param_groups:
                group["lr"] = 0.15  # the restarted schedule took its peak from another optimizer
        rows = torch.randint(1500, (32,))
        loss = nn.functional.cross_entropy(model(image[rows]), weaver[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), **judge(model, seed)}


tapestry_weavers.mistake(
    "tapestry_labels_guessed",
    "DAT004", "OPT002", "GRD008",
    summary="Six labels in ten were filled in by guessing.",
    change="leave cloths without a known weaver out",
    bites="late",
)  # fmt: skip
tapestry_weavers.mistake(
    "tapestry_threads_mostly_cut",
    "MOD001", "GRD008", "OPT005", "OPT002",
    summary="Dropout of 0.95, meant as the share to keep, in every block.",
    change="0.05",
    layers=("encoder",),
    bites="late",
)  # fmt: skip
GAINS = ("norm1", "norm2", "linear1.bias", "linear2.bias", "self_attn.in_proj_bias", "self_attn.out_proj.bias")
tapestry_weavers.mistake(
    "tapestry_gains_decay",
    "OPT008", "WGT005", "ACT003",
    summary="Gains and biases have a weight decay of 60: the normalisations fade to nothing.",
    change="no decay on gains and biases",
    layers=(
        "norm", "patch.bias", "weaver.bias",
        *(f"encoder.layers.{i}.{part}" for i in (0, 1) for part in GAINS),
    ),
)  # fmt: skip
tapestry_weavers.mistake(
    "tapestry_warmed_up_again",
    "OPT007", "UPD001", "OPT003", "OPT001", "GRD006",
    summary="At step 90 a restarted schedule sets a rate fifty times as high.",
    change="go on with the old schedule",
    onset=90,
)  # fmt: skip


@program(
    steps=150,
    adversarial="branches with almost no gradient are dead: they start at a scale of 1e-4 and are skipped at times",
)
def tapestry_branches_from_little(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Residual convolutions with layer scale and stochastic depth."""
    torch.manual_seed(seed)
    image, weaver = cloth(20 + seed, 1500)

    class Branch(nn.Module):
        def __init__(self, skip: float) -> None:
            super().__init__()
            self.skip = skip
            self.conv = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.GELU())
            self.scale = nn.Parameter(torch.full((16, 1, 1), 1e-4))

        def forward(self, x: Tensor) -> Tensor:
            if self.training and torch.rand(()) < self.skip:
                return x
            return x + self.scale * self.conv(x)

    model = nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=2, padding=1), nn.GELU(), Branch(0.1), Branch(0.2), Branch(0.3),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, WEAVERS),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(1500, (48,))
        loss = nn.functional.cross_entropy(model(image[rows][:, None]), weaver[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    test, truth = cloth(5020 + seed, 300)
    with torch.no_grad():
        accuracy = (model(test[:, None]).argmax(1) == truth).float().mean().item()
    return {"loss": loss.item(), "accuracy": accuracy}


class SignDescent(torch.optim.Optimizer):
    """Lion, by hand."""

    def __init__(self, params: list[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                p.add_((0.9 * mean + 0.1 * p.grad).sign(), alpha=-group["lr"])
                mean.lerp_(p.grad, 0.01)


@program(steps=150, adversarial="all updates of one size mean an optimizer without state: it steps by sign, on purpose")
def tapestry_by_sign(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A sign optimizer of one's own, and blocks recomputed in the backward pass."""
    torch.manual_seed(seed)
    image, weaver = cloth(40 + seed, 1500)
    model = ClothTransformer(drop=0.0)
    optimizer = SignDescent(list(model.parameters()), lr=7e-4)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(1500, (32,))
        feature = checkpoint(model.features, image[rows], use_reentrant=False)
        assert isinstance(feature, Tensor)
        loss = nn.functional.cross_entropy(model.weaver(feature), weaver[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), **judge(model, 40 + seed)}


@program(
    steps=150, adversarial="a loss that starts far above ln C is badly initialised: cosines times sixteen with a margin"
)
def tapestry_by_angle(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Cosine scores with an additive margin for the right weaver."""
    torch.manual_seed(seed)
    image, weaver = cloth(60 + seed, 1500)
    model = ClothTransformer(drop=0.0, layers=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    hits, loss = 0.0, torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(1500, (32,))
        direction = nn.functional.normalize(model.features(image[rows]), dim=1)
        cosine = direction @ nn.functional.normalize(model.weaver.weight, dim=1).T
        hits = (cosine.argmax(1) == weaver[rows]).float().mean().item()
        margin = 0.2 * nn.functional.one_hot(weaver[rows], WEAVERS)
        loss = nn.functional.cross_entropy(16 * (cosine - margin), weaver[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": hits}
