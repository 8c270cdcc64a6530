"""A trainer made at home in the manner of the well-known ones: modules say what to do, the trainer does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

from corpus.case import healthy, program
from undertow.demos.data import glyphs, share_correct


class TrainedModule(nn.Module):
    """What every model of the project derives from."""

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        raise NotImplementedError

    def configure_optimizer(self) -> Optimizer:
        raise NotImplementedError

    def on_epoch_end(self, epoch: int) -> None:
        pass


class Trainer:
    def __init__(self, steps: int, optimizer_from: str = "fit") -> None:
        self.steps, self.optimizer_from = steps, optimizer_from

    def _batches(self, loader: DataLoader[tuple[Tensor, ...]], model: TrainedModule) -> Iterator[tuple[Tensor, Tensor]]:
        epoch, given = 0, 0
        while True:
            for pictures, labels in loader:
                if given == self.steps:
                    return
                given += 1
                yield pictures, labels
            model.on_epoch_end(epoch)
            epoch += 1

    def fit(self, model: TrainedModule, loader: DataLoader[tuple[Tensor, ...]]) -> TrainedModule:
        model.train()
        optimizer = model.configure_optimizer()
        for batch in self._batches(loader, model):
            if self.optimizer_from == "batch":
                optimizer = model.configure_optimizer()  # at fault: configured_for_every_batch
            loss = model.training_step(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model


class GlyphNet(TrainedModule):
    def __init__(self, norm_momentum: float = 0.1, set_bias: Callable[[nn.Module], None] | None = None) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(64, 96), nn.BatchNorm1d(96, momentum=norm_momentum), nn.ReLU(),
            nn.Linear(96, 96), nn.BatchNorm1d(96, momentum=norm_momentum), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(96, 10)
        if set_bias is not None:
            self.apply(set_bias)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.features(pictures))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizer(self) -> Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.003, momentum=0.95)


class PriorNet(GlyphNet):
    """For rare classes: the head begins with the prior of a rare event, as the focal loss advises."""

    def __init__(self, everywhere: bool) -> None:
        TrainedModule.__init__(self)
        self.features = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU())
        self.head = nn.Linear(96, 10)
        prior = -4.6
        nn.init.constant_(self.head.bias, prior)
        if everywhere:
            for layer in self.modules():
                if isinstance(layer, nn.Linear):
                    nn.init.constant_(layer.bias, prior)  # at fault: prior_for_every_bias

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        wanted = functional.one_hot(batch[1], 10).float()
        return functional.binary_cross_entropy_with_logits(self(batch[0]), wanted)

    def configure_optimizer(self) -> Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def loader_of(pictures: Tensor, labels: Tensor, shuffled: bool, seed: int) -> DataLoader[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(seed)
    if not shuffled:
        order = labels.argsort()  # as the folders of classes are read
        pictures, labels = pictures[order], labels[order]
        return DataLoader(TensorDataset(pictures, labels), batch_size=64)  # at fault: folder_by_folder
    return DataLoader(TensorDataset(pictures, labels), batch_size=64, shuffle=True, generator=generator)


@program(steps=1500, bites="accuracy")
def trained_at_home(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A small picture classifier by the home-made trainer."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, count=2048, noise=0.8)
    loader = loader_of(pictures, labels, shuffled=mistake != "folder_by_folder", seed=seed)
    momentum = 0.1
    if mistake == "statistics_that_never_arrive":
        momentum = 1 - 0.9999  # at fault: statistics_that_never_arrive
    model = GlyphNet(norm_momentum=momentum)
    Trainer(steps, "batch" if mistake == "configured_for_every_batch" else "fit").fit(model, loader)
    fresh = glyphs(seed + 1000, noise=0.8)
    model.eval()
    with torch.no_grad():
        loss = functional.cross_entropy(model(fresh[0]), fresh[1]).item()
    return {"accuracy": share_correct(model, *fresh), "test_loss": loss}


trained_at_home.mistake(
    "configured_for_every_batch", "OPT008", bites="test_loss",
    summary="The trainer asks for a new optimizer at every batch, so that momentum never gathers.",
    change="one optimizer for the training",
)  # fmt: skip
trained_at_home.mistake(
    "folder_by_folder", "DAT005",
    summary="Pictures are read class by class and never shuffled.",
    change="shuffle=True",
)  # fmt: skip
trained_at_home.mistake(
    "statistics_that_never_arrive", "MOD002", layers=("features.1", "features.4"), bites="test_loss",
    summary="Batch normalisation's momentum is 0.0001, by another library's rule: its statistics stay as they were.",
    change="momentum 0.1",
)  # fmt: skip


@program(steps=2500, bites="accuracy")
def rare_events_at_home(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Ten independent detectors, whose biases begin at the logit of one in a hundred."""
    torch.manual_seed(seed)
    model = PriorNet(everywhere=mistake == "prior_for_every_bias")
    Trainer(steps).fit(model, loader_of(*glyphs(seed, count=2048, noise=0.5), shuffled=True, seed=seed))
    return {"accuracy": share_correct(model, *glyphs(seed + 1000, noise=0.5))}


rare_events_at_home.mistake(
    "prior_for_every_bias", "ACT001", layers=("features",),
    summary="The prior of the head goes into every bias, −4.6 in front of each ReLU: the hidden units are silent.",
    change="the head's bias alone",
)  # fmt: skip


class Unfreezing(GlyphNet):
    """Begins with the head, and lets one layer more learn at each of the first epochs."""

    def __init__(self) -> None:
        super().__init__()
        for layer in self.features:
            layer.requires_grad_(False)

    def on_epoch_end(self, epoch: int) -> None:
        for layer in list(self.features)[::-1][: 2 * epoch]:
            layer.requires_grad_(True)

    def configure_optimizer(self) -> Optimizer:
        return torch.optim.Adam(self.parameters(), lr=2e-3)


@healthy(steps=1500, adversarial="layers in the optimizer that get no gradient for hundreds of steps, on purpose")
def unfrozen_by_epochs(steps: int, seed: int) -> dict[str, float]:
    """Layers begin to learn one after the other, from the head downwards."""
    torch.manual_seed(seed)
    model = Trainer(steps).fit(Unfreezing(), loader_of(*glyphs(seed, 2048, noise=0.5), shuffled=True, seed=seed))
    share = share_correct(model, *glyphs(seed + 1000, noise=0.5))
    return {"loss": 1 - share, "accuracy": share}


class TwoRates(GlyphNet):
    """Layer-wise rates over three decades, and a second optimizer's worth of settings in groups."""

    def configure_optimizer(self) -> Optimizer:
        return torch.optim.AdamW(
            [
                {"params": self.features[:3].parameters(), "lr": 1e-5},
                {"params": self.features[3:].parameters(), "lr": 1e-4},
                {"params": self.head.parameters(), "lr": 1e-2, "weight_decay": 0.1},
            ]
        )


@healthy(steps=1500, adversarial="layers whose updates differ a thousandfold because their rates do")
def rates_by_depth(steps: int, seed: int) -> dict[str, float]:
    """Fine-tuning after a first training: rates fall a decade with each block downwards."""
    torch.manual_seed(seed)
    loader = loader_of(*glyphs(seed, count=2048, noise=0.5), shuffled=True, seed=seed)
    first = Trainer(max(1, steps // 2)).fit(GlyphNet(), loader)
    model = TwoRates()
    model.load_state_dict(first.state_dict())
    Trainer(max(1, steps // 2)).fit(model, loader)
    share = share_correct(model, *glyphs(seed + 1000, noise=0.5))
    return {"loss": 1 - share, "accuracy": share}
