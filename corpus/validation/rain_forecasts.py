"""A weather office forecasts its gauges: the time-series models of ten years in one place."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.distributions import NegativeBinomial, StudentT
from torch.nn import functional as F  # noqa: N812

from corpus.case import program

PAST, AHEAD = 32, 8


class Gauges:
    """Forty gauges with a day, a week, a trend and some noise; windows are drawn at random."""

    def __init__(self, noise: float = 0.2) -> None:
        t = torch.arange(400)
        day = torch.sin(2 * math.pi * t / 8 + torch.rand(40, 1) * 6)
        week = torch.sin(2 * math.pi * t / 28 + torch.rand(40, 1) * 6)
        walk = 0.05 * torch.randn(40, 400).cumsum(1)
        self.series = day * (0.5 + torch.rand(40, 1)) + 0.6 * week + walk + noise * torch.randn(40, 400)

    def windows(self, n: int = 48) -> tuple[Tensor, Tensor]:
        which, start = torch.randint(40, (n, 1)), torch.randint(400 - PAST - AHEAD, (n, 1))
        window = self.series[which, start + torch.arange(PAST + AHEAD)]
        return window[:, :PAST], window[:, PAST:]


class Temporal(nn.Module):
    def __init__(self, c_in: int, c_out: int, dilation: int) -> None:
        super().__init__()
        make = nn.utils.parametrizations.weight_norm
        self.pad = 2 * dilation
        self.one = make(nn.Conv1d(c_in, c_out, 3, dilation=dilation))
        self.two = make(nn.Conv1d(c_out, c_out, 3, dilation=dilation))
        self.across = nn.Conv1d(c_in, c_out, 1)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(F.relu(self.one(F.pad(x, (self.pad, 0)))))
        h = self.drop(F.relu(self.two(F.pad(h, (self.pad, 0)))))
        return F.relu(h + self.across(x))


@program(steps=160, adversarial="weights in two parts, length and direction, grow without end")
def gauge_convolved(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Temporal convolutions with weight norm and a Huber loss."""
    torch.manual_seed(seed)
    gauges = Gauges()
    net = nn.Sequential(Temporal(1, 24, 1), Temporal(24, 24, 2), Temporal(24, 24, 4))
    head = nn.Linear(24, AHEAD)
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=2e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        past, ahead = gauges.windows()
        loss = F.huber_loss(head(net(past[:, None])[:, :, -1]), ahead)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=160)
def gauge_stacked_residues(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four blocks, each explains a part of the past, takes it away and adds its part of the future."""
    torch.manual_seed(seed)
    gauges = Gauges()

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(PAST, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            self.back, self.forth = nn.Linear(64, PAST), nn.Linear(64, AHEAD)

        def forward(self, rest: Tensor) -> tuple[Tensor, Tensor]:
            h = self.body(rest)
            return rest - self.back(h), self.forth(h)

    parts = nn.ModuleList(Part() for _ in range(4))
    optimizer = torch.optim.Adam(parts.parameters(), lr=2e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        rest, ahead = gauges.windows()
        level = rest.mean(1, keepdim=True)
        rest, guess = rest - level, level
        for part in parts:
            rest, more = part(rest)
            guess = guess + more
        loss = F.l1_loss(guess, ahead)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=180, adversarial="a loss that gets worse while the teacher withdraws is diverging")
def gauge_weaned(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An encoder and a decoder; the decoder sees the truth ever more rarely as the run goes on."""
    torch.manual_seed(seed)
    gauges = Gauges(noise=0.1)
    read, write, out = nn.LSTM(1, 40, batch_first=True), nn.LSTMCell(1, 40), nn.Linear(40, 1)
    model = nn.ModuleList([read, write, out])
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
    loss = torch.zeros(())
    for step in range(steps):
        past, ahead = gauges.windows(32)
        _, (h, c) = read(past[:, :, None])
        h, c, value, guesses = h[0], c[0], past[:, -1:], []
        for t in range(AHEAD):
            h, c = write(value, (h, c))
            guess = out(h)
            guesses.append(guess)
            teach = torch.rand(()) > step / (0.7 * max(steps, 1))
            value = ahead[:, t : t + 1] if teach else guess
        loss = F.mse_loss(torch.cat(guesses, 1), ahead)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=180, adversarial="a likelihood that crosses nought has the wrong sign")
def gauge_with_tails(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A GRU that gives place, width and tail of Student's distribution for the next hour of a quiet gauge."""
    torch.manual_seed(seed)
    gauges = Gauges(noise=0.02)
    cell, out = nn.GRU(1, 40, batch_first=True), nn.Linear(40, 3)
    model = nn.ModuleList([cell, out])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        past, _ = gauges.windows(32)
        place, width, tail = out(cell(past[:, :-1, None])[0]).unbind(-1)
        law = StudentT(2 + F.softplus(tail), past[:, :-1] + place, F.softplus(width) + 0.01)
        loss = -law.log_prob(past[:, 1:])[:, 4:].mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=180, adversarial="raw counts of hundreds are badly scaled inputs")
def gauge_counts_drops(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Counts of drops between one and some hundred: divided by each gauge's mean, then a negative binomial."""
    torch.manual_seed(seed)
    gauges = Gauges(noise=0.05)
    level = torch.exp(1 + 3 * torch.rand(40, 1))
    rate = level * torch.exp(0.4 * gauges.series)
    gauges.series = torch.poisson(rate)
    net = nn.Sequential(nn.Linear(PAST + 1, 64), nn.SELU(), nn.Linear(64, 64), nn.SELU(), nn.Linear(64, 2 * AHEAD))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    recent: list[float] = []
    for _ in range(steps):
        past, ahead = gauges.windows()
        mean = past.mean(1, keepdim=True) + 1
        location, shape = net(torch.cat([past / mean - 1, mean.log() / 3], 1)).chunk(2, 1)
        expected, count = mean * torch.exp(location.clamp(-4, 4)), 1 + 10 * F.softplus(shape)
        loss = -NegativeBinomial(count, logits=expected.log() - count.log()).log_prob(ahead).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        recent = [*recent, loss.item()][-20:]
    return {"loss": sum(recent) / len(recent)}


@program(steps=180, adversarial="a recurrent matrix whose gradient is clipped at every step is over-clipped")
def gauge_plain_recurrence(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A plain recurrent network with orthogonal recurrence, momentum and a clip that is always in use."""
    torch.manual_seed(seed)
    gauges = Gauges(noise=0.1)
    cell, out = nn.RNN(1, 48, batch_first=True), nn.Linear(48, 1)
    nn.init.orthogonal_(cell.get_parameter("weight_hh_l0"))
    model = nn.ModuleList([cell, out])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = torch.zeros(())
    for _ in range(steps):
        past, _ = gauges.windows()
        loss = F.mse_loss(out(cell(past[:, :-1, None])[0])[:, 4:, 0], past[:, 5:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return {"loss": loss.item()}
