"""Short reports are sorted by subject with PyTorch's own encoder layers; weights in single precision, work in bf16."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program
from corpus.gpu.sizes import EMBER

WORDS = 40  # of each subject


class EmberEncoder(nn.Module):
    def __init__(self, words: int, width: int, depth: int, subjects: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(
            width, max(2, width // 64), 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.subject = nn.Linear(width, subjects)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2 and name != "words.weight":
                nn.init.orthogonal_(parameter)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, report: Tensor) -> Tensor:
        return self.subject(self.norm(self.encoder(self.words(report)).mean(1)))


class Reports:
    """Most words of a report are of any subject; every fourth is of its own."""

    def __init__(self, subjects: int, length: int, seed: int, device: torch.device) -> None:
        self.dice = torch.Generator(device).manual_seed(seed)
        self.subjects, self.length = subjects, length
        self.spelling = torch.randperm(subjects * WORDS, generator=self.dice, device=device)

    def batch(self, count: int) -> tuple[Tensor, Tensor]:
        device, shape = self.spelling.device, (count, self.length)
        subject = torch.randint(self.subjects, (count,), generator=self.dice, device=device)
        about = torch.randint(self.subjects, shape, generator=self.dice, device=device)
        own = torch.rand(shape, generator=self.dice, device=device) < 0.25
        about = torch.where(own, subject.unsqueeze(1), about)
        word = torch.randint(WORDS, shape, generator=self.dice, device=device)
        return self.spelling[about * WORDS + word], subject


@program(steps=EMBER.steps, bites="accuracy")
def ember_encoder(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A transformer encoder sorts short reports by their subject."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    reports = Reports(EMBER.kinds, EMBER.length, seed, device)
    model = EmberEncoder(EMBER.kinds * WORDS, EMBER.width, EMBER.depth, EMBER.kinds).to(device)
    if mistake == "ember_encoder_halved":
        model = model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=EMBER.rate, weight_decay=0.0)

    def judge(count: int) -> tuple[Tensor, Tensor]:
        report, subject = reports.batch(count)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(report).float()
        return functional.cross_entropy(logits, subject), (logits.argmax(1) == subject).float().mean()

    model.train()
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = EMBER.rate * min(1.0, (step + 1) / 40)
        loss, _ = judge(EMBER.batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        loss, accuracy = judge(1024)
    return {"loss": loss.item() if math.isfinite(loss.item()) else 20.0, "accuracy": accuracy.item()}


ember_encoder.mistake(
    "ember_encoder_halved",
    "UPD002", "UPD003",
    summary="The weights themselves are bf16, where so small a rate rounds nearly all updates away.",
    change="weights of single precision",
)  # fmt: skip
