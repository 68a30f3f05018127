"""Make the demo's model: a small DeepSeek-V3-style MLA checkpoint with the real latent (512 + 64), seeded.

    python3 model.py FOLDER [--layers N] [--seed S]

Every weight is random. So that *attention decides the answers*, three of them depend on each other: per head,
o_proj is the transpose of the value path (kv_a latent, then kv_b's value rows), scaled up; and lm_head is the
embedding with its rows permuted. What a token attends to is therefore what is said next (through the
permutation): the heads vote, a vote has a wide logit margin, and a kernel that attends to the wrong thing
says something else. The MLP contributes little. The MTP layer (for EAGLE) copies layer 0's attention.

Needs torch and safetensors, nothing of SGLang.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

HIDDEN, VOCAB, HEADS = 256, 512, 8
Q_RANK, LATENT, NOPE, ROPE, V_HEAD = 128, 512, 128, 64, 128
DENSE, EXPERT, EXPERTS = 512, 128, 8
SPECIAL = ("<bos>", "<eos>", "<unk>")

SHARPNESS = 2.0  # standard deviation of the attention logits: a head looks at a few tokens, not at all
AGREEMENT = 0.9  # correlation of the heads' queries and keys: heads that agree make a clear vote
ATTENTION_GAIN = 12.0  # attention's share of the residual stream, in units of the embedding
MLP_GAIN = 0.05


def config(layers: int) -> dict[str, Any]:
    """config.json: SGLang's DeepseekV3ForCausalLM with dense layers and one MTP layer behind them."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "torch_dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "intermediate_size": DENSE,
        "moe_intermediate_size": EXPERT,
        "num_hidden_layers": layers,
        "first_k_dense_replace": layers,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "q_lora_rank": Q_RANK,
        "kv_lora_rank": LATENT,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "v_head_dim": V_HEAD,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_layer_freq": 1,
        "ep_size": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "vocab_size": VOCAB,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        # yarn, as the real checkpoints have it: the softmax scale is then not just 192 ** -0.5
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def _agreeing(gen: torch.Generator, rows: int, columns: int) -> torch.Tensor:
    """[HEADS, rows, columns]: unit-variance projections of which two heads' correlate by AGREEMENT."""
    common = torch.randn(rows, columns, generator=gen)
    own = torch.randn(HEADS, rows, columns, generator=gen)
    return (math.sqrt(AGREEMENT) * common + math.sqrt(1 - AGREEMENT) * own) / math.sqrt(columns)


def _attention(gen: torch.Generator, gain: float) -> dict[str, torch.Tensor]:
    """One layer's self_attn weights; `gain`: attention's output norm per unit of a normalized input's."""
    q_a = torch.randn(Q_RANK, HIDDEN, generator=gen) / math.sqrt(HIDDEN)
    q_b = _agreeing(gen, NOPE + ROPE, Q_RANK)
    latent = torch.linalg.qr(torch.randn(LATENT, HIDDEN, generator=gen)).Q  # isometry: nothing of x is lost
    rope_k = torch.randn(ROPE, HIDDEN, generator=gen) / math.sqrt(HIDDEN)
    up_k = _agreeing(gen, NOPE, LATENT)
    up_v = torch.randn(HEADS, V_HEAD, LATENT, generator=gen) / math.sqrt(LATENT)

    # q and k components have unit variance, so q . k has NOPE + ROPE; the softmax scale is about its root.
    q_b *= SHARPNESS
    value = up_v @ latent  # [HEADS, V_HEAD, HIDDEN]
    # sum over heads of value^T value is about HEADS * V_HEAD / LATENT times the identity; the latent's own
    # norm layer adds sqrt(LATENT / HIDDEN).
    scale = gain / (HEADS * V_HEAD / LATENT * math.sqrt(LATENT / HIDDEN))
    return {
        "q_a_proj.weight": q_a,
        "q_a_layernorm.weight": torch.ones(Q_RANK),
        "q_b_proj.weight": q_b.reshape(-1, Q_RANK),
        "kv_a_proj_with_mqa.weight": torch.cat([latent, rope_k]),
        "kv_a_layernorm.weight": torch.ones(LATENT),
        "kv_b_proj.weight": torch.cat([up_k, up_v], dim=1).reshape(-1, LATENT),
        "o_proj.weight": value.permute(2, 0, 1).reshape(HIDDEN, -1) * scale,
    }


def _mlp(gen: torch.Generator, width: int) -> dict[str, torch.Tensor]:
    return {
        "gate_proj.weight": torch.randn(width, HIDDEN, generator=gen) / math.sqrt(HIDDEN),
        "up_proj.weight": torch.randn(width, HIDDEN, generator=gen) / math.sqrt(HIDDEN),
        "down_proj.weight": torch.randn(HIDDEN, width, generator=gen) * (MLP_GAIN / math.sqrt(width)),
    }


def weights(layers: int, seed: int) -> dict[str, torch.Tensor]:
    """The checkpoint's tensors by their Hugging Face names, bf16 but for the router's bias."""
    gen = torch.Generator().manual_seed(seed)
    embedding = torch.randn(VOCAB, HIDDEN, generator=gen)
    said = torch.randperm(VOCAB, generator=gen)
    tensors = {"model.embed_tokens.weight": embedding, "model.norm.weight": torch.ones(HIDDEN)}
    head = torch.empty_like(embedding)
    head[said] = embedding / math.sqrt(HIDDEN)
    head[: len(SPECIAL)] = 0.0  # never said
    tensors["lm_head.weight"] = head

    attention = [_attention(gen, ATTENTION_GAIN) for _ in range(layers)]
    attention.append(attention[0])
    for layer, own in enumerate(attention):
        prefix = f"model.layers.{layer}."
        for name, tensor in own.items():
            tensors[f"{prefix}self_attn.{name}"] = tensor.clone()
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{norm}.weight"] = torch.ones(HIDDEN)
        if layer < layers:
            parts = {"mlp.": _mlp(gen, DENSE)}
        else:
            parts = {f"mlp.experts.{e}.": _mlp(gen, EXPERT) for e in range(EXPERTS)}
            parts["mlp.shared_experts."] = _mlp(gen, EXPERT)
        for part, own_mlp in parts.items():
            for name, tensor in own_mlp.items():
                tensors[prefix + part + name] = tensor

    mtp = f"model.layers.{layers}."
    eye = torch.eye(HIDDEN)
    tensors |= {
        mtp + "enorm.weight": torch.ones(HIDDEN),
        mtp + "hnorm.weight": torch.ones(HIDDEN),
        mtp + "eh_proj.weight": torch.cat([eye, eye * 0.1], dim=1),
        mtp + "mlp.gate.weight": torch.randn(EXPERTS, HIDDEN, generator=gen) / math.sqrt(HIDDEN),
        mtp + "embed_tokens.weight": embedding.clone(),
        mtp + "shared_head.norm.weight": torch.ones(HIDDEN),
        mtp + "shared_head.head.weight": head.clone(),
    }
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    tensors[mtp + "mlp.gate.e_score_correction_bias"] = torch.zeros(EXPERTS)
    return tensors


def vocabulary() -> list[str]:
    """512 words: the special ones, then two-syllable words in a fixed order."""
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    words = [a + b for i, a in enumerate(syllables) for b in syllables[i % 7 :: 7]]
    return [*SPECIAL, *words[: VOCAB - len(SPECIAL)]]


def tokenizer() -> dict[str, Any]:
    """tokenizer.json: one word, one token; the bos token is put in front."""
    words = vocabulary()
    special = [
        {
            "id": i,
            "content": word,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, word in enumerate(SPECIAL)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(words)}, "unk_token": "<unk>"},
    }


def write(folder: Path, layers: int = 2, seed: int = 20) -> None:
    """Write the model folder; an existing one is overwritten file by file."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": config(layers),
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 1},
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "unk_token": "<unk>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": 4096,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")
    checkpoint = folder / "model.safetensors"
    save_file(weights(layers, seed), checkpoint, metadata={"format": "pt"})
    checkpoint.chmod(0o644)  # safetensors writes 0600; a server under another user reads it too


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the demo's random-weight MLA model.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=20)
    options = parser.parse_args()
    write(options.folder, options.layers, options.seed)


if __name__ == "__main__":
    main()
