"""Stand-in for the compiled package sgl_kernel, for SGLang on a GPU machine that has torch and no room for it.

SGLang imports many operators of it by name and calls few: those that a dense bf16 model may call are here, in
torch; any other can be imported, and raises when it is called. Nothing here asks the GPU for a value, so all of it
can be captured into a CUDA graph. The tree helpers are in speculative.py.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from .speculative import (
    build_tree_kernel_efficient,
    reconstruct_indices_from_tree_mask,
    top_k_renorm_prob,
    top_p_renorm_prob,
    tree_speculative_sampling_target_only,
    verify_tree_greedy,
)

__version__ = "0.4.10+standin"
__all__ = [
    "build_tree_kernel_efficient",
    "fused_add_rmsnorm",
    "gelu_and_mul",
    "gelu_tanh_and_mul",
    "gemma_fused_add_rmsnorm",
    "gemma_rmsnorm",
    "is_arch_support_pdl",
    "merge_state_v2",
    "reconstruct_indices_from_tree_mask",
    "rmsnorm",
    "silu_and_mul",
    "top_k_renorm_prob",
    "top_p_renorm_prob",
    "tree_speculative_sampling_target_only",
    "verify_tree_greedy",
    "weak_ref_tensor",
]

NOT_THERE = ("allreduce", "scalar_type")
"""Modules whose import SGLang tries: without them it takes NCCL's all-reduce, and names of its own for the types."""


def rmsnorm(
    input: Tensor, weight: Tensor, eps: float = 1e-6, out: Tensor | None = None, enable_pdl: bool | None = None
) -> Tensor:
    """input / rms(input) * weight, computed in float32."""
    return _into(out, _normalized(input.float(), weight.float(), eps).to(input.dtype))


def gemma_rmsnorm(
    input: Tensor, weight: Tensor, eps: float = 1e-6, out: Tensor | None = None, enable_pdl: bool | None = None
) -> Tensor:
    """rmsnorm with weight + 1."""
    return _into(out, _normalized(input.float(), weight.float() + 1, eps).to(input.dtype))


def fused_add_rmsnorm(
    input: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6, enable_pdl: bool | None = None
) -> None:
    """In place: residual becomes input + residual, input the rmsnorm of that sum before it was rounded."""
    _add_and_normalize(input, residual, weight.float(), eps)


def gemma_fused_add_rmsnorm(
    input: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6, enable_pdl: bool | None = None
) -> None:
    """fused_add_rmsnorm with weight + 1."""
    _add_and_normalize(input, residual, weight.float() + 1, eps)


def silu_and_mul(input: Tensor, out: Tensor | None = None, enable_pdl: bool | None = None) -> Tensor:
    """silu of the first half of the last axis, times the second half."""
    return _activated(torch.nn.functional.silu, input, out)


def gelu_and_mul(input: Tensor, out: Tensor | None = None, enable_pdl: bool | None = None) -> Tensor:
    """gelu (by erf) of the first half of the last axis, times the second half."""
    return _activated(torch.nn.functional.gelu, input, out)


def gelu_tanh_and_mul(input: Tensor, out: Tensor | None = None, enable_pdl: bool | None = None) -> Tensor:
    """gelu (by tanh) of the first half of the last axis, times the second half."""
    return _activated(lambda half: torch.nn.functional.gelu(half, approximate="tanh"), input, out)


def merge_state_v2(
    v_a: Tensor,
    s_a: Tensor,
    v_b: Tensor,
    s_b: Tensor,
    v_merged: Tensor | None = None,
    s_merged: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Two parts of one attention, [tokens, heads, width], joined by their log-sum-exps, [tokens, heads]."""
    # A part without keys has -inf, in some kernels +inf; two such parts give zeros.
    lse_a, lse_b = (torch.where(s == torch.inf, -torch.inf, s.float()) for s in (s_a, s_b))
    highest = torch.maximum(lse_a, lse_b)
    base = torch.where(highest == -torch.inf, 0.0, highest)
    weight_a, weight_b = torch.exp(lse_a - base), torch.exp(lse_b - base)
    total = weight_a + weight_b
    divisor = torch.where(total == 0, 1.0, total)
    merged = v_a.float() * (weight_a / divisor)[..., None] + v_b.float() * (weight_b / divisor)[..., None]
    return _into(v_merged, merged.to(v_a.dtype)), _into(s_merged, torch.log(total) + base)


def weak_ref_tensor(tensor: Tensor) -> Tensor:
    """The tensor itself: a graph pool that SGLang would have reused is kept, nothing else differs."""
    return tensor


def is_arch_support_pdl() -> bool:
    """No: nothing here can start before what it depends on has ended."""
    return False


def _normalized(value: Tensor, weight: Tensor, eps: float) -> Tensor:
    return value * torch.rsqrt(value.square().mean(-1, keepdim=True) + eps) * weight


def _add_and_normalize(input: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    total = input.float() + residual.float()
    residual.copy_(total)
    input.copy_(_normalized(total, weight, eps))


def _activated(function: Callable[[Tensor], Tensor], input: Tensor, out: Tensor | None) -> Tensor:
    gate, value = input.float().chunk(2, -1)
    return _into(out, (function(gate) * value).to(input.dtype))


def _into(out: Tensor | None, value: Tensor) -> Tensor:
    return value if out is None else out.copy_(value)


def __getattr__(name: str) -> Any:
    """Any other operator: there to be imported, not to be called."""
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} is not in the stand-in for the compiled package")

    absent.__name__ = name
    return absent


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every submodule that has no file here; it offers what the package offers."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(f"{__name__}.") or fullname.removeprefix(f"{__name__}.") in NOT_THERE:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        package = sys.modules[__name__]

        def offered(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return getattr(package, name)

        module.__dict__["__getattr__"] = offered


sys.meta_path.append(_Submodules())  # last: a file of this package is found before
