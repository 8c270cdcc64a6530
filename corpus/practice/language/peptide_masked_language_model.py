"""Short peptides with some residues hidden: a small encoder whose readout shares the table of the embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program

RESIDUES, HIDDEN_TOKEN, LENGTH = 20, 20, 18


@dataclass
class Config:
    width: int = 32
    heads: int = 4
    depth: int = 2
    lr: float = 4e-3
    warmup: int = 20
    weight_decay: float = 0.01
    batch: int = 48


def draw_peptides(count: int, rng: torch.Generator) -> Tensor:
    """Chains in which a residue nearly always decides the next one."""
    follows = torch.randperm(RESIDUES, generator=torch.Generator().manual_seed(99))
    chain = [torch.randint(RESIDUES, (count,), generator=rng)]
    for _ in range(LENGTH - 1):
        surprise = torch.rand(count, generator=rng) < 0.05
        chain.append(torch.where(surprise, torch.randint(RESIDUES, (count,), generator=rng), follows[chain[-1]]))
    return torch.stack(chain, 1)


def hide(tokens: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    hidden = torch.rand(tokens.shape, generator=rng) < 0.2
    return tokens.masked_fill(hidden, HIDDEN_TOKEN), tokens.masked_fill(~hidden, -100)


class SelfAttention(nn.Module):
    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.heads = cfg.heads
        self.query = nn.Linear(cfg.width, cfg.width)
        self.key = nn.Linear(cfg.width, cfg.width)
        self.value = nn.Linear(cfg.width, cfg.width)
        self.out = nn.Linear(cfg.width, cfg.width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (layer(x).view(b, t, self.heads, -1).transpose(1, 2) for layer in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / math.sqrt(c // self.heads)
        mixed = torch.softmax(scores, dim=-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(b, t, c))


class Layer(nn.Module):
    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(cfg.width), nn.LayerNorm(cfg.width)
        self.attention = SelfAttention(cfg)
        self.feed = nn.Sequential(nn.Linear(cfg.width, 64), nn.GELU(), nn.Linear(64, cfg.width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class PeptideEncoder(nn.Module):
    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.residues = nn.Embedding(RESIDUES + 1, cfg.width)
        self.places = nn.Embedding(LENGTH, cfg.width)
        nn.init.normal_(self.residues.weight, std=0.2)
        nn.init.normal_(self.places.weight, std=0.2)
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg.depth))
        self.norm = nn.LayerNorm(cfg.width)
        self.transform = nn.Linear(cfg.width, cfg.width)
        self.readout = nn.Linear(cfg.width, RESIDUES + 1, bias=False)
        self.readout.weight = self.residues.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.residues(tokens) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return self.readout(functional.gelu(self.transform(self.norm(x))))


def groups_of(model: PeptideEncoder, cfg: Config, fault: str) -> list[dict[str, object]]:
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    if fault == "peptide_decay_on_the_small_ones":  # the two lists were swapped, and the decay is the one of a sweep
        return [{"params": decayed, "weight_decay": 0.0}, {"params": plain, "weight_decay": 8.0}]
    if fault == "peptide_transform_rate_of_nothing":
        slow = [*model.transform.parameters(), *model.layers[0].parameters()]
        ids = {id(p) for p in slow}
        rest = [p for p in model.parameters() if id(p) not in ids]
        return [{"params": rest}, {"params": slow, "lr": cfg.lr * 1e-5, "scale": 1e-5}]
    return [{"params": decayed, "weight_decay": cfg.weight_decay}, {"params": plain, "weight_decay": 0.0}]


@program(steps=160, bites="accuracy")
def peptides(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A pre-norm encoder fills hidden residues, AdamW in two groups with a linear warm-up, tied table."""
    cfg = Config()
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed + 1)
    model = PeptideEncoder(cfg)
    if fault == "peptide_readout_cloned":
        model.readout.weight = nn.Parameter(model.residues.weight.clone())
    if fault == "peptide_sharp_first_layer":
        first = model.layers[0]
        assert isinstance(first, Layer)
        nn.init.normal_(first.attention.query.weight, std=2.0)
        nn.init.normal_(first.attention.key.weight, std=2.0)
    optimizer = torch.optim.AdamW(groups_of(model, cfg, fault), lr=cfg.lr, betas=(0.9, 0.98))
    first_loss, loss = math.nan, torch.tensor(0.0)
    for step in range(steps):
        rate = cfg.lr * min(1.0, (step + 1) / cfg.warmup)
        if fault == "peptide_no_warm_up":
            rate = 0.03
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("scale", 1.0)
        if fault == "peptide_untied_when_resumed" and step == 70:  # a new tensor, unknown to the optimizer
            model.readout.weight = nn.Parameter(model.readout.weight.detach().clone())
        inputs, targets = hide(draw_peptides(cfg.batch, rng), rng)
        loss = functional.cross_entropy(model(inputs).transpose(1, 2), targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        first_loss = loss.item() if step == 0 else first_loss
    inputs, targets = hide(draw_peptides(256, rng), rng)
    with torch.no_grad():
        known = targets != -100
        accuracy = (model(inputs).argmax(-1) == targets)[known].float().mean().item()
        apart = (model.readout.weight - model.residues.weight).norm() / model.residues.weight.norm()
    return {"loss": loss.item(), "first": first_loss, "accuracy": accuracy, "apart": apart.item()}


peptides.mistake(
    "peptide_readout_cloned",
    "WGT006",
    summary="The readout gets a clone of the table instead of the table: the two drift apart from the first step.",
    change="assign the parameter itself",
    layers=("readout", "residues"),
    bites="apart",
    silent=True,
)
peptides.mistake(
    "peptide_untied_when_resumed",
    "UPD003", "WGT006", "GRD007",
    summary="At step 70 the readout is restored as a parameter of its own: no optimizer holds it, and it stands still.",
    change="load into the existing parameter",
    layers=("readout", "residues"),
    onset=70,
    bites="apart",
    silent=True,
)  # fmt: skip
peptides.mistake(
    "peptide_decay_on_the_small_ones",
    "OPT008", "WGT005",
    summary="The lists of decayed and plain parameters are swapped: gains and biases shrink by three per cent a step.",
    change="decay the matrices, mildly",
    layers=("norm", *(f"layers.{i}.norm{j}" for i in range(2) for j in (1, 2)), "layers.0.feed.0.bias",
            "layers.1.feed.0.bias", "layers.0.feed.2.bias", "layers.1.feed.2.bias", "transform.bias",
            *(f"layers.{i}.attention.{p}.bias" for i in range(2) for p in ("query", "key", "value", "out"))),
)  # fmt: skip
peptides.mistake(
    "peptide_transform_rate_of_nothing",
    "UPD002", "OPT007", "UPD003",
    summary="The group of the transform and the first layer has a rate a hundred thousand times too low.",
    change="the same rate for all groups",
    layers=("transform", "layers.0"),
)  # fmt: skip
peptides.mistake(
    "peptide_no_warm_up",
    "OPT007", "UPD001", "OPT001", "OPT003", "OPT004", "GRD005",
    summary="The encoder starts at a rate of 0.03 without a warm-up and never recovers.",
    change="warm up to 4e-3",
)  # fmt: skip
peptides.mistake(
    "peptide_sharp_first_layer",
    "ACT004", "WGT003",
    summary="Queries and keys of the first layer are drawn with a deviation of two: each place sees one other only.",
    change="the default initialisation",
    layers=("layers.0.attention",),
)  # fmt: skip


@program(steps=140, bites="accuracy", adversarial="an embedding row, or a key's bias, whose gradient is zero for ever")
def peptide_with_blanks(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Peptides of unequal length, padded: the padding's row never gets a gradient; encoder layers from torch."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed + 7)
    table = nn.Embedding(RESIDUES + 1, 32, padding_idx=RESIDUES)
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=False), 2,
        enable_nested_tensor=False,
    )  # fmt: skip
    head = nn.Linear(32, 2)
    model = nn.ModuleDict({"table": table, "encoder": encoder, "head": head})
    optimizer = torch.optim.RAdam(model.parameters(), lr=2e-3)
    first_loss, loss, accuracy = math.nan, torch.tensor(0.0), 0.0
    for step in range(steps):
        tokens = draw_peptides(48, rng)
        sizes = torch.randint(6, LENGTH + 1, (48,), generator=rng)
        blank = torch.arange(LENGTH) >= sizes[:, None]
        acid = ((tokens == 3) | (tokens == 7) | (tokens == 12)) & ~blank
        label = acid.any(1).long()
        hidden = encoder(table(tokens.masked_fill(blank, RESIDUES)), src_key_padding_mask=blank)
        logits = head((hidden * ~blank[..., None]).sum(1) / sizes[:, None])
        loss = functional.cross_entropy(logits, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first_loss = loss.item() if step == 0 else first_loss
        accuracy = (logits.argmax(1) == label).float().mean().item()
    return {"loss": loss.item(), "first": first_loss, "accuracy": accuracy}


@program(steps=140, bites="accuracy", adversarial="table and readout of one shape that differ")
def peptide_two_tables_on_purpose(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An untied model: the readout has the shape of the table but is a matrix of its own, drawn by itself."""
    cfg = Config(depth=1, lr=3e-3)
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed + 2)
    model = PeptideEncoder(cfg)
    model.readout = nn.Linear(cfg.width, RESIDUES + 1)
    optimizer = torch.optim.NAdam(model.parameters(), lr=cfg.lr)
    first_loss, loss, accuracy = math.nan, torch.tensor(0.0), 0.0
    for step in range(steps):
        inputs, targets = hide(draw_peptides(cfg.batch, rng), rng)
        logits = model(inputs)
        loss = functional.cross_entropy(logits.transpose(1, 2), targets, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first_loss = loss.item() if step == 0 else first_loss
        accuracy = (logits.argmax(-1) == targets)[targets != -100].float().mean().item()
    return {"loss": loss.item(), "first": first_loss, "accuracy": accuracy}
