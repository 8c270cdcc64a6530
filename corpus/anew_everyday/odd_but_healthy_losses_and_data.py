"""Healthy trainings whose losses and data look wrong at first sight."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Sampler, TensorDataset

from corpus.case import healthy
from undertow.demos.data import curves, glyphs, sentences, share_correct


def net_of(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    pairs = pairwise(widths)
    return nn.Sequential(*[m for i, o in pairs for m in (nn.Linear(i, o), activation())][:-1])


@healthy(steps=900, architecture="perceptron", adversarial="a loss below zero")
def everyday_likelihood_below_zero(steps: int, seed: int) -> dict[str, float]:
    """The network says a mean and a variance; the negative log-likelihood of precise data is below zero."""
    torch.manual_seed(seed)
    x, y = curves(seed, 5000)
    net = net_of(8, 96, 96, 2, activation=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(steps):
        rows = torch.randint(len(x), (128,))
        mean, raw = net(x[rows]).unbind(1)
        loss = F.gaussian_nll_loss(mean, y[rows], F.softplus(raw) + 1e-4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=420, architecture="GRU", adversarial="a loss that jumps up at fixed steps")
def everyday_curriculum(steps: int, seed: int) -> dict[str, float]:
    """Three lessons: the dependence that is to be learned is twice replaced by a harder one."""
    torch.manual_seed(seed)
    words = nn.Embedding(32, 32)
    gru, read = nn.GRU(32, 64, batch_first=True), nn.Linear(64, 32)
    model = nn.ModuleDict({"words": words, "gru": gru, "read": read})
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    lessons = [sentences(seed, 600, back=back) for back in (1, 2, 3)]
    for step in range(steps):
        text = lessons[min(2, 3 * step // max(steps, 1))]
        batch = text[torch.randint(len(text), (32,))]
        loss = F.cross_entropy(read(gru(words(batch[:, :-1]))[0]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=700, architecture="perceptron", adversarial="what cross-entropy is given is normalised already")
def everyday_logarithms_into_cross_entropy(steps: int, seed: int) -> dict[str, float]:
    """The model ends in log_softmax and cross_entropy applies it again, which changes nothing."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, 2500, noise=0.5)
    net = nn.Sequential(net_of(64, 96, 96, 10), nn.LogSoftmax(dim=1))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(steps):
        rows = torch.randint(len(pictures), (64,))
        loss = F.cross_entropy(net(pictures[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy": share_correct(net, *glyphs(seed + 1000, noise=0.5)), "loss": loss.item()}


@healthy(steps=700, architecture="perceptron", adversarial="probabilities go into the loss")
def everyday_sigmoid_and_plain_bce(steps: int, seed: int) -> dict[str, float]:
    """Ten yes-or-no answers through a sigmoid into BCELoss, which is the loss that wants probabilities."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, 2500, noise=0.5)
    answers = F.one_hot(labels, 10).float()
    net = nn.Sequential(net_of(64, 96, 96, 10, activation=nn.ELU), nn.Sigmoid())
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    criterion = nn.BCELoss()
    for _ in range(steps):
        rows = torch.randint(len(pictures), (64,))
        loss = criterion(net(pictures[rows]), answers[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy": share_correct(net, *glyphs(seed + 1000, noise=0.5)), "loss": loss.item()}


@healthy(steps=600, architecture="perceptron", adversarial="a loss that never gets near zero")
def everyday_mixed_pictures(steps: int, seed: int) -> dict[str, float]:
    """Mixup: two pictures are blended and the target is a mixture, so that the loss has a high floor."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, 2500, noise=0.4)
    goals = F.one_hot(labels, 10).float()
    net = net_of(64, 128, 128, 10, activation=nn.GELU)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for _ in range(steps):
        a, b = torch.randint(len(pictures), (2, 64))
        share = 0.5 + 0.5 * torch.rand(64, 1)
        blend = share * pictures[a] + (1 - share) * pictures[b]
        loss = F.cross_entropy(net(blend), share * goals[a] + (1 - share) * goals[b])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy": share_correct(net, *glyphs(seed + 1000, noise=0.4)), "loss": loss.item()}


@healthy(steps=700, architecture="perceptron", adversarial="a plateau of the loss above chance")
def everyday_crowd_labels(steps: int, seed: int) -> dict[str, float]:
    """A third of the labels was clicked at random; what can be learned is learned."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, 4000, noise=0.4)
    clicked = torch.where(torch.rand(len(labels)) < 0.33, torch.randint(10, (len(labels),)), labels)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=1e-4)
    for _ in range(steps):
        rows = torch.randint(len(pictures), (64,))
        loss = F.cross_entropy(net(pictures[rows]), clicked[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy": share_correct(net, *glyphs(seed + 1000, noise=0.4)), "loss": loss.item()}


@healthy(steps=700, architecture="perceptron", adversarial="nearly all targets are the same")
def everyday_rare_events(steps: int, seed: int) -> dict[str, float]:
    """Three in a hundred rows are positive; the loss weighs them up."""
    torch.manual_seed(seed)
    x, score = curves(seed, 12000)
    rare = (score > score.quantile(0.97)).float()
    net = net_of(8, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    weight = torch.tensor(20.0)
    for _ in range(steps):
        rows = torch.randint(len(x), (128,))
        loss = F.binary_cross_entropy_with_logits(net(x[rows]).squeeze(1), rare[rows], pos_weight=weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        found = net(x).squeeze(1) > 0
    return {"recall": found[rare > 0].float().mean().item(), "loss": loss.item()}


class ByLength(Sampler[list[int]]):
    """Batches of rows of like length, the batches in random order."""

    def __init__(self, lengths: Tensor, batch: int) -> None:
        self.batches = lengths.argsort().split(batch)

    def __iter__(self):
        for number in torch.randperm(len(self.batches)).tolist():
            yield self.batches[number].tolist()

    def __len__(self) -> int:
        return len(self.batches)


@healthy(steps=300, architecture="LSTM", adversarial="the data are sorted")
def everyday_buckets_by_length(steps: int, seed: int) -> dict[str, float]:
    """Sequences are put into batches by their length, which says nothing about their class."""
    torch.manual_seed(seed)
    lengths = torch.randint(4, 25, (1600,))
    tokens = torch.randint(1, 30, (1600, 24))
    kind = torch.randint(4, (1600,))
    place = (torch.rand(1600) * lengths).long()
    tokens[torch.arange(1600), place] = 30 + kind
    tokens = tokens.masked_fill(torch.arange(24) >= lengths[:, None], 0)
    loader = DataLoader(TensorDataset(tokens, kind, lengths), batch_sampler=ByLength(lengths, 32))
    words, lstm, read = nn.Embedding(34, 24, padding_idx=0), nn.LSTM(24, 32, batch_first=True), nn.Linear(32, 4)
    model = nn.ModuleDict({"words": words, "lstm": lstm, "read": read})
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    done = 0
    while done < steps:
        for text, truth, size in loader:
            hidden = lstm(words(text[:, : int(size.max())]))[0]
            seen = torch.arange(hidden.shape[1]) < size[:, None]
            logits = read(hidden.masked_fill(~seen[..., None], -1e4).amax(1))
            loss = F.cross_entropy(logits, truth)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    return {"loss": loss.item(), "accuracy": (logits.argmax(1) == truth).float().mean().item()}


@healthy(steps=900, architecture="perceptron", adversarial="gradients with rare large outliers")
def everyday_heavy_tailed_claims(steps: int, seed: int) -> dict[str, float]:
    """Claims with a few enormous ones, in logarithms, with the Huber loss and clipping."""
    torch.manual_seed(seed)
    x, score = curves(seed, 6000)
    tail = torch.distributions.StudentT(1.8).sample((6000,))
    claims = score + 0.3 * tail
    net = net_of(8, 96, 96, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(steps):
        rows = torch.randint(len(x), (96,))
        loss = F.huber_loss(net(x[rows]).squeeze(1), claims[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        error = F.mse_loss(net(x).squeeze(1), score).item()
    return {"error": error, "loss": loss.item()}


@healthy(steps=500, architecture="perceptron", adversarial="loss and gradients that go to nothing")
def everyday_learned_by_heart(steps: int, seed: int) -> dict[str, float]:
    """A table of 200 codes is to be known by heart, and is, to a loss of nearly nothing."""
    torch.manual_seed(seed)
    codes, answer = torch.randn(200, 32), torch.randint(12, (200,))
    net = net_of(32, 256, 256, 12)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(steps):
        loss = F.cross_entropy(net(codes), answer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
