"""Essays are graded from bags of phrases, and their words are tagged; few essays, so it overfits without care."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program

WORDS, TAGS, MARKS = 60, 5, 4


def essays(n: int, generator: torch.Generator, noise: float = 0.15) -> tuple[Tensor, Tensor]:
    """Phrase counts and a mark; some marks were given on a bad day."""
    weights = torch.randn(WORDS, MARKS, generator=torch.Generator().manual_seed(99))
    counts = torch.rand(n, WORDS, generator=generator).mul(3).floor()
    mark = ((counts - 1) @ weights).argmax(1)
    bad_day = torch.rand(n, generator=generator) < noise
    return counts - 1, torch.where(bad_day, torch.randint(MARKS, (n,), generator=generator), mark)


class Grader(nn.Module):
    def __init__(self, drop: float = 0.6) -> None:
        super().__init__()
        self.read = nn.Sequential(nn.Linear(WORDS, 128), nn.ReLU(), nn.Dropout(drop))
        self.think = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Dropout(drop))
        self.mark = nn.Linear(128, MARKS)

    def forward(self, x: Tensor) -> Tensor:
        return self.mark(self.think(self.read(x)))


@torch.no_grad()
def jury(model: nn.Module, seed: int) -> dict[str, float]:
    was_training = model.training
    model.eval()
    x, y = essays(600, torch.Generator().manual_seed(800 + seed))
    scores = model(x)
    model.train(was_training)
    return {
        "loss": min(functional.cross_entropy(scores, y).item(), 1e6),
        "accuracy": (scores.argmax(1) == y).float().mean().item(),
    }


@program(steps=320)
def graded(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two hidden layers with dropout on 600 essays, Adam, the jury's opinion after every forty steps."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    x, y = essays(600, generator)
    model = Grader()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        if fault == "graded_without_dropout" and step == 20:
            model.eval()  # for a look at the scores of one essay
            _first = model(x[:1]).argmax().item()
        rows = torch.randint(600, (48,), generator=generator)
        scores = model(x[rows])
        loss = functional.cross_entropy(scores, y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 39:
            jury(model, seed)
    return jury(model, seed)


graded.mistake(
    "graded_without_dropout",
    "MOD001", "OPT006",
    summary="A look at one essay at step twenty leaves the model in eval mode: no dropout, and it learns by heart.",
    change="model.train()",
    layers=("read", "think"),
    onset=20,
)  # fmt: skip


def sentence(length: int, generator: torch.Generator, sloppy: bool) -> tuple[Tensor, Tensor]:
    """Words and tags: the tag depends on the word and the one before. Fragments are tagged carelessly."""
    words = torch.randint(WORDS, (length,), generator=generator)
    before = torch.cat([words[:1], words[:-1]])
    tags = (words + 2 * (before > WORDS // 2).long()) % TAGS
    if sloppy:
        tags = torch.randint(TAGS, (length,), generator=generator)
    return words, tags


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 32)
        self.rnn = nn.RNN(32, 48, batch_first=True)
        self.tag = nn.Linear(48, TAGS)

    def forward(self, words: Tensor) -> Tensor:
        return self.tag(self.rnn(self.embed(words))[0])


@torch.no_grad()
def tagged(model: nn.Module, seed: int) -> float:
    words, tags = sentence(2000, torch.Generator().manual_seed(700 + seed), sloppy=False)
    return (model(words.view(20, 100)).argmax(-1) == tags.view(20, 100))[:, 1:].float().mean().item()


@program(steps=160, bites="accuracy")
def essay_tags(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A plain recurrent tagger; a step is one long text and three fragments, weighted by words; SGD with a clip."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.5, momentum=0.9)
    mean = torch.zeros(())
    for _ in range(steps):
        texts = [sentence(length, generator, sloppy=length < 10) for length in (150, 2, 2, 3)]
        words_in_all = sum(len(words) for words, _ in texts)
        optimizer.zero_grad()
        mean = torch.zeros(())
        for words, tags in texts:
            loss = functional.cross_entropy(model(words[None])[0], tags)
            share = 1 / len(texts) if fault == "essay_fragments_count_alike" else len(words) / words_in_all
            (loss * share).backward()
            mean = mean + loss.detach() * share
        late = fault == "essay_clip_after_the_step"
        if not late:
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        if late:
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    return {"loss": mean.item(), "accuracy": tagged(model, seed)}


essay_tags.mistake(
    "essay_fragments_count_alike",
    "LSS004", "GRD008",
    summary="The mean of means: a fragment of two words weighs as much as a text of a hundred and fifty.",
    change="weight by the number of words",
)  # fmt: skip
essay_tags.mistake(
    "essay_clip_after_the_step",
    "OPT007", "UPD001", "GRD002", "OPT001", "GRD006", "OPT003", "OPT004", "WGT001",
    summary="The clip comes after the step, where it has no effect.",
    change="clip before optimizer.step()",
)  # fmt: skip


@program(steps=200, adversarial="gradients that reach only a few rows; words that never occur")
def essay_rare_words(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A table of three thousand words of which Zipf's law shows few; sparse gradients, Adagrad."""
    torch.manual_seed(seed)
    chance = 1 / torch.arange(1, 3001)
    mark_of = torch.randint(MARKS, (3000,))
    bag = nn.EmbeddingBag(3000, 24, mode="mean", sparse=True)
    model = nn.Sequential(bag, nn.Linear(24, MARKS))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.2)
    loss = torch.zeros(())
    for _ in range(steps):
        words = torch.multinomial(chance, 64 * 5, replacement=True).view(64, 5)
        votes = functional.one_hot(mark_of[words], MARKS).sum(1)
        loss = functional.cross_entropy(model(words), votes.argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=160, adversarial="the two halves of a net have learning rates a thousandfold apart")
def essay_warm_reader(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A reader fitted by least squares beforehand moves very slowly; the new head on top of it moves fast."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    x, y = essays(1500, generator)
    model = Grader(drop=0.4)
    with torch.no_grad():
        fit = torch.linalg.lstsq(x, functional.one_hot(y, MARKS).float() - 1 / MARKS).solution.T
        first = model.read[0]
        assert isinstance(first, nn.Linear)
        first.weight.add_(2 * fit.repeat(32, 1))
    slow = {"params": model.read.parameters(), "lr": 1e-6}
    fast = {"params": [*model.think.parameters(), *model.mark.parameters()]}
    optimizer = torch.optim.AdamW([slow, fast], lr=1e-3)
    for _ in range(steps):
        rows = torch.randint(1500, (64,), generator=generator)
        loss = functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return jury(model, seed)


@program(steps=180)
def essay_points(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Points between 0 and 100, scaled to unit variance, with Huber loss, ASGD and a triangular rate."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    x, _ = essays(1500, generator)
    points = 50 + 12 * torch.tanh(x[:, :20].mean(1) * 4) + 5 * x[:, 0] * x[:, 1]
    target = (points - points.mean()) / points.std()
    model = nn.Sequential(nn.Linear(WORDS, 64), nn.ELU(), nn.Linear(64, 32), nn.ELU(), nn.Linear(32, 1))
    optimizer = torch.optim.ASGD(model.parameters(), lr=0.15)
    schedule = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.05, 0.25, step_size_up=30, cycle_momentum=False)
    loss = torch.zeros(())
    for _ in range(steps):
        rows = torch.randint(1500, (64,), generator=generator)
        loss = functional.huber_loss(model(x[rows])[:, 0], target[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return {"loss": loss.item()}
