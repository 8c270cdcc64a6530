"""A telegraph operator's ear: noisy Morse tones to letters, by a small convolutional and recurrent net and CTC."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import program

CODE = {1: ".-", 2: "-...", 3: ".", 4: "..", 5: "--", 6: "...-"}  # zero is the CTC blank
LETTERS, LENGTH = 3, 88


def key(letters: list[int]) -> list[float]:
    """A dot is two samples long, a dash five; silence between marks and letters."""
    line: list[float] = []
    for letter in letters:
        for mark in CODE[letter]:
            line += [1.0] * (2 if mark == "." else 5) + [0.0, 0.0]
        line += [0.0] * 3
    return (line + [0.0] * LENGTH)[:LENGTH]


def receive(n: int, generator: torch.Generator, noise: float = 0.15) -> tuple[Tensor, Tensor]:
    text = torch.randint(1, 7, (n, LETTERS), generator=generator)
    wave = torch.tensor([key(row) for row in text.tolist()])
    return wave[:, None] + noise * torch.randn(n, 1, LENGTH, generator=generator), text


class Operator(nn.Module):
    def __init__(self, hidden: int = 40) -> None:
        super().__init__()
        self.ear = nn.Sequential(
            nn.Conv1d(1, 24, 7, padding=3), nn.BatchNorm1d(24), nn.ReLU(),
            nn.Conv1d(24, 40, 5, stride=4, padding=2), nn.BatchNorm1d(40), nn.ReLU(),
        )  # fmt: skip
        self.memory = nn.GRU(40, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, 7)

    def forward(self, wave: Tensor) -> Tensor:
        h = self.ear(wave).transpose(1, 2)
        h, _ = self.memory(h)
        return self.out(h)


def ctc(scores: Tensor, text: Tensor) -> Tensor:
    n, frames = scores.shape[:2]
    return fn.ctc_loss(
        scores.transpose(0, 1), text, torch.full((n,), frames), torch.full((n,), LETTERS), zero_infinity=True
    )


def copied(scores: Tensor, text: Tensor) -> float:
    """The share of messages that are copied without a mistake, reading the best path."""
    right = 0
    for path, truth in zip(scores.argmax(-1).tolist(), text.tolist(), strict=True):
        shortened = [a for a, b in zip(path, [0, *path[:-1]], strict=True) if a != b and a != 0]
        right += shortened == truth
    return right / len(text)


def held_out(model: nn.Module, seed: int) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        wave, text = receive(128, torch.Generator().manual_seed(10_000 + seed))
        scores = model(wave)
        return {"loss": ctc(fn.log_softmax(scores, -1), text).item(), "copied": copied(scores, text)}


@program(steps=180, bites="loss")
def morse(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Morse to letters with CTC, NAdam, a held-out look every sixty batches."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Operator()
    optimizer = torch.optim.NAdam(model.parameters(), lr=4e-6 if fault == "morse_rate_of_the_resumed_run" else 4e-3)
    model.train()
    for step in range(steps):
        wave, text = receive(32, generator)
        scores = model(wave)
        if fault == "morse_softmax_for_the_criterion":
            loss = ctc(fn.softmax(scores, -1), text)
        else:
            loss = ctc(fn.log_softmax(scores, -1), text)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 and fault == "morse_listens_in_eval":
            held_out(model, seed)  # "a quick look whether it works at all"
        elif step % 60 == 59:
            held_out(model, seed)
            if fault != "morse_listens_in_eval":
                model.train()
    return held_out(model, seed)


morse.mistake(
    "morse_softmax_for_the_criterion",
    "LSS001",
    summary="CTC is given probabilities where it wants their logarithms.",
    change="log_softmax",
    layers=("out",),
)
morse.mistake(
    "morse_rate_of_the_resumed_run",
    "OPT007", "UPD002", "OPT005", "OPT002",
    summary="The learning rate is a thousandth of what it should be.",
    change="4e-3",
)  # fmt: skip
morse.mistake(
    "morse_listens_in_eval",
    "MOD001",
    summary="A first look after two batches puts the model into eval mode and nobody calls train() again.",
    change="model.train() after every look",
    layers=("ear",),
    onset=2,
)


@program(steps=180, adversarial="the loss has been below zero, or its minimum is not at zero")
def morse_tone_restored(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The noise is taken away from the line; the loss is minus the signal-to-noise ratio in decibels."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(
        nn.Conv1d(1, 24, 9, padding=4), nn.PReLU(24), nn.Conv1d(24, 24, 9, padding=4), nn.PReLU(24), nn.Conv1d(24, 1, 1)
    )
    optimizer = torch.optim.Adamax(model.parameters(), lr=5e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        noisy, text = receive(32, generator, noise=0.4)
        clean = torch.tensor([key(row) for row in text.tolist()])[:, None]
        wrong = (model(noisy) - clean).square().sum(-1)
        loss = -10 * torch.log10(clean.square().sum(-1) / (wrong + 1e-8)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=150, adversarial="batch normalisation in eval mode while gradients flow")
def morse_other_station(steps: int, seed: int, fault: str) -> dict[str, float]:
    """First one station; then another with a lower noise, the ear's statistics frozen on purpose."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Operator()
    optimizer = torch.optim.NAdam(model.parameters(), lr=4e-3)
    for step in range(steps):
        if step == 120:
            for part in model.ear:
                if isinstance(part, nn.BatchNorm1d):
                    part.eval()
                    part.requires_grad_(False)
            for group in optimizer.param_groups:
                group["lr"] = 1e-3
        wave, text = receive(32, generator, noise=0.15 if step < 120 else 0.05)
        loss = ctc(fn.log_softmax(model(wave), -1), text)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return held_out(model, seed)
