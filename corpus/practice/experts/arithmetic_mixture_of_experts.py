"""Sums, differences and products in one model: a few experts and a router that picks one for each question."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

KINDS, EXPERTS, WIDTH = 4, 4, 32


def questions(n: int) -> tuple[Tensor, Tensor]:
    kind = torch.randint(KINDS, (n,))
    a, b = torch.rand(n) * 2 - 1, torch.rand(n) * 2 - 1
    answers = torch.stack([a + b, a - b, 2 * a * b, torch.sin(3 * a)], 1)
    x = torch.cat([a[:, None], b[:, None], nn.functional.one_hot(kind, KINDS).float()], 1)
    return x, answers.gather(1, kind[:, None])


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(h)))


class SwitchLayer(nn.Module):
    """Each row goes to the expert with the highest gate, or to the best `top` of them."""

    def __init__(self, top: int = 1) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))
        self.top = top
        self.load = torch.zeros(EXPERTS)
        self.balance = torch.zeros(())

    def forward(self, h: Tensor) -> Tensor:
        gates = self.router(h).softmax(-1)
        weight, chosen = gates.topk(self.top, dim=-1)
        out = torch.zeros_like(h)
        for e, expert in enumerate(self.experts):
            row, place = (chosen == e).nonzero(as_tuple=True)
            if len(row):
                out = out.index_add(0, row, weight[row, place, None] * expert(h[row]))
        self.load = nn.functional.one_hot(chosen, EXPERTS).float().mean((0, 1))
        self.balance = EXPERTS * (self.load * gates.mean(0)).sum()
        return h + out


class Calculator(nn.Module):
    def __init__(self, top: int = 1) -> None:
        super().__init__()
        self.inlet = nn.Linear(2 + KINDS, WIDTH)
        self.switch = SwitchLayer(top)
        self.outlet = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.outlet(torch.relu(self.switch(torch.relu(self.inlet(x)))))


@program(steps=150)
def switched_calculator(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One expert per question and a term that keeps their load even."""
    torch.manual_seed(seed)
    model = Calculator()
    if fault == "one_expert_for_all":
        model.switch.router.bias.data[2] = 5.0
    parameters = [*model.inlet.parameters(), *model.switch.router.parameters(), *model.outlet.parameters()]
    if fault != "experts_not_given":
        parameters += [*model.switch.experts.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=5e-3, eps=0.3 if fault == "eps_of_another_optimizer" else 1e-8)
    start = nn.utils.parameters_to_vector(model.switch.experts.parameters()).detach().clone()
    share = 0.0 if fault == "one_expert_for_all" else 0.02
    recent = []
    for _ in range(steps):
        x, y = questions(96)
        loss = nn.functional.mse_loss(model(x), y)
        recent = [*recent[-9:], loss.item()]
        optimizer.zero_grad()
        (loss + share * model.switch.balance).backward()
        optimizer.step()
    moved = (nn.utils.parameters_to_vector(model.switch.experts.parameters()) - start).norm().item()
    return {"loss": sum(recent) / len(recent), "busiest": model.switch.load.max().item(), "moved": moved}


switched_calculator.mistake(
    "one_expert_for_all",
    "ACT005", "GRD004", "GRD003", "UPD003",
    summary="The router starts in love with one expert, and nothing evens the load.",
    change="no bias, and a balancing term",
    layers=("switch.router", "switch.experts"),
    bites="busiest",
    silent=True,
)  # fmt: skip
switched_calculator.mistake(
    "experts_not_given",
    "UPD003",
    summary="The list of parameters for the optimizer was written before there were experts.",
    change="optimise model.parameters()",
    layers=("switch.experts",),
    bites="moved",
    silent=True,
)
switched_calculator.mistake(
    "eps_of_another_optimizer",
    "OPT008", "UPD002",
    summary="Adam with an eps of 0.3, far above the size of any gradient.",
    change="an eps of 1e-8",
)  # fmt: skip


@program(steps=150)
def blended_calculator(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """The best two of four experts answer together."""
    torch.manual_seed(seed)
    model = Calculator(top=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    recent = []
    for _ in range(steps):
        x, y = questions(96)
        loss = nn.functional.mse_loss(model(x), y)
        recent = [*recent[-9:], loss.item()]
        optimizer.zero_grad()
        (loss + 0.02 * model.switch.balance).backward()
        optimizer.step()
    return {"loss": sum(recent) / len(recent)}


@program(steps=150, adversarial="an expert without a gradient in this step has collapsed")
def calculator_by_kind(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """The lessons come one kind at a time for a few steps, so most experts rest while one of them works."""
    torch.manual_seed(seed)
    inlet, experts, outlet = nn.Linear(2, WIDTH), nn.ModuleList(Expert() for _ in range(KINDS)), nn.Linear(WIDTH, 1)
    model = nn.ModuleDict({"inlet": inlet, "experts": experts, "outlet": outlet})
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    recent = []
    for step in range(steps):
        x, y = questions(256)
        kind = step % KINDS
        mine = x[:, 2 + kind] == 1
        h = torch.relu(inlet(x[mine, :2]))
        loss = nn.functional.mse_loss(outlet(h + experts[kind](h)), y[mine])
        recent = [*recent[-9:], loss.item()]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": sum(recent) / len(recent)}
