"""Attention and its relatives from packages that stand on einops, and other single-purpose packages."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.unchanged.program import Group, fit, learn, mean_square, tokens

GROUP = Group("sequences")


def _decoder(options: dict[str, Any], wrapper: dict[str, Any]) -> object:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(dim=32, depth=2, heads=2, attn_dim_head=16, **options)
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=64, max_seq_len=32, attn_layers=layers, **wrapper))
    return fit(model, lambda: model(torch.randint(0, 64, (2, 17))))


_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {}, "rotary": {"rotary_pos_emb": True}, "alibi": {"alibi_pos_bias": True, "alibi_num_heads": 1},
    "rmsnorm-glu": {"use_rmsnorm": True, "ff_glu": True}, "relu-squared": {"ff_relu_squared": True},
    "dropout": {"attn_dropout": 0.2, "ff_dropout": 0.2, "layer_dropout": 0.2}, "macaron": {"macaron": True},
    "talking-heads": {"attn_pre_talking_heads": True}, "t5-bias": {"rel_pos_bias": True},
    "sandwich": {"sandwich_coef": 1},
    "memory-keys": {"attn_num_mem_kv": 4}, "qk-norm": {"attn_qk_norm": True}, "shift-tokens": {"shift_tokens": 1},
}  # fmt: skip
for name, options in _OPTIONS.items():
    GROUP.add(f"x-transformers-{name}", partial(_decoder, options, {}), "x_transformers")
GROUP.add("x-transformers-tied", partial(_decoder, {}, {"tie_embedding": True}), "x_transformers")


@GROUP.program("x_transformers", name="x-transformers-encoder-decoder")
def _both() -> object:
    from x_transformers import XTransformer

    sizes: dict[str, Any] = {
        f"{side}_{key}": value
        for side in ("enc", "dec")
        for key, value in {"num_tokens": 64, "depth": 1, "heads": 2, "max_seq_len": 16}.items()
    }
    model = XTransformer(dim=32, **sizes)
    return fit(model, lambda: model(torch.randint(0, 64, (2, 8)), torch.randint(0, 64, (2, 8))))


@GROUP.program("x_transformers", name="x-transformers-vision")
def _vision() -> object:
    from x_transformers import Encoder, ViTransformerWrapper

    layers = Encoder(dim=32, depth=1, heads=2)
    return learn(ViTransformerWrapper(image_size=16, patch_size=4, num_classes=4, attn_layers=layers), (2, 3, 16, 16))


@GROUP.program("rotary_embedding_torch")
def rotary_embedding() -> object:
    from rotary_embedding_torch import RotaryEmbedding

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rotate, self.project = RotaryEmbedding(dim=8, learned_freq=True), nn.Linear(16, 48)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.project(x).chunk(3, -1))
            rotated = (self.rotate.rotate_queries_or_keys(t) for t in (q, k))
            return nn.functional.scaled_dot_product_attention(*rotated, v)

    return learn(Attention(), (2, 6, 16))


@GROUP.program("performer_pytorch")
def performer() -> object:
    from performer_pytorch import PerformerLM

    sizes: dict[str, Any] = {"num_tokens": 64, "max_seq_len": 16, "dim": 16, "depth": 2, "heads": 2, "dim_head": 8}
    return learn(PerformerLM(**sizes, feature_redraw_interval=3, reversible=True), x=tokens(2, 16))


@GROUP.program("linear_attention_transformer")
def linear_attention() -> object:
    from linear_attention_transformer import LinearAttentionTransformerLM

    sizes: dict[str, Any] = {"num_tokens": 64, "max_seq_len": 16, "dim": 16, "depth": 2, "heads": 2}
    return learn(LinearAttentionTransformerLM(**sizes, causal=True), x=tokens(2, 16))


@GROUP.program("reformer_pytorch")
def reformer() -> object:
    """Reversible layers that are computed again in the backward pass, and random buckets."""
    from reformer_pytorch import ReformerLM

    sizes: dict[str, Any] = {"num_tokens": 64, "max_seq_len": 32, "dim": 16, "depth": 2, "heads": 2, "bucket_size": 8}
    return learn(ReformerLM(**sizes, n_hashes=2, causal=True, lsh_dropout=0.1), x=tokens(2, 32))


@GROUP.program("perceiver_pytorch")
def perceiver() -> object:
    from perceiver_pytorch import Perceiver

    sizes: dict[str, Any] = {"num_freq_bands": 4, "max_freq": 8.0, "depth": 2, "num_latents": 4, "latent_dim": 16}
    more: dict[str, Any] = {"cross_heads": 1, "latent_heads": 2, "cross_dim_head": 8, "latent_dim_head": 8}
    return learn(Perceiver(**sizes, **more, num_classes=4, input_channels=3, input_axis=2), (2, 8, 8, 3))


def _quantiser(name: str, options: dict[str, Any]) -> object:
    import vector_quantize_pytorch as package

    quantiser = getattr(package, name)(**options)
    model = nn.ModuleDict({"encode": nn.Linear(8, 8), "quantise": quantiser, "decode": nn.Linear(8, 8)})

    def loss() -> Tensor:
        x = torch.randn(2, 8, 8)
        found = model["quantise"](model["encode"](x))
        return mean_square([model["decode"](found[0]) - x, found[2:] if len(found) > 2 else []])

    return fit(model, loss)


for name, options in {
    "VectorQuantize": {"dim": 8, "codebook_size": 16, "decay": 0.8, "threshold_ema_dead_code": 2},
    "ResidualVQ": {"dim": 8, "num_quantizers": 2, "codebook_size": 16, "quantize_dropout": True},
    "FSQ": {"levels": [4, 4], "dim": 8}, "LFQ": {"dim": 8, "codebook_size": 16},
}.items():  # fmt: skip
    GROUP.add(f"vector-quantize-{name}", partial(_quantiser, name, options), "vector_quantize_pytorch")


@GROUP.program("denoising_diffusion_pytorch", name="denoising-diffusion")
def _diffusion() -> object:
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    model = GaussianDiffusion(Unet(dim=8, dim_mults=(1, 2), flash_attn=False), image_size=8, timesteps=10)
    return fit(model, lambda: model(torch.rand(2, 3, 8, 8)))


@GROUP.program("denoising_diffusion_pytorch", "ema_pytorch", name="denoising-diffusion-1d-with-ema")
def _diffusion_of_sequences() -> object:
    from denoising_diffusion_pytorch import GaussianDiffusion1D, Unet1D
    from ema_pytorch import EMA

    model = GaussianDiffusion1D(Unet1D(dim=8, dim_mults=(1, 2), channels=4), seq_length=16, timesteps=10)
    mean = EMA(model, beta=0.9, update_every=2, update_after_step=1)

    def loss() -> Tensor:
        mean.update()
        return model(torch.rand(2, 4, 16))

    return fit(model, loss), mean


@GROUP.program("asteroid_filterbanks", name="asteroid-filterbank")
def _filterbank() -> object:
    from asteroid_filterbanks import Decoder, Encoder, FreeFB

    model = nn.Sequential(Encoder(FreeFB(16, 8, stride=4)), nn.ReLU(), Decoder(FreeFB(16, 8, stride=4)))
    return learn(model, (2, 1, 64))
