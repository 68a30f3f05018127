"""Whether KDTree would serve the verify calls of a server, as far as its command line tells."""

from __future__ import annotations

import re
from typing import Any

import documents
from documents import Block

HEADS = {"zai-org/GLM-4.7-Flash": 20, "moonshotai/Kimi-K2.6": 64, "deepseek-ai/DeepSeek-V3.1": 128}
"""Query heads, for which a tensor-parallel size must be a divisor."""
FAMILY = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
MOST_DRAFTS = int(
    re.findall(
        r"#define KDTREE_MAX_DRAFT_TOKENS (\d+)",
        (documents.ROOT / "kernel" / "include" / "kdtree_verify.h").read_text(),
    )[0]
)


def complaints(block: Block, told: dict[str, Any]) -> list[str]:
    """What SGLang's parser, KDTree's launcher, or the rules of trees have against a server of these settings."""
    if "error" in told:
        return [told["error"]]
    found = []
    if told["backends"] != ["triton", "triton"]:
        found.append(f"verify does not run on Triton: {told['backends']}")
    for name in ("use_ray", "enable_pdmux", "enable_deterministic_inference"):
        if told[name]:
            found.append(f"{name}: KDTree stands aside")
    if told["dcp_size"] != 1:
        found.append("DCP and trees exclude each other")
    if told["kv_cache_dtype"] not in ("auto", "bf16", "bfloat16", "fp8_e4m3", "fp8_e5m2"):
        found.append(f"a KV cache of {told['kv_cache_dtype']} is not the kernel's")
    if (cards := block.value("cards")) and told["ranks"] != int(cards):
        found.append(f"{told['ranks']} ranks on {cards} cards")
    heads = HEADS.get(told["model_path"])
    if heads and heads % told["tp_size"]:
        found.append(f"{heads} heads do not divide by {told['tp_size']}")
    return found + _tree(told)


def _tree(told: dict[str, Any]) -> list[str]:
    algorithm, drafts = told["speculative_algorithm"], told["speculative_num_draft_tokens"]
    found = []
    if drafts and drafts > MOST_DRAFTS:
        found.append(f"{drafts} draft tokens, the kernel takes {MOST_DRAFTS}")
    if algorithm == "NGRAM":
        if told["speculative_ngram_max_bfs_breadth"] > 1 and told["page_size"] not in (None, 1):
            found.append("SGLang refuses NGRAM trees with pages")
        if told["enable_dp_attention"]:
            found.append("SGLang refuses NGRAM with DP attention")
    if algorithm in FAMILY:
        steps, topk = told["speculative_num_steps"], told["speculative_eagle_topk"]
        if None in (steps, topk, drafts):
            return [*found, "steps, topk and draft tokens: all or none"]
        if topk == 1:
            found.append("a chain, no tree")
        if topk + (steps - 1) * topk**2 < drafts - 1:
            found.append(f"{steps} steps of {topk} have fewer candidates than {drafts} - 1")
    return found
