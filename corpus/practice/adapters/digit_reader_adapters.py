"""Low-rank adapters on a frozen reader of digits: what people do with a model that somebody else has trained."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from torch import Tensor, nn

from corpus.case import program


class Patched(nn.Module):
    """A frozen linear layer with a low-rank patch."""

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.patch_in = nn.Linear(base.in_features, rank, bias=False)
        self.patch_out = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.patch_out.weight)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * self.patch_out(self.patch_in(x))


class Reader(nn.Module):
    """The frozen part is what an earlier training left: principal directions, then orthogonal mixing."""

    def __init__(self, images: Tensor, rank: int = 4, scale: float = 2.0) -> None:
        super().__init__()
        first, second = nn.Linear(64, 40), nn.Linear(40, 40)
        with torch.no_grad():
            first.weight.copy_(torch.tensor(PCA(40, random_state=0).fit(images.numpy()).components_) * 1.5)
            first.bias.copy_(-first.weight @ images.mean(0))
            nn.init.orthogonal_(second.weight, gain=1.6)
            second.bias.zero_()
        self.one, self.two = Patched(first, rank, scale), Patched(second, rank, scale)
        self.norm = nn.LayerNorm(40)
        self.head = nn.Linear(40, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(torch.tanh(self.two(torch.tanh(self.one(x))))))


def groups_of(model: Reader, fault: str) -> list[dict[str, object]]:
    head = list(model.head.parameters()) + list(model.norm.parameters())
    patches = [p for n, p in model.named_parameters() if "patch" in n]
    head_rate = {"patch_head_rate_zero": 0.0, "patch_head_a_millionth": 4e-9}.get(fault, 4e-3)
    decay = 60.0 if fault == "patch_decay_of_sixty" else 0.01
    return [
        {"params": patches, "lr": 4e-3, "weight_decay": decay},
        {"params": head, "lr": head_rate, "weight_decay": 0.0},
    ]


@program(steps=160, bites="accuracy")
def patchkit(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adapters and a new head on a frozen network; AdamW with a group for each."""
    torch.manual_seed(seed)
    pixels, digits = load_digits(return_X_y=True)
    x = torch.tensor(pixels, dtype=torch.float32) / 16
    y = torch.tensor(digits)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[:1300], order[1300:]
    if fault == "patch_labels_of_another_file":
        y = y.clone()
        y[train] = y[train][torch.randperm(1300)]
    if fault == "patch_folders_in_order":
        train = train[y[train].argsort()]
    model = Reader(x[train])
    optimizer = torch.optim.AdamW(groups_of(model, fault))  # type: ignore[arg-type]
    head_start = model.head.weight.detach().clone()
    model.train()
    loss = torch.tensor(0.0)
    for step in range(steps):
        if fault == "patch_folders_in_order":
            at = step * 48 % (1300 - 48)
            rows = train[at : at + 48]
        else:
            rows = train[torch.randint(1300, (48,))]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        accuracy = (model(x[test]).argmax(1) == y[test]).float().mean().item()
        patch = sum(float(p.norm()) for n, p in model.named_parameters() if "patch" in n)
    moved = (model.head.weight - head_start).norm().item()
    return {"accuracy": accuracy, "loss": loss.item(), "head_moved": moved, "patch": patch}


patchkit.mistake(
    "patch_decay_of_sixty",
    "OPT008", "WGT005",
    summary="The weight decay of the patches is 60: they are melted as fast as they are learned.",
    change="0.01",
    layers=("one.patch_in", "one.patch_out", "two.patch_in", "two.patch_out"),
    bites="patch",
    silent=True,
)  # fmt: skip
patchkit.mistake(
    "patch_head_rate_zero",
    "UPD003", "OPT007", "UPD002",
    summary="The head's group has a rate of zero, left over from a first phase with a fixed head.",
    change="give it a rate",
    layers=("head", "norm"),
    bites="head_moved",
    silent=True,
)  # fmt: skip
patchkit.mistake(
    "patch_head_a_millionth",
    "UPD002", "OPT007", "UPD003",
    summary="The head's rate is scaled by a millionth instead of a multiplier of one.",
    change="the same rate as the patches",
    layers=("head", "norm"),
    bites="head_moved",
    silent=True,
)  # fmt: skip
patchkit.mistake(
    "patch_labels_of_another_file",
    "DAT004", "OPT005", "OPT006",
    summary="The labels come from a file in another order: they belong to other pictures.",
    change="join pictures and labels by name",
)  # fmt: skip
patchkit.mistake(
    "patch_folders_in_order",
    "DAT005",
    summary="The pictures are read folder by folder, one class after the other.",
    change="shuffle",
)
