"""Models of diffusers, tiny, each predicting the noise that one of its schedulers has added."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.unchanged.program import Group, fit, learn, mean_square, noise

GROUP = Group(
    "diffusers", ("diffusers.models.modeling_utils", "diffusers.models.autoencoders", "diffusers.models.unets")
)


def _unet() -> Any:
    from diffusers import UNet2DModel

    return UNet2DModel(
        sample_size=8, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"), dropout=0.1,
    )  # fmt: skip


def _denoise(scheduler: str) -> object:
    import diffusers

    model, schedule = _unet(), getattr(diffusers, scheduler)(num_train_timesteps=100)

    def loss() -> Tensor:
        clean, added, times = torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8), torch.randint(0, 100, (2,))
        if hasattr(schedule, "scale_noise"):  # flow matching
            noisy = schedule.scale_noise(clean, times := schedule.timesteps[times], added)
        else:
            times = schedule.timesteps[times] if "Euler" in scheduler else times
            noisy = schedule.add_noise(clean, added, times)
        return (model(noisy, times).sample - added).square().mean()

    return fit(model, loss)


for scheduler in (
    "DDPMScheduler", "DDIMScheduler", "PNDMScheduler", "DPMSolverMultistepScheduler", "UniPCMultistepScheduler",
    "EulerDiscreteScheduler", "FlowMatchEulerDiscreteScheduler",
):  # fmt: skip
    GROUP.add(f"UNet2DModel-{scheduler}", partial(_denoise, scheduler))


@GROUP.program()
def sampling_between_steps() -> object:
    from diffusers import DDPMScheduler

    model, schedule, samples = _unet(), DDPMScheduler(num_train_timesteps=10), []

    def loss() -> Tensor:
        sample = torch.randn(1, 3, 8, 8)
        with torch.no_grad():
            for time in (9, 5, 1):
                sample = schedule.step(model(sample, time).sample, time, sample).prev_sample
        samples.append(sample)
        return mean_square(model(torch.randn(2, 3, 8, 8), torch.randint(0, 10, (2,))).sample)

    return fit(model, loss), samples


_TIMES = {"timestep": lambda: torch.randint(0, 100, (2,))}
_BLOCKS = {"block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1}
_TRANSFORMER = {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "num_layers": 1, "sample_size": 8}
_MODELS: dict[str, tuple[dict[str, Any], tuple[int, ...], dict[str, Any]]] = {
    "UNet2DConditionModel": (
        {**_BLOCKS, "sample_size": 8, "cross_attention_dim": 16, "attention_head_dim": 4,
         "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
         "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")},
        (2, 4, 8, 8), {**_TIMES, "encoder_hidden_states": noise(2, 5, 16)},
    ),
    "UNet1DModel": (
        {"block_out_channels": (32, 32), "in_channels": 2, "out_channels": 2, "extra_in_channels": 64,
         "sample_size": 32, "down_block_types": ("DownBlock1DNoSkip", "DownBlock1D"),
         "up_block_types": ("UpBlock1D", "UpBlock1DNoSkip")},
        (2, 2, 32), _TIMES,
    ),
    "DiTTransformer2DModel": (
        {**_TRANSFORMER, "patch_size": 2, "num_embeds_ada_norm": 100}, (2, 4, 8, 8),
        {**_TIMES, "class_labels": lambda: torch.randint(0, 100, (2,))},
    ),
    "PixArtTransformer2DModel": (
        {**_TRANSFORMER, "patch_size": 2, "cross_attention_dim": 16, "caption_channels": 8, "out_channels": 4},
        (2, 4, 8, 8),
        {**_TIMES, "encoder_hidden_states": noise(2, 5, 8),
         "added_cond_kwargs": lambda: {"resolution": None, "aspect_ratio": None}},
    ),
    "SD3Transformer2DModel": (
        {**_TRANSFORMER, "patch_size": 2, "joint_attention_dim": 16, "caption_projection_dim": 16, "out_channels": 4,
         "pooled_projection_dim": 8, "pos_embed_max_size": 8},
        (2, 4, 8, 8), {**_TIMES, "encoder_hidden_states": noise(2, 5, 16), "pooled_projections": noise(2, 8)},
    ),
    "PriorTransformer": (
        {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1, "embedding_dim": 8, "num_embeddings": 5,
         "additional_embeddings": 4},
        (2, 8), {**_TIMES, "proj_embedding": noise(2, 8), "encoder_hidden_states": noise(2, 5, 8)},
    ),
    "AutoencoderKL": (
        {**_BLOCKS, "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2},
        (2, 3, 16, 16), {"sample_posterior": lambda: True},
    ),
    "VQModel": (
        {**_BLOCKS, "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2},
        (2, 3, 16, 16), {},
    ),
    "AutoencoderTiny": (
        {"encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8), "num_encoder_blocks": (1, 1),
         "num_decoder_blocks": (1, 1)},
        (2, 3, 16, 16), {},
    ),
    "AutoencoderOobleck": (
        {"encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "channel_multiples": [1, 2], "decoder_channels": 8,
         "decoder_input_channels": 4, "audio_channels": 1},
        (2, 1, 64), {"sample_posterior": lambda: True},
    ),
}  # fmt: skip


def _model(name: str) -> object:
    import diffusers

    options, shape, inputs = _MODELS[name]
    return learn(getattr(diffusers, name)(**options), shape, **inputs)


for name in _MODELS:
    GROUP.add(name, partial(_model, name))
