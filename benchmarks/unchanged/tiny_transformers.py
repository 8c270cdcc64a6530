"""Any family of transformers as a tiny model with random weights, from its configuration alone."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.unchanged.program import Group, fit, mean_square

# What makes a model small, by the names that configurations have for it. A family takes those that it knows.
_SIZES: dict[int, str] = {
    99: "vocab_size text_vocab_size",
    64: "intermediate_size ffn_dim d_ff encoder_ffn_dim decoder_ffn_dim n_inner max_position_embeddings n_positions "
    "max_source_positions max_target_positions max_sequence_length ffn_hidden_size n_ctx moe_intermediate_size "
    "shared_expert_intermediate_size hidden_dim audio_vocab_size num_mel_bins mask_feature_size fpn_feature_size",
    32: "hidden_size d_model n_embd dim embed_dim embedding_size image_size num_queries attention_hidden_size "
    "lru_width projection_dim hidden_channels decoder_hidden_size text_embed_dim bottleneck_features entity_emb_size "
    "emb_dim",
    16: "q_lora_rank kv_lora_rank sliding_window attention_window local_attn_chunk_length lsh_attn_chunk_length "
    "mamba_chunk_size chunk_size d_latents",
    8: "head_dim d_kv attention_head_size patch_size qk_rope_head_dim qk_nope_head_dim v_head_dim state_size d_head "
    "ssm_state_size mamba_d_state mamba_d_head attention_head_dim qk_head_dim index_head_dim bottleneck_dim "
    "num_latents",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads num_experts "
    "num_local_experts n_routed_experts num_decoder_attention_heads num_encoder_attention_heads num_frames "
    "decoder_num_attention_heads index_n_heads",
    2: "num_hidden_layers n_layer num_layers n_layers encoder_layers decoder_layers num_key_value_heads num_kv_heads "
    "num_experts_per_tok top_k_experts decoder_num_hidden_layers num_decoder_layers num_encoder_layers moe_topk "
    "decoder_num_layers encoder_num_layers index_topk depth tubelet_size",
    1: "n_group topk_group n_shared_experts num_hidden_groups first_k_dense_replace bos_token_id eos_token_id "
    "decoder_start_token_id sep_token_id cls_token_id",
    0: "pad_token_id",
}  # fmt: skip
_TINY = {name: size for size, names in _SIZES.items() for name in names.split()}
_HEADS = ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_CLASSIFICATION", "CTC", "AUDIO_CLASSIFICATION")
_LABELLED = ("LM", "Generation", "CTC")  # in the names of models that take the tokens as labels


def add_families(group: Group, names: str) -> None:
    for name in names.split():
        group.add(name, partial(_train, name), "transformers", prepare=partial(_kinds, name))


def _kinds(family: str) -> tuple[Any, Any]:
    """The classes of its configuration and of the first kind of model that it has."""
    from transformers.models.auto import configuration_auto, modeling_auto

    configuration: Any = configuration_auto.CONFIG_MAPPING[family]
    mappings = [getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING") for head in _HEADS]
    mapping: Any = next(one for one in (*mappings, modeling_auto.MODEL_MAPPING) if configuration in one)
    model = mapping[configuration]
    return configuration, model[0] if isinstance(model, tuple) else model


def tiny(configuration: Any) -> Any:
    usual, aliases = configuration(), configuration.attribute_map
    known = {*usual.to_dict(), *aliases}
    sizes = {
        name: size
        for name, size in _TINY.items()
        if name in known
        and aliases.get(name) not in _TINY
        and not isinstance(getattr(usual, name), (list, tuple, dict))
    }
    parts = {name: tiny(kind) for name, kind in configuration.sub_configs.items() if kind.__name__ != "AutoConfig"}
    return configuration(**sizes, **parts)


def _train(family: str) -> object:
    configuration, kind = _kinds(family)
    model = kind(tiny(configuration)).train()

    def loss() -> Tensor:
        output = model(**_inputs(model))
        own = getattr(output, "loss", None)
        return mean_square(output) if own is None else own

    return fit(model, loss)


def _inputs(model: Any) -> dict[str, Tensor]:
    """A random batch of what its forward pass takes."""
    accepted, config = inspect.signature(model.forward).parameters, model.config
    size = getattr(getattr(config, "vision_config", config), "image_size", 32)
    size = size[0] if isinstance(size, (list, tuple)) else size if isinstance(size, int) else 32
    vocabulary = getattr(getattr(config, "text_config", config), "vocab_size", None) or 99
    tokens = torch.randint(3, vocabulary, (2, 16))
    batch = {
        "pixel_values": torch.randn(2, getattr(config, "num_channels", 3), size, size),
        "input_values": torch.randn(2, 4000),
        "input_features": torch.randn(2, getattr(config, "num_mel_bins", 64), 64),
    }
    if "input_ids" in accepted:
        batch |= {"input_ids": tokens, "decoder_input_ids": tokens}
        if any(word in type(model).__name__ for word in _LABELLED):
            batch["labels"] = tokens
    return {name: value for name, value in batch.items() if name in accepted}
