"""ACT003 to ACT005: representations, attention and routers that have collapsed; games that one side wins."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, sentences
from undertow.demos.models import Decoder, DecoderBlock, next_token_loss, perceptron, share_of_next_tokens


@sick(
    "ACT004", steps=120, layers=("blocks.1.att",), architecture="transformer", catalogue=(50,), ladder=(10, 30, 100),
    change="initialise query and key as the others are, or normalise them",
)  # fmt: skip
def attention_logits_too_large(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Query and key of block 1 start thirty times too large: each token looks at one other, and cannot look away."""
    torch.manual_seed(seed)
    tokens = sentences(seed, back=2)
    model = Decoder(depth=2)
    if fault:
        block = model.blocks[1]
        assert isinstance(block, DecoderBlock)
        block.att.qkv.weight.data[:64] *= fault.strength  # the rows of query and key  # at fault
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = next_token_loss(model, tokens[torch.randint(len(tokens), (16,))])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_of_next_tokens(model, sentences(seed + 1000, back=2))}


class VariationalAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 48), nn.ReLU())
        self.mu = nn.Linear(48, 8)
        self.logvar = nn.Linear(48, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        return self.decoder(mu + (0.5 * logvar).exp() * torch.randn_like(mu)), mu, logvar


@sick(
    "ACT003", "GRD009", steps=250, layers=("mu", "encoder", "logvar"), bites="information", architecture="autoencoder",
    catalogue=(53,), ladder=(8, 20, 100), change="beta = 0.1, or raise it slowly",
)  # fmt: skip
def posterior_collapse(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A variational autoencoder with beta = 20: the code says nothing, the decoder draws the mean picture."""
    torch.manual_seed(seed)
    pictures, _ = glyphs(seed)
    model = VariationalAutoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    beta = fault.strength if fault else 0.1  # at fault
    divergence, loss = torch.tensor(0.0), torch.tensor(0.0)
    for _ in range(steps):
        batch = pictures[torch.randint(len(pictures), (64,))]
        output, mu, logvar = model(batch)
        divergence = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        loss = functional.mse_loss(output, batch, reduction="sum") / len(batch) + beta * divergence  # at fault
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "information": divergence.item()}


@sick(
    "ACT003", steps=150, layers=("projector", "encoder"), bites="spread", silent=True, architecture="contrastive",
    change="push other samples apart, or stop the gradient on one side",
)  # fmt: skip
def siamese_collapse(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Two views are pulled together and nothing is pushed apart: every picture ends at the same point."""
    torch.manual_seed(seed)
    pictures, _ = glyphs(seed)
    model = nn.ModuleDict({"encoder": perceptron(64, 64, 32), "projector": perceptron(32, 32, 16)})
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def embed(x: Tensor) -> Tensor:
        noisy = x + 0.1 * torch.randn_like(x)
        return functional.normalize(model["projector"](torch.relu(model["encoder"](noisy))), dim=1)

    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = pictures[torch.randint(len(pictures), (64,))]
        one, two = embed(batch), embed(batch)
        if fault:
            loss = (one - two).pow(2).sum(1).mean()  # at fault
        else:
            loss = functional.cross_entropy(one @ two.T / 0.2, torch.arange(len(batch)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        spread = embed(pictures).var(0).sum().item()
    return {"loss": loss.item(), "spread": spread}


@sick(
    "OPT007", "GRD009", "GRD001", steps=300, bites="sure", architecture="adversarial", catalogue=(54,),
    ladder=(20, 50, 200), change="one learning rate for both, and smoothed labels",
)  # fmt: skip
def discriminator_wins(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The discriminator learns fifty times faster than the generator, and leaves it nothing to follow."""
    torch.manual_seed(seed)
    pictures, _ = glyphs(seed)
    generator = perceptron(8, 48, 64)
    discriminator = perceptron(64, 64, 1, activation=nn.LeakyReLU)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    rate = 1e-3 * (fault.strength if fault else 1.0)  # at fault
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=rate, betas=(0.5, 0.99))  # at fault
    real, fake = torch.ones(32, 1), torch.zeros(32, 1)
    loss = torch.tensor(0.0)
    for _ in range(steps // 2):
        made = generator(torch.randn(32, 8))
        batch = pictures[torch.randint(len(pictures), (32,))]
        discriminator_optimizer.zero_grad()
        judgement = torch.cat([discriminator(batch), discriminator(made.detach())])
        functional.binary_cross_entropy_with_logits(judgement, torch.cat([real, fake])).backward()
        discriminator_optimizer.step()
        generator_optimizer.zero_grad()
        # The saturating form of the first paper: log(1 − D(G(z))) has no gradient where D is sure.
        loss = functional.logsigmoid(-discriminator(made)).mean()
        loss.backward()
        generator_optimizer.step()
    slope = torch.cat([p.grad.flatten() for p in generator.parameters() if p.grad is not None]).norm().item()
    with torch.no_grad():
        sure = discriminator(pictures).sigmoid().mean() - discriminator(generator(torch.randn(512, 8))).sigmoid().mean()
    return {"loss": loss.item(), "sure": sure.item(), "generator_gradient": slope}
