"""The GPU bundle's stand-in for sgl_kernel: its operators against float64, its tree helpers against loops.

It is imported as gpu_bundle.sgl_kernel: other tests of this process have a stub of their own under its real name.
"""

from __future__ import annotations

import importlib
import math
import random
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from gpu_bundle import sgl_kernel

BF16 = {"rtol": 2**-7, "atol": 2**-7}


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(math.prod(shape))).to(dtype)


def norm(value: Tensor, weight: Tensor) -> Tensor:
    return value / (value.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


@pytest.mark.parametrize("prefix", ["", "gemma_"])
def test_norms(prefix: str) -> None:
    x, residual, weight = normal(5, 96), normal(6, 96)[:5], normal(96)
    scale = weight.double() + (1 if prefix else 0)
    plain = getattr(sgl_kernel, f"{prefix}rmsnorm")
    torch.testing.assert_close(plain(x, weight).double(), norm(x.double(), scale), **BF16)
    out = torch.empty_like(x)
    assert plain(x, weight, 1e-6, out=out) is out
    total = x.double() + residual.double()
    getattr(sgl_kernel, f"{prefix}fused_add_rmsnorm")(x, residual, weight, 1e-6)
    torch.testing.assert_close(x.double(), norm(total, scale), **BF16)
    torch.testing.assert_close(residual.double(), total, **BF16)


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(
    ("name", "function"), [("silu", lambda x: x * torch.sigmoid(x)), ("gelu", gelu), ("gelu_tanh", gelu_tanh)]
)
def test_activations(name: str, function: Callable[[Tensor], Tensor]) -> None:
    x = normal(3, 40)
    gate, value = x.double().chunk(2, -1)
    out = torch.empty(3, 20, dtype=x.dtype)
    assert getattr(sgl_kernel, f"{name}_and_mul")(x, out) is out
    torch.testing.assert_close(out.double(), function(gate) * value, **BF16)


def test_merged_states_are_the_attention_over_both_parts() -> None:
    scores, values = normal(4, 2, 9, dtype=torch.float64), normal(4, 2, 9, 16, dtype=torch.float64)

    def attention(part: slice) -> tuple[Tensor, Tensor]:
        weights = scores[..., part].softmax(-1)
        return (weights[..., None] * values[..., part, :]).sum(2).float(), scores[..., part].logsumexp(-1).float()

    merged = sgl_kernel.merge_state_v2(*attention(slice(0, 4)), *attention(slice(4, 9)))
    for got, want in zip(merged, attention(slice(0, 9)), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("empty", [-math.inf, math.inf])
def test_a_part_without_keys_adds_nothing(empty: float) -> None:
    value, lse = normal(3, 2, 8), normal(3, 2, dtype=torch.float32)
    nothing = torch.full_like(lse, empty)
    out, total = sgl_kernel.merge_state_v2(value, lse, torch.zeros_like(value), nothing)
    assert torch.equal(out, value)
    torch.testing.assert_close(total, lse)
    out, total = sgl_kernel.merge_state_v2(value, nothing, value, nothing)
    assert not out.any()
    assert (total == -math.inf).all()


def test_what_is_not_there_raises_when_it_is_called() -> None:
    from gpu_bundle.sgl_kernel.kvcacheio import transfer_kv_direct
    from gpu_bundle.sgl_kernel.utils import is_arch_support_pdl

    from gpu_bundle.sgl_kernel import fp8_scaled_mm

    assert is_arch_support_pdl() is False
    for function in (fp8_scaled_mm, transfer_kv_direct):
        with pytest.raises(NotImplementedError, match=f"sgl_kernel.{function.__name__} is not in the stand-in"):
            function(1, out=2)


@pytest.mark.parametrize("name", sgl_kernel.NOT_THERE)
def test_what_sglang_does_without_is_no_module(name: str) -> None:
    with pytest.raises(ImportError):
        importlib.import_module(f"gpu_bundle.sgl_kernel.{name}")


def test_flash_mla_raises_when_it_is_called() -> None:
    from gpu_bundle import flash_mla
    from gpu_bundle.flash_mla.flash_mla_interface import FlashMLASchedMeta

    for call in (FlashMLASchedMeta, flash_mla.flash_mla_with_kvcache):
        with pytest.raises(NotImplementedError, match=r"flash_mla\..* is not in the stand-in"):
            call()


def test_renormalized_probabilities() -> None:
    probs = torch.tensor([[0.1, 0.4, 0.3, 0.2], [0.25, 0.25, 0.4, 0.1]])
    top_k = sgl_kernel.top_k_renorm_prob(probs, torch.tensor([2, 1 << 30]))
    torch.testing.assert_close(top_k, torch.stack([torch.tensor([0, 4, 3, 0]) / 7, probs[1]]))
    top_p = sgl_kernel.top_p_renorm_prob(probs, torch.tensor([0.5, 0.3]))
    torch.testing.assert_close(top_p, torch.tensor([[0, 4 / 7, 3 / 7, 0], [0, 0, 1, 0]]))
    torch.testing.assert_close(sgl_kernel.top_p_renorm_prob(probs, 1.0), probs)


# ---- Trees -----------------------------------------------------------------------------------------------


class Trees:
    """Random trees of n nodes, one a request: parents, and the links that say the same."""

    def __init__(self, seed: int, batch: int, n: int) -> None:
        draw = random.Random(seed)
        self.batch, self.n, self.draw = batch, n, draw
        self.parents = [[-1, *(draw.randrange(max(0, i - 6), i) for i in range(1, n))] for _ in range(batch)]
        self.index = torch.arange(batch * n).view(batch, n)
        self.children = [[[c for c in range(n) if p[c] == i] for i in range(n)] for p in self.parents]
        self.next_token = torch.tensor([[c[0] if c else -1 for c in tree] for tree in self.children])
        self.next_sibling = torch.full((batch, n), -1)
        for b, tree in enumerate(self.children):
            for family in tree:
                for one, other in pairwise(family):
                    self.next_sibling[b, one] = other

    def ancestors(self, b: int, node: int) -> list[int]:
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[b][node]
        return path

    def mask(self, b: int) -> Tensor:
        mask = torch.zeros(self.n, self.n, dtype=torch.bool)
        for node in range(self.n):
            mask[node, self.ancestors(b, node)] = True
        return mask

    def tokens(self, vocabulary: int) -> Tensor:
        return torch.tensor([[self.draw.randrange(vocabulary) for _ in range(self.n)] for _ in range(self.batch)])

    def outputs(self, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """predicts, accept_index, accept_token_num as SGLang hands them over."""
        predicts = torch.full((self.batch * self.n,), -7, dtype=torch.int32)
        accepted = torch.full((self.batch, length), -1, dtype=torch.int32)
        return predicts, accepted, torch.full((self.batch,), -7, dtype=torch.int32)

    def links(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.index, self.next_token, self.next_sibling


SHAPES = [(0, 1, 1, 1), (1, 3, 2, 2), (2, 4, 8, 5), (3, 2, 17, 4), (4, 5, 32, 20), (5, 2, 64, 8)]


@pytest.mark.parametrize(("seed", "batch", "n", "length"), SHAPES)
def test_verify_tree_greedy(seed: int, batch: int, n: int, length: int) -> None:
    trees = Trees(seed, batch, n)
    candidates, target = trees.tokens(3), trees.tokens(3)
    got, want = trees.outputs(length), trees.outputs(length)
    sgl_kernel.verify_tree_greedy(*got, candidates, *trees.links(), target)
    for b in range(batch):
        node, want[1][b, 0] = 0, b * n
        for step in range(1, length):
            choice = target[b, node]
            below = next((c for c in trees.children[b][node] if candidates[b, c] == choice), None)
            if below is None:
                break
            want[0][b * n + node], want[1][b, step], node = choice, b * n + below, below
        want[0][b * n + node] = target[b, node]
        want[2][b] = (want[1][b] >= 0).sum() - 1
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("thresholds", [(1.0, 1.0), (0.4, 1.0), (1.0, 0.5)])
@pytest.mark.parametrize(("seed", "batch", "n", "length"), SHAPES)
def test_sampling_over_a_tree(seed: int, batch: int, n: int, length: int, thresholds: tuple[float, float]) -> None:
    trees, vocabulary = Trees(seed, batch, n), 6
    generator = torch.Generator().manual_seed(seed)
    candidates = trees.tokens(vocabulary)
    target = torch.randn(batch, n, vocabulary, generator=generator).mul(2).softmax(-1)
    coins, last_coins = torch.rand(batch, n, generator=generator), torch.rand(batch, generator=generator)
    got, want = trees.outputs(length), trees.outputs(length)
    sgl_kernel.tree_speculative_sampling_target_only(
        *got, candidates, *trees.links(), coins, last_coins, target, torch.zeros_like(target), *thresholds
    )
    single, total = thresholds
    for b in range(batch):
        node, passed, want[1][b, 0] = 0, 0, b * n
        refused: set[int] = set()
        while passed < length - 1:
            mass, refused, below = 0.0, set(), None
            for child in trees.children[b][node]:
                token = int(candidates[b, child])
                mass += float(target[b, node, token])
                if coins[b, node] < mass / total or target[b, node, token] >= single:
                    below = child
                    break
                refused.add(token)
            if below is None:
                break
            passed += 1
            want[0][b * n + node], want[1][b, passed], node = token, b * n + below, below
            refused = set()
        rest = [0.0 if token in refused else float(target[b, node, token]) for token in range(vocabulary)]
        bound = float(last_coins[b]) * sum(rest)
        token = next(t for t in range(vocabulary) if sum(rest[: t + 1]) > bound)
        want[0][b * n + node], want[2][b] = token, passed
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
@pytest.mark.parametrize(("seed", "batch", "n", "_length"), SHAPES)
def test_reconstructed_links(seed: int, batch: int, n: int, _length: int, dtype: torch.dtype) -> None:
    trees = Trees(seed, batch, n)
    lengths = torch.tensor([10 + b for b in range(batch)])
    masks = [trees.mask(b).flatten() for b in range(batch)]
    spare = torch.ones(5, dtype=torch.bool)  # a buffer may be longer than what it holds
    got = [torch.full((batch, n), -7) for _ in range(3)]
    positions = torch.zeros(batch * n, dtype=torch.long)
    mask = torch.cat([*masks, spare]).to(dtype)
    sgl_kernel.reconstruct_indices_from_tree_mask(mask, lengths, positions, *got, batch, n)
    for one, other in zip(got, trees.links(), strict=True):
        assert torch.equal(one, other)
    assert positions.tolist() == [10 + b + len(trees.ancestors(b, i)) - 1 for b in range(batch) for i in range(n)]
