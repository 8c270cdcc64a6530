"""More readers of sequences: plain recurrence, post-norm transformers, a picture as a sequence."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy
from undertow.demos.data import glyphs, sentences, share_correct
from undertow.demos.models import Decoder, next_token_loss, share_of_next_tokens


class SequenceReader(nn.Module):
    def __init__(self, kind: type[nn.GRU] | type[nn.RNN], width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 24)
        self.recurrent = kind(24, width, batch_first=True)
        self.head = nn.Linear(width, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.recurrent(self.embedding(tokens))[0])


@healthy(steps=100, architecture="recurrent")
def gru_rmsprop(steps: int, seed: int) -> dict[str, float]:
    """A GRU under RMSprop."""
    torch.manual_seed(seed)
    tokens = sentences(seed)
    model = SequenceReader(nn.GRU, 48)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = next_token_loss(model, tokens[torch.randint(len(tokens), (16,))])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_of_next_tokens(model, tokens)}


@healthy(steps=150, architecture="recurrent", adversarial="gradients that are clipped most of the time are exploding")
def rnn_clipped(steps: int, seed: int) -> dict[str, float]:
    """A plain tanh recurrence under SGD, whose gradients need their clipping."""
    torch.manual_seed(seed)
    tokens = sentences(seed)
    model = SequenceReader(nn.RNN, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = next_token_loss(model, tokens[torch.randint(len(tokens), (16,))])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_of_next_tokens(model, tokens)}


class PostNorm(nn.Module):
    """Eight post-norm blocks, as in the first transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 32)
        self.places = nn.Parameter(0.1 * torch.randn(24, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
        self.head = nn.Linear(32, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.head(self.encoder(self.embedding(tokens) + self.places[:length], mask, is_causal=True))


@healthy(
    steps=60, architecture="transformer", adversarial="gradients that fall by depth, or rates that rise, are faults"
)
def post_norm_warm_up(steps: int, seed: int) -> dict[str, float]:
    """Eight post-norm blocks that need their warm-up, with all blocks starting as copies of one."""
    torch.manual_seed(seed)
    tokens = sentences(seed)
    model = PostNorm()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, 1.0, 25)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = next_token_loss(model, tokens[torch.randint(len(tokens), (16,))])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return {"loss": loss.item()}


class PictureTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 32, 2, stride=2)
        self.summary = nn.Parameter(torch.zeros(1, 1, 32))
        self.places = nn.Parameter(0.02 * torch.randn(1, 17, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        patches = self.patches(pictures.view(-1, 1, 8, 8)).flatten(2).transpose(1, 2)
        sequence = torch.cat([self.summary.expand(len(patches), -1, -1), patches], 1) + self.places
        return self.head(self.encoder(sequence)[:, 0])


@healthy(steps=120, architecture="transformer", adversarial="a parameter that starts at zero is a bad start")
def vision_transformer(steps: int, seed: int) -> dict[str, float]:
    """A picture as sixteen patches, with a summary token that starts at zero, under AdamW and a cosine schedule."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed)
    model = PictureTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        loss = functional.cross_entropy(model(inputs[batch]), labels[batch], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}


@healthy(steps=100, architecture="transformer", adversarial="a key bias whose gradient is zero is dead")
def gpt_without_schedule(steps: int, seed: int) -> dict[str, float]:
    """A GPT with attention written out and biases everywhere; that of the key has no gradient but rounding."""
    torch.manual_seed(seed)
    tokens = sentences(seed)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = next_token_loss(model, tokens[torch.randint(len(tokens), (16,))])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_of_next_tokens(model, tokens)}


@healthy(steps=120, architecture="autoencoder")
def autoencoder(steps: int, seed: int) -> dict[str, float]:
    """A convolutional autoencoder with an L1 loss."""
    torch.manual_seed(seed)
    inputs, _ = glyphs(seed)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(192, 12), nn.Linear(12, 192), nn.ReLU(), nn.Unflatten(1, (12, 4, 4)),
        nn.ConvTranspose2d(12, 1, 2, stride=2), nn.Flatten(),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        pictures = inputs[torch.randint(len(inputs), (64,))]
        loss = functional.l1_loss(model(pictures), pictures)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
