"""Which signal is it? A small residual network with batch normalisation reads the shape of a light at night."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import program

SHAPES, SIDE, BATCH = 6, 12, 32


def night_pictures(count: int, seed: int, darkness: float = 0.9) -> tuple[Tensor, Tensor]:
    """Bars, a cross, a ring, a diagonal and a disc at random places, under noise."""
    g = torch.Generator().manual_seed(seed)
    row, col = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    y = torch.randint(SHAPES, (count,), generator=g)
    cy = torch.randint(3, SIDE - 3, (count, 1, 1), generator=g)
    cx = torch.randint(3, SIDE - 3, (count, 1, 1), generator=g)
    dy, dx = (row - cy).abs(), (col - cx).abs()
    near = (dy <= 3) & (dx <= 3)
    shapes = torch.stack(
        [
            (dy == 0) & near,
            (dx == 0) & near,
            ((dy == 0) | (dx == 0)) & near,
            torch.maximum(dy, dx) == 2,
            ((row - cy) == (col - cx)) & near,
            (dy**2 + dx**2) <= 4,
        ],
        dim=1,
    )
    x = shapes[torch.arange(count), y].float() * 2 + darkness * torch.randn(count, SIDE, SIDE, generator=g)
    return x[:, None], y


class Block(nn.Module):
    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.short = nn.Conv2d(c_in, c_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = fn.relu(self.bn1(self.conv1(x)))
        return fn.relu(self.bn2(self.conv2(h)) + self.short(x))


class FlagNet(nn.Module):
    def __init__(self, probabilities: bool = False) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.stage1 = Block(12, 16, 2)
        self.stage2 = Block(16, 24, 2)
        self.head = nn.Sequential(nn.Linear(24, SHAPES), *([nn.Softmax(dim=1)] if probabilities else []))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stage2(self.stage1(self.stem(x))).mean((2, 3)))


def _accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()


@program(steps=160, bites="accuracy")
def semaphore(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A residual network by SGD with momentum, epochs of sixteen batches, a rate that falls twice."""
    torch.manual_seed(seed)
    x, y = night_pictures(512, seed)
    val_x, val_y = night_pictures(400, seed + 1000)
    net = FlagNet(probabilities=fault == "flag_softmax_in_the_head")

    weights = [p for p in net.parameters() if p.ndim > 1]
    gains = [p for p in net.parameters() if p.ndim <= 1]
    groups = [{"params": weights, "weight_decay": 5e-4}, {"params": gains, "weight_decay": 0.0}]
    if fault == "flag_decay_on_the_gains":
        groups[0]["weight_decay"], groups[1]["weight_decay"] = (
            0.0,
            0.8,
        )  # the two groups exchanged, and a 0.8 tried once
    opt = torch.optim.SGD(groups, lr=0.08, momentum=0.9)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=4, gamma=0.2)

    asleep, done, loss = 0, 0, torch.zeros(())
    for epoch in range(1 + steps // 16):
        if not (fault == "flag_asleep_since_validation" and epoch > 4):
            net.train()
        for index in torch.randperm(512).split(BATCH):
            if done == steps:
                break
            opt.zero_grad()
            loss = fn.cross_entropy(net(x[index]), y[index])
            loss.backward()
            opt.step()
            asleep += not net.stage1.bn1.training
            done += 1
            if fault == "flag_schedule_in_the_inner_loop":
                sched.step()
        if fault != "flag_schedule_in_the_inner_loop":
            sched.step()
        if epoch % 5 == 4:
            net.eval()
            _accuracy(net, val_x, val_y)
    net.eval()
    return {"loss": loss.item(), "accuracy": _accuracy(net, val_x, val_y), "asleep": float(asleep)}


semaphore.mistake(
    "flag_schedule_in_the_inner_loop",
    "OPT007", "UPD002",
    summary="The scheduler with settings in epochs is stepped after every batch: the rate is gone after twenty.",
    change="sched.step() once per epoch",
)  # fmt: skip
semaphore.mistake(
    "flag_asleep_since_validation",
    "MOD001",
    summary="train() is called only before the first validation: from then on the norms use frozen statistics.",
    change="net.train() at the start of every epoch",
    layers=("stem.1", "stage1.bn1", "stage1.bn2", "stage2.bn1", "stage2.bn2"),
    onset=80,
    bites="asleep",
    silent=True,
)
semaphore.mistake(
    "flag_softmax_in_the_head",
    "LSS001",
    summary="The head ends in a softmax and cross-entropy takes another one.",
    change="give the logits to cross_entropy",
    layers=("head",),
)
semaphore.mistake(
    "flag_decay_on_the_gains",
    "OPT008", "WGT005",
    summary="Groups exchanged: the weight decay meant for matrices, and a large one, pulls on gains and biases.",
    change="no decay for gains and biases",
    layers=("stem.1", "stage1.bn1", "stage1.bn2", "stage2.bn1", "stage2.bn2", "head.0.bias"),
)  # fmt: skip


@program(steps=150, bites="accuracy", adversarial="a batch norm in eval mode during training is a mistake")
def semaphore_moves_abroad(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Trained at home, then tuned on brighter pictures with the norms fixed on purpose, by a second optimizer."""
    torch.manual_seed(seed)
    x, y = night_pictures(512, seed)
    net = FlagNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for _ in range(steps // 2):
        index = torch.randint(512, (BATCH,))
        opt.zero_grad()
        fn.cross_entropy(net(x[index]), y[index]).backward()
        opt.step()

    x, y = night_pictures(512, seed + 1, darkness=0.7)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval().requires_grad_(False)
    tune = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.01, momentum=0.9)
    loss = torch.zeros(())
    for _ in range(steps - steps // 2):
        index = torch.randint(512, (BATCH,))
        tune.zero_grad()
        loss = fn.cross_entropy(net(x[index]), y[index])
        loss.backward()
        tune.step()
    net.eval()
    return {"loss": loss.item(), "accuracy": _accuracy(net, *night_pictures(400, seed + 1000, 0.7))}


@program(steps=180, bites="accuracy", adversarial="a run whose weights no longer move is broken")
def semaphore_comes_to_rest(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A cosine schedule per batch that reaches zero before the end; the last fifth of the run changes nothing."""
    torch.manual_seed(seed)
    x, y = night_pictures(512, seed)
    net, length = FlagNet(), int(steps * 0.8)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    cosine = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda t: 0.5 * (1 + torch.cos(torch.tensor(min(t / max(length, 1), 1.0) * torch.pi)).item())
    )
    loss = torch.zeros(())
    for _ in range(steps):
        index = torch.randint(512, (BATCH,))
        opt.zero_grad()
        loss = fn.cross_entropy(net(x[index]), y[index], label_smoothing=0.05)
        loss.backward()
        opt.step()
        cosine.step()
    net.eval()
    return {"loss": loss.item(), "accuracy": _accuracy(net, *night_pictures(400, seed + 1000))}


@program(steps=150, bites="accuracy", adversarial="a learning rate of one is too high")
def semaphore_rate_of_one(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Plain SGD at a rate of one: every convolution stands before a norm, so its scale does not matter."""
    torch.manual_seed(seed)
    x, y = night_pictures(512, seed)
    net = FlagNet()
    trunk = [p for name, p in net.named_parameters() if not name.startswith("head")]
    opt = torch.optim.SGD([{"params": trunk}, {"params": net.head.parameters(), "lr": 0.2}], lr=1.0)
    loss = torch.zeros(())
    for _ in range(steps):
        index = torch.randint(512, (2 * BATCH,))
        loss = fn.cross_entropy(net(x[index]), y[index])
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    return {"loss": loss.item(), "accuracy": _accuracy(net, *night_pictures(400, seed + 1000))}
