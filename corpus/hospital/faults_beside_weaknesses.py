"""One fault in a program that has a weakness, a setting or a course beside it which looks guilty and is not."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, share_correct


@sick("OPT007", steps=400, onset=250, architecture="perceptron", change="leave the learning rate at 1e-3")
def rate_jumps_under_weight_decay(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The rate jumps from 1e-3 to 0.3: the usual weight decay of AdamW takes 300 times as much, and is not to blame."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    loss = torch.tensor(0.0)
    for step in range(steps):
        if fault and step == 250:
            optimizer.param_groups[0]["lr"] = 0.3  # at fault
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "DAT002", steps=300, onset=250, bites="loss", architecture="recurrent",
    change="read the text, not the noise behind its end",
)  # fmt: skip
def text_turns_to_noise(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """From step 250 on the tokens are drawn at random: neither their number nor their range is another one."""
    torch.manual_seed(seed)
    tokens = 24
    table = (3 * torch.randn(tokens, tokens)).softmax(-1)
    model = nn.ModuleDict({
        "embed": nn.Embedding(tokens, 32), "read": nn.GRU(32, 48, batch_first=True), "guess": nn.Linear(48, tokens),
    })  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        text = torch.randint(tokens, (32, 1))
        for _ in range(12):
            text = torch.cat([text, torch.multinomial(table[text[:, -1]], 1)], 1)
        if fault and step >= 250:
            text = torch.randint(tokens, text.shape)  # at fault
        state = model["read"](model["embed"](text[:, :-1]))[0]
        loss = functional.cross_entropy(model["guess"](state).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


class MaskedExperts(nn.Module):
    """Every expert runs on every row; a mask of zeros leaves the chosen one."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(64, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)) for _ in range(4))

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        shares = self.router(pictures).softmax(-1)
        weight, choice = shares.max(-1)
        mask = functional.one_hot(choice, 4) * weight[:, None]
        return sum(mask[:, i : i + 1] * expert(pictures) for i, expert in enumerate(self.experts)), shares  # type: ignore[return-value]


@sick(
    "ACT005", steps=200, layers=("router",), bites="evenness", silent=True, architecture="mixture of experts",
    change="no bias, and a loss for even loads",
)  # fmt: skip
def masked_experts_never_chosen(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A router that prefers one expert: the others have a gradient of zeros, which is a symptom."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = MaskedExperts()
    if fault:
        nn.init.constant_(model.router.bias[1:2], 5.0)  # at fault
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss, shares = torch.tensor(0.0), torch.ones(1, 4)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        output, shares = model(pictures[batch])
        loss = functional.cross_entropy(output, labels[batch])
        if not fault:
            loss = loss + 0.1 * 4 * shares.mean(0).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "evenness": -shares.mean(0).max().item()}


class Block(nn.Module):
    """Two convolutions beside a shortcut that begins next to zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(12, 12, 3, padding=1), nn.Conv2d(12, 12, 3, padding=1)
        self.skip = nn.Conv2d(12, 12, 1)
        nn.init.normal_(self.skip.weight, std=1e-3)
        nn.init.kaiming_normal_(self.first.weight)
        nn.init.kaiming_normal_(self.second.weight)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.skip(x))


@sick("GRD010", steps=200, architecture="convolutional", change="clip at 1, not at a thousandth")
def clipped_beside_a_small_shortcut(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Gradients are clipped to a thousandth; the shortcuts that begin small are no reason for that."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), Block(), Block(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(192, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch].view(-1, 8, 8)), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3 if fault else 1.0)  # at fault
        optimizer.step()
    shown, known = glyphs(seed + 1000)
    return {"loss": loss.item(), "accuracy": share_correct(model, shown.view(-1, 8, 8), known)}
