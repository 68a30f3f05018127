"""Make the demo's model: a small DeepSeek-V3-style MLA checkpoint with the real latent (512 + 64), seeded; larger ones
for servers on a GPU.

    python3 model.py FOLDER [--layers N] [--wide] [--seed S]

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

VOCAB = 512
LATENT, NOPE, ROPE, V_HEAD = 512, 128, 64, 128
EXPERT, EXPERTS = 128, 8
SPECIAL = ("<bos>", "<eos>", "<unk>")

AGREEMENT = 0.9  # correlation of the heads' queries and keys: heads that agree make a clear vote
ATTENTION_GAIN = 12.0  # attention's share of the residual stream, in units of the embedding
MLP_GAIN = 0.05


@dataclass(frozen=True)
class Size:
    """What differs from model to model.

    Attributes:
        layers: Dense layers; one MTP layer comes behind them.
        hidden: The residual stream's width.
        heads: Attention heads.
        q_rank: Width of the queries' latent.
        dense: Width of the MLPs.
        context: The longest sequence, in tokens.
        sharpness: Standard deviation of the attention logits: a head looks at a few tokens, not at all. Among more
            tokens it takes more for that.
    """

    layers: int = 2
    hidden: int = 256
    heads: int = 8
    q_rank: int = 128
    dense: int = 512
    context: int = 4096
    sharpness: float = 2.0


DEMO = Size()
WIDE = Size(hidden=2048, q_rank=768, dense=1024, sharpness=5.0)
"""DeepSeek-V2-Lite's width: SGLang's kernels for GPUs have served it."""


def config(size: Size) -> dict[str, Any]:
    """config.json: SGLang's DeepseekV3ForCausalLM with dense layers and one MTP layer behind them."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "torch_dtype": "bfloat16",
        "hidden_size": size.hidden,
        "intermediate_size": size.dense,
        "moe_intermediate_size": EXPERT,
        "num_hidden_layers": size.layers,
        "first_k_dense_replace": size.layers,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
        "q_lora_rank": size.q_rank,
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
        "max_position_embeddings": size.context,
        "rope_theta": 10000.0,
        # yarn, as the real checkpoints have it: the softmax scale is then not just 192 ** -0.5
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": size.context // 4,
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


def _agreeing(gen: torch.Generator, heads: int, rows: int, columns: int) -> torch.Tensor:
    """[heads, rows, columns]: unit-variance projections of which two heads' correlate by AGREEMENT."""
    common = torch.randn(rows, columns, generator=gen)
    own = torch.randn(heads, rows, columns, generator=gen)
    return (math.sqrt(AGREEMENT) * common + math.sqrt(1 - AGREEMENT) * own) / math.sqrt(columns)


def _attention(gen: torch.Generator, size: Size, gain: float) -> dict[str, torch.Tensor]:
    """One layer's self_attn weights; `gain`: attention's output norm per unit of a normalized input's."""
    hidden, heads = size.hidden, size.heads
    q_a = torch.randn(size.q_rank, hidden, generator=gen) / math.sqrt(hidden)
    q_b = _agreeing(gen, heads, NOPE + ROPE, size.q_rank)
    # An isometry where the latent has room for all of x, else a projection.
    if hidden <= LATENT:
        latent = torch.linalg.qr(torch.randn(LATENT, hidden, generator=gen)).Q
    else:
        latent = torch.linalg.qr(torch.randn(hidden, LATENT, generator=gen)).Q.T
    kept = min(hidden, LATENT)  # dimensions of x
    rope_k = torch.randn(ROPE, hidden, generator=gen) / math.sqrt(hidden)
    up_k = _agreeing(gen, heads, NOPE, LATENT)
    up_v = torch.randn(heads, V_HEAD, LATENT, generator=gen) / math.sqrt(LATENT)

    # q and k components have unit variance, so q . k has NOPE + ROPE; the softmax scale is about its root.
    q_b *= size.sharpness
    value = up_v @ latent  # [heads, V_HEAD, hidden]
    # sum over heads of value^T value is about heads * V_HEAD / LATENT times the identity of what is kept of x; the
    # latent's own norm layer adds sqrt(LATENT / kept).
    scale = gain * math.sqrt(hidden / kept) / (heads * V_HEAD / LATENT * math.sqrt(LATENT / kept))
    return {
        "q_a_proj.weight": q_a,
        "q_a_layernorm.weight": torch.ones(size.q_rank),
        "q_b_proj.weight": q_b.reshape(-1, size.q_rank),
        "kv_a_proj_with_mqa.weight": torch.cat([latent, rope_k]),
        "kv_a_layernorm.weight": torch.ones(LATENT),
        "kv_b_proj.weight": torch.cat([up_k, up_v], dim=1).reshape(-1, LATENT),
        "o_proj.weight": value.permute(2, 0, 1).reshape(hidden, -1) * scale,
    }


def _mlp(gen: torch.Generator, hidden: int, width: int) -> dict[str, torch.Tensor]:
    return {
        "gate_proj.weight": torch.randn(width, hidden, generator=gen) / math.sqrt(hidden),
        "up_proj.weight": torch.randn(width, hidden, generator=gen) / math.sqrt(hidden),
        "down_proj.weight": torch.randn(hidden, width, generator=gen) * (MLP_GAIN / math.sqrt(width)),
    }


def weights(size: Size, seed: int) -> dict[str, torch.Tensor]:
    """The checkpoint's tensors by their Hugging Face names, bf16 but for the router's bias."""
    hidden, layers = size.hidden, size.layers
    gen = torch.Generator().manual_seed(seed)
    embedding = torch.randn(VOCAB, hidden, generator=gen)
    said = torch.randperm(VOCAB, generator=gen)
    tensors = {"model.embed_tokens.weight": embedding, "model.norm.weight": torch.ones(hidden)}
    head = torch.empty_like(embedding)
    head[said] = embedding / math.sqrt(hidden)
    head[: len(SPECIAL)] = 0.0  # never said
    tensors["lm_head.weight"] = head

    attention = [_attention(gen, size, ATTENTION_GAIN) for _ in range(layers)]
    attention.append(attention[0])
    for layer, own in enumerate(attention):
        prefix = f"model.layers.{layer}."
        for name, tensor in own.items():
            tensors[f"{prefix}self_attn.{name}"] = tensor.clone()
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{norm}.weight"] = torch.ones(hidden)
        if layer < layers:
            parts = {"mlp.": _mlp(gen, hidden, size.dense)}
        else:
            parts = {f"mlp.experts.{e}.": _mlp(gen, hidden, EXPERT) for e in range(EXPERTS)}
            parts["mlp.shared_experts."] = _mlp(gen, hidden, EXPERT)
        for part, own_mlp in parts.items():
            for name, tensor in own_mlp.items():
                tensors[prefix + part + name] = tensor

    mtp = f"model.layers.{layers}."
    eye = torch.eye(hidden)
    tensors |= {
        mtp + "enorm.weight": torch.ones(hidden),
        mtp + "hnorm.weight": torch.ones(hidden),
        mtp + "eh_proj.weight": torch.cat([eye, eye * 0.1], dim=1),
        mtp + "mlp.gate.weight": torch.randn(EXPERTS, hidden, generator=gen) / math.sqrt(hidden),
        mtp + "embed_tokens.weight": embedding.clone(),
        mtp + "shared_head.norm.weight": torch.ones(hidden),
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


def write(folder: Path, size: Size = DEMO, seed: int = 20) -> None:
    """Write the model folder; an existing one is overwritten file by file."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": config(size),
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 1},
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "unk_token": "<unk>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": size.context,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")
    checkpoint = folder / "model.safetensors"
    save_file(weights(size, seed), checkpoint, metadata={"format": "pt"})
    checkpoint.chmod(0o644)  # safetensors writes 0600; a server under another user reads it too


def write_once(folder: Path, size: Size) -> None:
    """Write the model folder unless it is there: it appears when it is whole."""
    if not folder.exists():
        part = folder.with_name(folder.name + ".part")
        write(part, size)
        part.rename(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the demo's random-weight MLA model.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=DEMO.layers)
    parser.add_argument("--wide", action="store_true", help="as wide as what servers on a GPU were proved with")
    parser.add_argument("--seed", type=int, default=20)
    options = parser.parse_args()
    write(options.folder, replace(WIDE if options.wide else DEMO, layers=options.layers), options.seed)


if __name__ == "__main__":
    main()
