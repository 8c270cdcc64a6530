"""Healthy trainings on text. Each is a loop of its own, as its author would have it."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - as its users write it
from torch import Tensor, nn

from corpus.case import program
from corpus.practice.language.letter_gpt_post_norm import CONTEXT, LetterGPT, make_text
from corpus.practice.language.number_phrase_seq2seq import PAD, Phrasebook, phrases

LETTERS = 27


def windows(text: Tensor, count: int, length: int = CONTEXT) -> Tensor:
    at = torch.randint(len(text) - length - 1, (count,)).tolist()
    return torch.stack([text[i : i + length + 1] for i in at])


def summary(losses: list[float]) -> dict[str, float]:
    return {"loss": sum(losses[-10:]) / len(losses[-10:]), "first": losses[0]}


class LetterRNN(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], width: int = 48) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, 24)
        self.rnn = kind(24, width, batch_first=True)  # type: ignore[call-arg]
        self.out = nn.Linear(width, LETTERS)

    def forward(self, ids: Tensor, state: object = None) -> tuple[Tensor, object]:
        h, state = self.rnn(self.letters(ids), state)
        return self.out(h), state


@program(steps=150, adversarial="gradients above a fixed bound explode")
def letters_summed(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A GPT whose loss is summed over six hundred letters; Adam does not mind."""
    torch.manual_seed(seed)
    text, model, losses = make_text(seed), LetterGPT(depth=2), []
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 20)
        rows = windows(text, 24)
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten(), reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return summary(losses)


@program(steps=160, adversarial="a detach in the forward pass cuts the gradient")
def letters_carried_state(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An LSTM reads on where it stopped; its state is carried over and detached."""
    torch.manual_seed(seed)
    text = make_text(seed, 6000)
    columns = text[: len(text) // 16 * 16].view(16, -1)
    model, losses, state = LetterRNN(nn.LSTM), [], None
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        at = step * 20 % (columns.shape[1] - 21)
        logits, state = model(columns[:, at : at + 20], state)
        state = tuple(s.detach() for s in state)  # type: ignore[union-attr]
        loss = F.cross_entropy(logits.flatten(0, 1), columns[:, at + 1 : at + 21].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return summary(losses)


@program(steps=160, adversarial="clipping in every step is a fault")
def letters_always_clipped(steps: int, seed: int, fault: str) -> dict[str, float]:
    """SGD with a rate of four and the norm clipped at a quarter, as in the word-model example of old."""
    torch.manual_seed(seed)
    text, model, losses = make_text(seed), LetterRNN(nn.GRU), []
    optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
    for _ in range(steps):
        rows = windows(text, 24)
        loss = F.cross_entropy(model(rows[:, :-1])[0].flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        losses.append(loss.item())
    return summary(losses)


@program(steps=170, adversarial="a loss that stays far above zero has not learned")
def phrases_smoothed(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Translation with labels smoothed by a quarter: the loss cannot fall below one."""
    torch.manual_seed(seed)
    source, target = phrases(seed)
    model, losses = Phrasebook(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.25)
    for _ in range(steps):
        rows = torch.randint(len(source), (48,))
        loss = criterion(model(source[rows], target[rows]).transpose(1, 2), target[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return summary(losses)


@program(steps=180, adversarial="a loss that jumps is a fault")
def letters_second_language(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Half the run is in one language, then half of every batch is in another: the loss jumps on purpose."""
    torch.manual_seed(seed)
    first, second = make_text(seed), make_text(seed + 50)
    model, losses = LetterRNN(nn.GRU), []
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
    for step in range(steps):
        rows = windows(first, 32) if step < 90 else torch.cat([windows(first, 16), windows(second, 16)])
        loss = F.cross_entropy(model(rows[:, :-1])[0].flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return summary(losses)


@program(steps=110)
def letters_accumulated(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A GPT with four micro-batches in a step, each loss divided by four."""
    torch.manual_seed(seed)
    text, model, losses = make_text(seed), LetterGPT(depth=2), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=20)
    for _ in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(4):
            rows = windows(text, 8)
            loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()) / 4
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(total)
    return summary(losses)


@program(steps=130)
def letters_bfloat16(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A GPT under bfloat16 autocast, one cycle of the rate."""
    torch.manual_seed(seed)
    text, model, losses = make_text(seed), LetterGPT(depth=2), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=max(steps, 10))
    for _ in range(steps):
        rows = windows(text, 24)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return summary(losses)


class GatedBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.gate = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gate[0] * self.attention(x, x, x, need_weights=False)[0]
        return x + self.gate[1] * self.mlp(x)


@program(steps=170, adversarial="a layer whose gradient is zero at the start is dead")
def letters_gated(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Turning words around, with blocks behind gates that start at zero: nothing but the gates learns at first."""
    torch.manual_seed(seed)
    letters, places = nn.Embedding(LETTERS, 32), nn.Embedding(8, 32)
    body = nn.Sequential(*(GatedBlock(32) for _ in range(3)), nn.LayerNorm(32), nn.Linear(32, LETTERS))
    model = nn.ModuleDict({"letters": letters, "places": places, "body": body})
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    losses: list[float] = []
    for _ in range(steps):
        words = torch.randint(1, LETTERS, (64, 8))
        logits = body(letters(words) + places(torch.arange(8)))
        loss = F.cross_entropy(logits.flatten(0, 1), words.flip(1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return summary(losses)
