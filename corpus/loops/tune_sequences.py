"""Tunes and signals in time: accumulated gradients, truncated backpropagation, long memories, curricula."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program

NOTES = 12
MOTIFS = torch.tensor([[2, 2, 1, 7], [5, 11, 3, 5], [1, 4, 4, 3], [7, 7, 10, 0]])


def tunes(count: int, length: int, generator: torch.Generator) -> Tensor:
    """Each tune walks by one of four motifs, with a wrong note now and then."""
    motif = MOTIFS[torch.randint(0, 4, (count,), generator=generator)]
    notes = torch.zeros(count, length, dtype=torch.long)
    notes[:, 0] = torch.randint(0, NOTES, (count,), generator=generator)
    for time in range(1, length):
        notes[:, time] = (notes[:, time - 1] + motif[:, time % 4]) % NOTES
    wrong = torch.rand(count, length, generator=generator) < 0.03
    return torch.where(wrong, torch.randint(0, NOTES, (count, length), generator=generator), notes)


class Player(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.notes = nn.Embedding(NOTES, 24)
        self.memory = nn.GRU(24, width, batch_first=True)
        self.next = nn.Linear(width, NOTES)

    def forward(self, heard: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        hidden, after = self.memory(self.notes(heard), state)
        return self.next(hidden), after


@torch.no_grad()
def right_notes(player: Player) -> float:
    """Share of right notes from the second motif on."""
    tune = tunes(200, 17, torch.Generator().manual_seed(555))
    said, _ = player(tune[:, :-1])
    return (said.argmax(2) == tune[:, 1:])[:, 8:].float().mean().item()


@program(steps=220, bites="right")
def tune_small_batches(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Eight small batches for each step, whose gradients are gathered."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    player = Player()
    optimizer = torch.optim.SGD(player.parameters(), lr=0.4, momentum=0.9)
    gathered = 8
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(gathered):
            tune = tunes(8, 17, generator)
            said, _ = player(tune[:, :-1])
            if mistake == "tune_small_batches_odds":
                said = said.softmax(2)
            loss = functional.cross_entropy(said.flatten(0, 1), tune[:, 1:].flatten())
            if mistake != "tune_small_batches_heap":
                loss = loss / gathered
            loss.backward()
        bound = 2e-4 if mistake == "tune_small_batches_timid" else 25.0
        nn.utils.clip_grad_norm_(player.parameters(), bound)
        optimizer.step()
    return {"right": right_notes(player)}


tune_small_batches.mistake(
    "tune_small_batches_heap",
    "LSS004",
    "OPT007",
    "UPD001",
    summary="The losses of eight small batches are added, not averaged.",
    change="each loss is divided by eight",
)
tune_small_batches.mistake(
    "tune_small_batches_timid",
    "GRD010",
    "UPD002",
    "OPT007",
    summary="The gradient's norm is cut to 0.0002.",
    change="cut at 25",
)
tune_small_batches.mistake(
    "tune_small_batches_odds",
    "LSS001",
    summary="The notes' probabilities are handed to a loss that wants logits.",
    change="logits",
)


@program(steps=300, bites="right")
def tune_endless(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Tunes without end: the state goes on from piece to piece, the gradient does not."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    player = Player(48)
    optimizer = torch.optim.RMSprop(player.parameters(), lr=3e-3)
    state: Tensor | None = None
    stream = tunes(32, 8 * 12 + 1, generator)
    for step in range(steps):
        piece = step % 12
        if piece == 0:
            state, stream = None, tunes(32, 8 * 12 + 1, generator)
        part = stream[:, piece * 8 : piece * 8 + 9]
        wanted = part[:, 1:]
        if mistake == "tune_endless_other_page" and step >= 160:
            wanted = wanted[torch.randperm(len(wanted), generator=generator)]
        said, state = player(part[:, :-1], state)
        assert state is not None
        state = state.detach()
        loss = functional.cross_entropy(said.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"right": right_notes(player)}


tune_endless.mistake(
    "tune_endless_other_page",
    "DAT004",
    "OPT005",
    onset=160,
    summary="From step 160 on the notes to be guessed come from another tune.",
    change="they go on from the notes that were heard",
)


class Memory(nn.Module):
    """A plain recurrent cell, unrolled by hand."""

    def __init__(self, width: int, kinds: int, scale: float, spread: bool) -> None:
        super().__init__()
        self.read = nn.Linear(kinds + 1, width)
        self.keep = nn.Linear(width, width, bias=False)
        self.answer = nn.Linear(width, kinds)
        if spread:
            nn.init.normal_(self.keep.weight, std=scale)
        else:
            nn.init.orthogonal_(self.keep.weight, gain=scale)

    def forward(self, signal: Tensor) -> Tensor:
        hidden = torch.zeros(len(signal), self.keep.in_features)
        for time in range(signal.shape[1]):
            hidden = torch.tanh(self.read(signal[:, time]) + self.keep(hidden))
        return self.answer(hidden)


def first_sound(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A sound of one of four kinds, then only noise."""
    kind = torch.randint(0, 4, (count,), generator=generator)
    signal = torch.zeros(count, length, 5)
    signal[:, 0, :4] = functional.one_hot(kind, 4).float()
    signal[:, 1:, 4] = 0.1 * torch.randn(count, length - 1, generator=generator)
    return signal, kind


@program(steps=320, bites="accuracy")
def tune_first_sound(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """The first sound is to be named, thirty moments later."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    if mistake == "tune_first_sound_forgetful":
        net = Memory(64, 4, 0.02, spread=True)
    else:
        net = Memory(64, 4, 1.0, spread=False)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(steps):
        signal, kind = first_sound(32, 30, generator)
        loss = functional.cross_entropy(net(signal), kind)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    signal, kind = first_sound(500, 30, generator)
    with torch.no_grad():
        return {"accuracy": (net(signal).argmax(1) == kind).float().mean().item()}


tune_first_sound.mistake(
    "tune_first_sound_forgetful",
    "GRD001",
    "WGT003",
    layers=("keep",),
    summary="The recurrent weights are so small that nothing is left of the first sound after a few moments.",
    change="an orthogonal recurrent matrix",
)


@program(steps=360, bites="error", adversarial="the loss leaps whenever the task becomes harder")
def tune_counting(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Sums over sequences that become longer: three stages of a curriculum."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    memory, out = nn.GRU(2, 32, batch_first=True), nn.Linear(32, 1)
    net = nn.ModuleDict({"memory": memory, "out": out})
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)

    def lesson(length: int, count: int = 64) -> tuple[Tensor, Tensor]:
        value = torch.randn(count, length, generator=generator)
        chosen = (torch.rand(count, length, generator=generator) < 0.4).float()
        return torch.stack([value, chosen], 2), (value * chosen).sum(1, keepdim=True)

    for step in range(steps):
        signal, total = lesson((4, 8, 14)[min(step * 3 // max(steps, 3), 2)])
        if mistake == "tune_counting_bad_tape" and 250 <= step < 262:
            signal = signal * torch.tensor([3000.0, 1.0])
            total = total * 3000
        loss = functional.mse_loss(out(memory(signal)[0][:, -1]), total)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    signal, total = lesson(14, 400)
    with torch.no_grad():
        error = functional.mse_loss(out(memory(signal)[0][:, -1]), total).item()
    return {"error": min(error, 20.0) if math.isfinite(error) else 20.0}


tune_counting.mistake(
    "tune_counting_bad_tape",
    "DAT002",
    "OPT003",
    "GRD006",
    onset=250,
    summary="For twelve steps the values come from a tape that was recorded three thousand times too loud.",
    change="one loudness for all tapes",
)


class Echo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(1, 40, batch_first=True)
        self.out = nn.Linear(40, 1)

    def forward(
        self, heard: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        hidden, after = self.memory(heard, state)
        return self.out(hidden), after


@healthy(steps=300, adversarial="a hidden state carries over steps; the loss begins anew with every stream")
def tune_echo(steps: int, seed: int) -> dict[str, float]:
    """An LSTM repeats a bit stream three moments later; weights are averaged over time, too."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    net = Echo()
    slow = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.97))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    state: tuple[Tensor, Tensor] | None = None
    bits = torch.zeros(32, 3)
    losses: list[float] = []
    for step in range(steps):
        if step % 20 == 0:
            state, bits = None, torch.zeros(32, 3)
        bits = torch.cat([bits[:, -3:], torch.randint(0, 2, (32, 15), generator=generator) * 2.0 - 1], 1)
        said, (hidden, cell) = net(bits[:, 3:, None], state)
        state = (hidden.detach(), cell.detach())
        loss = functional.mse_loss(said.squeeze(2), 0.6 * bits[:, :-3])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 0.5)
        optimizer.step()
        slow.update_parameters(net)
        losses.append(loss.item())
    late = losses[-20:]
    return {"loss": sum(late) / len(late)}
