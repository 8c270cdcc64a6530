"""A board game on six by six squares: networks that judge a position and choose a move, as in self-play programs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from corpus.case import program

SIDE = 6


def positions(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Own stones, other stones; best is the empty square with most own neighbours; the value says who leads."""
    generator = torch.Generator().manual_seed(seed)
    squares = torch.randint(0, 3, (count, 1, SIDE, SIDE), generator=generator)
    board = torch.cat([squares == 1, squares == 2], 1).float()
    around = torch.ones(1, 1, 3, 3)
    near = nn.functional.conv2d(board[:, :1], around, padding=1) - nn.functional.conv2d(board[:, 1:], around, padding=1)
    wish = torch.where(squares == 0, near, -99.0).flatten(1) - 0.01 * torch.arange(SIDE * SIDE)
    lead = torch.tanh((board[:, 0] - board[:, 1]).sum((1, 2)) / 4)
    return board, wish.argmax(1), lead


@dataclass
class Config:
    blocks: int = 10
    channels: int = 24
    rate: float = 1.5e-3
    skip: bool = True
    rectify_moves: bool = False
    gain: float = 1.0


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.a = nn.Conv2d(config.channels, config.channels, 3, padding=1)
        self.b = nn.Conv2d(config.channels, config.channels, 3, padding=1)
        self.skip = config.skip
        self.share = 1 / math.sqrt(config.blocks)
        for conv in (self.a, self.b):
            nn.init.normal_(conv.weight, std=config.gain * math.sqrt(2 / (9 * config.channels)))

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(torch.relu(self.a(torch.relu(x))))
        return x + self.share * y if self.skip else self.share * y


class Player(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, config.channels, 3, padding=1)
        self.tower = nn.Sequential(*[Block(config) for _ in range(config.blocks)])
        self.move = nn.Conv2d(config.channels, 1, 1)
        self.value = nn.Sequential(nn.Linear(config.channels, 16), nn.ReLU(), nn.Linear(16, 1), nn.Tanh())
        self.rectify = nn.ReLU() if config.rectify_moves else nn.Identity()
        if config.rectify_moves:
            self.move.bias = nn.Parameter(torch.tensor([-5.0]))

    def forward(self, board: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tower(self.stem(board))
        return self.rectify(self.move(torch.relu(x)).flatten(1)), self.value(x.mean((2, 3))).squeeze(1)


def self_play(config: Config, steps: int, seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    board, best, lead = positions(2048, seed)
    player = Player(config)
    optimizer = torch.optim.Adam(player.parameters(), lr=config.rate)
    draw = torch.Generator().manual_seed(seed)
    recent, right = [], []
    for _ in range(steps):
        pick = torch.randint(2048, (32,), generator=draw)
        move, value = player(board[pick])
        loss = nn.functional.cross_entropy(move, best[pick]) + nn.functional.mse_loss(value, lead[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent.append(loss.item())
        right.append((move.argmax(1) == best[pick]).float().mean().item())
    final = sum(recent[-10:]) / 10
    return {"loss": min(final, 1e6) if math.isfinite(final) else 1e6, "accuracy": sum(right[-10:]) / 10}


@program(steps=130)
def board_player(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Ten residual blocks without normalisation, a head for the move and one for the value."""
    config = Config()
    if fault == "board_no_way_around":
        config.skip = False
    if fault == "board_rectified_moves":
        config.rectify_moves = True
    if fault == "board_branches_too_wide":
        config.gain = 4.0
    return self_play(config, steps, seed)


board_player.mistake(
    "board_no_way_around",
    "GRD001", "ACT003", "WGT003",
    summary="The sum with the block's input is missing: twenty convolutions in a row shrink whatever passes.",
    change="return x + branch",
    layers=("tower", "stem"),
)  # fmt: skip
board_player.mistake(
    "board_rectified_moves",
    "ACT001",
    "GRD004",
    summary="The scores of the moves go through a ReLU and start at minus five: all of them are zero for ever.",
    change="no activation on the scores",
    layers=("move", "rectify"),
)
board_player.mistake(
    "board_branches_too_wide",
    "WGT003", "GRD002", "OPT001", "UPD001", "NUM001", "NUM002", "NUM004",
    summary="The branches' weights start four times too wide: ten blocks make the scores astronomically large.",
    change="He's rule without the factor",
    layers=("tower",),
)  # fmt: skip


@program(steps=130, adversarial="a negative loss has the wrong sign")
def board_greedy_policy(steps: int, seed: int, fault: str) -> dict[str, float]:
    """REINFORCE for one move with a running baseline and an entropy bonus; the loss is below zero as often as above."""
    torch.manual_seed(seed)
    board, _, _ = positions(2048, seed + 40)
    around = torch.ones(1, 1, 3, 3)
    own = nn.functional.conv2d(board[:, :1], around, padding=1).flatten(1)
    policy = nn.Sequential(
        nn.Conv2d(2, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 1, 1)
    )
    optimizer = torch.optim.Adam(policy.parameters(), lr=4e-3)
    draw = torch.Generator().manual_seed(seed)
    baseline, rewards = own.mean().item(), []
    for _ in range(steps):
        pick = torch.randint(2048, (128,), generator=draw)
        choice = torch.distributions.Categorical(logits=policy(board[pick]).flatten(1))
        move = choice.sample()
        reward = own[pick, move]
        baseline += 0.1 * (reward.mean().item() - baseline)
        loss = -(choice.log_prob(move) * (reward - baseline)).mean() - 0.01 * choice.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rewards.append(reward.mean().item())
    return {"loss": -sum(rewards[-10:]) / 10}


@program(steps=110, adversarial="a value head whose tanh is at its ends is saturated")
def board_decided_games(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Only won or lost games: the tanh of the value head goes to its two ends because that is the answer."""
    torch.manual_seed(seed)
    board, _, lead = positions(2048, seed + 80)
    decided = lead.abs() > 0.6
    board, won = board[decided], lead[decided].sign()
    judge = nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * SIDE * SIDE, 32), nn.ReLU(),
        nn.Linear(32, 1), nn.Tanh(),
    )  # fmt: skip
    optimizer = torch.optim.RAdam(judge.parameters(), lr=3e-3)
    draw = torch.Generator().manual_seed(seed)
    recent = []
    for _ in range(steps):
        pick = torch.randint(len(won), (48,), generator=draw)
        loss = nn.functional.mse_loss(judge(board[pick]).squeeze(1), won[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent.append(loss.item())
    return {"loss": sum(recent[-10:]) / 10}
