"""Words of one secret script into another: encoder and decoder have an optimizer each, as in the well-known lesson."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

SIGNS, LENGTH, HIDDEN = 6, 5, 48
START = SIGNS


class EncoderRNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SIGNS, 16)
        self.gru = nn.GRU(16, HIDDEN, batch_first=True)

    def forward(self, word: Tensor) -> Tensor:
        return self.gru(self.embedding(word))[1]


class DecoderRNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SIGNS + 1, 16)
        self.gru = nn.GRU(16, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, SIGNS)

    def forward(self, previous: Tensor, hidden: Tensor) -> Tensor:
        return self.out(self.gru(self.embedding(previous), hidden)[0])


def words(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Other signs, and the word backwards."""
    word = torch.randint(SIGNS, (n, LENGTH), generator=g)
    return word, ((word * 5 + 2) % SIGNS).flip(1)


def shifted(target: Tensor) -> Tensor:
    return torch.cat([torch.full((len(target), 1), START), target[:, :-1]], dim=1)


@program(steps=200, bites="accuracy")
def glossary(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Both optimizers step together after one backward pass; the decoder is shown the true signs."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    encoder, decoder = EncoderRNN(), DecoderRNN()
    encoder_optimizer = torch.optim.Adam(encoder.parameters(), lr=8e-3)
    given = list(decoder.parameters())
    if fault == "glossary_recurrence_only":
        given = list(decoder.gru.parameters())
    decoder_optimizer = torch.optim.Adam(given, lr=8e-3)
    criterion = nn.CrossEntropyLoss()
    start = decoder.out.weight.detach().clone(), encoder.gru.get_parameter("weight_hh_l0").detach().clone()
    value = 0.0
    for _ in range(steps):
        word, target = words(64, g)
        encoder_optimizer.zero_grad()
        if fault != "glossary_decoder_not_cleared":
            decoder_optimizer.zero_grad()
        state = encoder(word)
        if fault == "glossary_state_by_data":
            state = state.data
        loss = criterion(decoder(shifted(target), state).flatten(0, 1), target.flatten())
        loss.backward()
        encoder_optimizer.step()
        decoder_optimizer.step()
        value = loss.item()
    word, target = words(500, g)
    with torch.no_grad():
        said = decoder(shifted(target), encoder(word)).argmax(-1)
    return {
        "loss": value,
        "accuracy": (said == target).float().mean().item(),
        "moved": (decoder.out.weight.detach() - start[0]).norm().item(),
        "encoder_moved": (encoder.gru.get_parameter("weight_hh_l0").detach() - start[1]).norm().item(),
    }


glossary.mistake(
    "glossary_decoder_not_cleared",
    "GRD007",
    summary="Only the encoder's optimizer clears its gradients; the decoder's pile up from the first step on.",
    change="clear both",
    layers=("decoder",),
)
glossary.mistake(
    "glossary_state_by_data",
    "GRD003", "UPD003",
    summary="The encoder's state is handed over as .data: the encoder is never taught.",
    change="hand over the state itself",
    layers=("encoder",),
    bites="encoder_moved",
    silent=True,
)  # fmt: skip
glossary.mistake(
    "glossary_recurrence_only",
    "UPD003",
    summary="The decoder's optimizer was given its recurrent part only: table and output layer stay as drawn.",
    change="all of the decoder's parameters",
    layers=("decoder.out", "decoder.embedding"),
    bites="moved",
    silent=True,
)


@program(steps=200, bites="accuracy", adversarial="a gradient norm that is clipped in every step is clipped too much")
def glossary_with_attention(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The decoder looks back at every sign; the norm is held at a quarter, and RMSprop evens it out."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    reader = nn.GRU(16, 32, batch_first=True, bidirectional=True)
    signs, said = nn.Embedding(SIGNS, 16), nn.Embedding(SIGNS + 1, 16)
    writer = nn.GRU(16, 64, batch_first=True)
    out = nn.Linear(128, SIGNS)
    parts = nn.ModuleList([reader, signs, said, writer, out])
    opt = torch.optim.RMSprop(parts.parameters(), lr=2e-3)
    value, right = 0.0, 0.0
    for _ in range(steps):
        word, target = words(64, g)
        memory = reader(signs(word))[0]
        h = writer(said(shifted(target)))[0]
        weight = torch.softmax(h @ memory.transpose(1, 2) / 8, dim=-1)
        logits = out(torch.cat([h, weight @ memory], dim=-1))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parts.parameters(), 0.25)
        opt.step()
        value = loss.item()
        right = 0.9 * right + 0.1 * (logits.argmax(-1) == target).float().mean().item()
    return {"loss": value, "accuracy": right}
