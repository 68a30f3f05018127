"""The demo's model: what its attention attends to is what it says, and it rarely hesitates."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from demo import model as maker
from demo.conversation import REQUESTS
from demo.verdict import NEAR_TIE

PROMPTS = [prompt for prompts, _ in REQUESTS for prompt in prompts]


@pytest.fixture(scope="module")
def reference(model: Path) -> Any:
    """The checkpoint in Hugging Face's own implementation, in float32; it leaves the MTP layer out."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()


def next_tokens(network: Any) -> tuple[list[int], list[float]]:
    """For every prompt the next token, and the margin by which its logit leads."""
    index = {word: i for i, word in enumerate(maker.vocabulary())}
    found = []
    for prompt in PROMPTS:
        with torch.no_grad():
            logits = network(torch.tensor([[index[word] for word in prompt.split()]])).logits[0, -1]
        best, second = logits.topk(2).values.tolist()
        found.append((int(logits.argmax()), best - second))
    return [token for token, _ in found], [margin for _, margin in found]


def zeroed(projection: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(projection)


def heads_rolled(projection: torch.Tensor) -> torch.Tensor:
    return projection.view(len(projection), maker.DEMO.heads, maker.V_HEAD).roll(1, dims=1).flatten(1)


@pytest.mark.parametrize("spoil", [zeroed, heads_rolled])
def test_other_attention_gives_other_answers(reference: Any, spoil: Callable[[torch.Tensor], torch.Tensor]) -> None:
    spoiled = copy.deepcopy(reference)
    for layer in spoiled.model.layers:
        layer.self_attn.o_proj.weight.data = spoil(layer.self_attn.o_proj.weight.data)
    right, _ = next_tokens(reference)
    wrong, _ = next_tokens(spoiled)
    assert sum(a != b for a, b in zip(right, wrong, strict=True)) >= len(PROMPTS) - 1


def test_the_answers_are_no_near_ties(reference: Any) -> None:
    _, margins = next_tokens(reference)
    assert min(margins) > NEAR_TIE


def test_the_same_seed_makes_the_same_weights(model: Path) -> None:
    from safetensors.torch import load_file

    made, again = load_file(model / "model.safetensors"), maker.weights(maker.DEMO, seed=20)
    assert made.keys() == again.keys()
    assert all(torch.equal(made[name], again[name]) for name in made)
