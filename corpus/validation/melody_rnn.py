"""Melodies as sequences of notes: which song is it, how did it begin, and what comes next? Recurrent networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

NOTES = 8


class Recall(nn.Module):
    """Elman's network written as a loop over time."""

    def __init__(self, hidden: int = 48, nonlinearity: str = "tanh") -> None:
        super().__init__()
        self.read = nn.Linear(NOTES, hidden)
        self.carry = nn.Linear(hidden, hidden, bias=False)
        self.tell = nn.Linear(hidden, NOTES)
        self.squash = torch.tanh if nonlinearity == "tanh" else torch.relu
        nn.init.orthogonal_(self.carry.weight)

    def forward(self, notes: Tensor) -> Tensor:
        x = self.read(notes)
        h = torch.zeros(len(x), self.carry.in_features)
        for t in range(x.shape[1]):
            h = self.squash(x[:, t] + self.carry(h))
        return self.tell(h)


def melodies(n: int, length: int) -> tuple[Tensor, Tensor]:
    """The first note is loud and counts; the others are soft."""
    first = torch.randint(NOTES, (n,))
    rest = 0.15 * torch.randn(n, length, NOTES)
    rest[:, 0] = nn.functional.one_hot(first, NOTES).float() * 2
    return rest, first


@program(steps=160, bites="accuracy")
def jukebox_first_note(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Which note began the melody of twenty-five? An Elman network with an orthogonal recurrence, Adam, clipping."""
    torch.manual_seed(seed)
    net = Recall(nonlinearity="relu" if fault == "jukebox_loud_echo" else "tanh")
    with torch.no_grad():
        if fault == "jukebox_faint_echo":
            net.carry.weight *= 0.3
        if fault == "jukebox_loud_echo":
            net.carry.weight *= 3.0
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        notes, first = melodies(64, 25)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(notes), first)
        loss.backward()
        if fault != "jukebox_loud_echo":
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
    notes, first = melodies(400, 25)
    with torch.no_grad():
        accuracy = (net(notes).argmax(1) == first).float().mean().item()
    return {"loss": loss.item() if loss.isfinite() else 1e9, "accuracy": accuracy}


jukebox_first_note.mistake(
    "jukebox_faint_echo",
    "GRD001", "WGT003", "OPT005", "OPT002",
    summary="The recurrent matrix starts at 0.3 of its size: twenty-five steps back, nothing is left.",
    change="orthogonal recurrence of gain 1",
    layers=("carry",),
)  # fmt: skip
jukebox_first_note.mistake(
    "jukebox_loud_echo",
    "GRD002", "WGT003", "NUM001", "NUM002", "NUM004", "OPT001", "UPD001",
    summary="ReLU, a recurrent matrix three times too large and no clipping: the state grows with every note.",
    change="tanh, or an orthogonal recurrence of gain 1",
    layers=("carry",),
    bites="loss",
)  # fmt: skip


@program(steps=150, bites="accuracy")
def jukebox_songs(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Which of six songs is a noisy excerpt from? A bidirectional GRU by SGD with momentum."""
    torch.manual_seed(seed)
    songs = torch.randn(6, 24, NOTES)
    net = nn.ModuleDict({"gru": nn.GRU(NOTES, 24, batch_first=True, bidirectional=True), "out": nn.Linear(48, 6)})
    opt = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    loss = torch.zeros(())

    def excerpts(n: int) -> tuple[Tensor, Tensor]:
        which = torch.randint(6, (n,))
        return songs[which, :12] + 1.5 * torch.randn(n, 12, NOTES), which

    def classify(x: Tensor) -> Tensor:
        states, _ = net["gru"](x)
        if fault == "songs_listens_without_gradient":
            states = torch.as_tensor(states.detach().numpy())  # the pooling was tried out in numpy
        return net["out"](states.mean(1))

    for step in range(steps):
        x, which = excerpts(48)
        if not (fault == "songs_never_cleared" or (fault == "songs_cleared_until_seventy" and step >= 70)):
            opt.zero_grad()
        loss = nn.functional.cross_entropy(classify(x), which)
        loss.backward()
        opt.step()
    with torch.no_grad():
        x, which = excerpts(600)
        scores = classify(x)
    return {
        "loss": loss.item(),
        "held_out": nn.functional.cross_entropy(scores, which).item(),
        "accuracy": (scores.argmax(1) == which).float().mean().item(),
    }


jukebox_songs.mistake(
    "songs_never_cleared",
    "GRD007",
    summary="The call of zero_grad() was lost in an edit: every gradient since the start is in every step.",
    change="opt.zero_grad() in the loop",
    bites="held_out",
)
jukebox_songs.mistake(
    "songs_cleared_until_seventy",
    "GRD007",
    summary="zero_grad() stands under a condition that is false from step 70 on.",
    change="clear in every step",
    onset=70,
    bites="held_out",
)
jukebox_songs.mistake(
    "songs_listens_without_gradient",
    "GRD003", "UPD003",
    summary="The states go through numpy before they are pooled: no gradient reaches the GRU.",
    change="pool with torch",
    layers=("gru",),
)  # fmt: skip


@program(steps=160, adversarial="most rows of the embedding have a zero gradient: dead")
def jukebox_rare_titles(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Six thousand titles, a few dozen in a batch: an embedding table and an LSTM, packed sequences, Adam."""
    torch.manual_seed(seed)
    table = nn.Embedding(6000, 16, padding_idx=0)
    lstm = nn.LSTM(16, 24, batch_first=True)
    head = nn.Linear(24, 2)
    net = nn.ModuleList([table, lstm, head])
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        lengths = torch.randint(2, 9, (40,))
        popular = (6000 * torch.rand(40, 8) ** 8).long().clamp(min=1)
        titles = popular * (torch.arange(8) < lengths[:, None])
        loud = ((titles % 2) * (titles > 0)).sum(1) * 2 > lengths
        packed = nn.utils.rnn.pack_padded_sequence(table(titles), lengths, batch_first=True, enforce_sorted=False)
        loss = nn.functional.cross_entropy(head(lstm(packed)[1][0][-1]), loud.long())
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return {"loss": sum(losses[-5:]) / min(5, steps)}


@program(steps=130, adversarial="every gradient is clipped: over-clipping")
def jukebox_always_clipped(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The first note by an LSTM with a forget bias of one; the gradient is always clipped to 0.1, under Adam."""
    torch.manual_seed(seed)
    lstm, head = nn.LSTM(NOTES, 32, batch_first=True), nn.Linear(32, NOTES)
    with torch.no_grad():
        lstm.get_parameter("bias_hh_l0")[32:64] = 1.0
    net = nn.ModuleList([lstm, head])
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    loss = torch.zeros(())
    for _ in range(steps):
        notes, first = melodies(64, 10)
        loss = nn.functional.cross_entropy(head(lstm(notes)[0][:, -1]), first)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        opt.step()
    return {"loss": loss.item()}
