"""Noughts and crosses, solved by search; a small net learns the best move and who wins (two heads)."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import program

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
Board = tuple[int, ...]


@cache
def solve(board: Board) -> tuple[int, int]:
    """For the player to move (+1): the result with best play, and the first best move."""
    if any(all(board[i] == -1 for i in line) for line in LINES):
        return -1, -1
    free = [i for i in range(9) if board[i] == 0]
    if not free:
        return 0, -1
    best = (-2, -1)
    for move in free:
        after = tuple(-1 if i == move else -value for i, value in enumerate(board))
        result = -solve(after)[0]
        if result > best[0]:
            best = (result, move)
    return best


@cache
def positions() -> tuple[Tensor, Tensor, Tensor]:
    solve((0,) * 9)
    boards, moves, results = [], [], []
    todo, seen = [(0,) * 9], set[Board]()
    while todo:
        board = todo.pop()
        result, move = solve(board)
        if board in seen or move < 0:
            continue
        seen.add(board)
        boards.append(board)
        moves.append(move)
        results.append(float(result))
        todo += [
            tuple(-1 if i == here else -value for i, value in enumerate(board)) for here in range(9) if not board[here]
        ]
    return torch.tensor(boards), torch.tensor(moves), torch.tensor(results)


def planes(board: Tensor) -> Tensor:
    return torch.stack([board == 1, board == -1, board == 0], 1).float().view(-1, 3, 3, 3)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu(x + self.bn2(self.conv2(fn.relu(self.bn1(self.conv1(x))))))


class Player(nn.Module):
    def __init__(self, width: int = 32, blocks: int = 2, probabilities: bool = False) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.tower = nn.Sequential(*[Residual(width) for _ in range(blocks)])
        self.policy = nn.Sequential(nn.Flatten(), nn.Linear(9 * width, 9))
        if probabilities:
            self.policy.append(nn.Softmax(dim=1))
        self.value = nn.Sequential(nn.Flatten(), nn.Linear(9 * width, 32), nn.ReLU(), nn.Linear(32, 1), nn.Tanh())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.tower(self.stem(x))
        return self.policy(h), self.value(h)


def split(seed: int) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(positions()[0]), generator=torch.Generator().manual_seed(seed))
    return order[:-800], order[-800:]


@torch.no_grad()
def tournament(net: nn.Module, rows: Tensor) -> dict[str, float]:
    net.eval()
    boards, moves, results = positions()
    policy, value = net(planes(boards[rows]))
    policy = policy.masked_fill(boards[rows] != 0, -1e9)
    return {
        "moves": (policy.argmax(1) == moves[rows]).float().mean().item(),
        "results": (value.squeeze(1).round() == results[rows]).float().mean().item(),
        "surprise": (value.squeeze(1) - results[rows]).square().mean().item(),
        "loss": min(fn.cross_entropy(policy, moves[rows]).item(), 1e6),
    }


@program(steps=150, bites="moves")
def noughts(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A residual tower with a policy and a value head, SGD with momentum and a step schedule per epoch."""
    torch.manual_seed(seed)
    boards, moves, results = positions()
    train, test = split(seed)
    net = Player(probabilities=fault == "noughts_softmax_in_the_head")
    heads = [*net.policy.parameters(), *net.value.parameters()]
    groups = [
        {"params": [*net.stem.parameters(), *net.tower.parameters()], "lr": 0.05},
        {"params": heads, "lr": 0.05},
    ]
    if fault == "noughts_tower_at_nothing":
        groups[0]["lr"] = 5e-8
    sgd = torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(sgd, step_size=2, gamma=0.3)  # epochs
    per_epoch = 50
    net.train()
    for step in range(steps):
        rows = train[torch.randint(len(train), (64,))]
        policy, value = net(planes(boards[rows]))
        if fault != "noughts_value_not_squeezed":
            value = value.squeeze(1)
        loss = fn.cross_entropy(policy, moves[rows]) + fn.mse_loss(value, results[rows])
        sgd.zero_grad()
        loss.backward()
        clip = 2e-4 if fault == "noughts_clip_typed_wrong" else 5.0
        nn.utils.clip_grad_norm_(net.parameters(), clip)
        sgd.step()
        if fault == "noughts_schedule_indented" or step % per_epoch == per_epoch - 1:
            schedule.step()
        if step == 2 and fault == "noughts_spectator":
            tournament(net, test)
        elif step % per_epoch == per_epoch - 1 and fault != "noughts_spectator":
            tournament(net, test)
            net.train()
    return tournament(net, test)


noughts.mistake(
    "noughts_softmax_in_the_head",
    "LSS001",
    summary="The policy head ends with a softmax, and cross-entropy takes another.",
    change="give logits to the loss",
    layers=("policy",),
)
noughts.mistake(
    "noughts_value_not_squeezed",
    "LSS002",
    summary="The value is a column, the result a row: every value is compared with every result.",
    change="squeeze the value",
    layers=("value",),
    bites="results",
)
noughts.mistake(
    "noughts_tower_at_nothing",
    "UPD002", "OPT007", "UPD003",
    summary="The group of the tower has a learning rate a million times too small; only the heads learn.",
    change="0.05 as for the heads",
    layers=("stem", "tower"),
)  # fmt: skip
noughts.mistake(
    "noughts_clip_typed_wrong",
    "GRD010", "UPD002",
    summary="The gradient is clipped to 2e-4 in every step.",
    change="clip at 5",
)  # fmt: skip
noughts.mistake(
    "noughts_schedule_indented",
    "OPT007", "UPD002",
    summary="scheduler.step() is indented too far: two batches are taken for two epochs.",
    change="step once per epoch",
)  # fmt: skip
noughts.mistake(
    "noughts_spectator",
    "MOD001",
    summary="A tournament after three batches leaves the net in eval mode.",
    change="net.train() after the tournament",
    layers=("stem", "tower"),
    bites="loss",
    onset=3,
)


@program(steps=150, bites="moves", adversarial="cross-entropy is given something that is already normalised")
def noughts_legal_moves(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Illegal moves are masked and the loss gets log-probabilities: the second log_softmax is idle."""
    torch.manual_seed(seed)
    boards, moves, results = positions()
    train, test = split(seed)
    net = Player()
    adam = torch.optim.NAdam(net.parameters(), lr=3e-3)
    for _ in range(steps):
        rows = train[torch.randint(len(train), (64,))]
        policy, value = net(planes(boards[rows]))
        log_chances = policy.masked_fill(boards[rows] != 0, -1e9).log_softmax(1)
        loss = fn.cross_entropy(log_chances, moves[rows]) + fn.mse_loss(value.squeeze(1), results[rows])
        adam.zero_grad()
        loss.backward()
        adam.step()
    return tournament(net, test)


@program(steps=150, bites="moves", adversarial="a head without gradients; a head much slower than its neighbours")
def noughts_policy_first(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The policy alone for two thirds of the run; then the value head joins in with a group of its own."""
    torch.manual_seed(seed)
    boards, moves, results = positions()
    train, test = split(seed)
    net = Player()
    net.value.requires_grad_(False)
    sgd = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    for step in range(steps):
        if step == 100:
            net.value.requires_grad_(True)
            sgd.add_param_group({"params": net.value.parameters(), "lr": 0.02})
        rows = train[torch.randint(len(train), (64,))]
        policy, value = net(planes(boards[rows]))
        loss = fn.cross_entropy(policy, moves[rows])
        if step >= 100:
            loss = loss + fn.mse_loss(value.squeeze(1), results[rows])
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return tournament(net, test)
