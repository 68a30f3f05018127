"""Wraps TritonAttnBackend: what it constructs, and what it calls at the end of forward_extend.

Stock's forward_extend allocates, writes the KV cache and branches as ever. Only the attention function that an
instance holds is exchanged, and that acts only inside a TARGET_VERIFY call of forward_extend on the same thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from .. import contract
from ..wrap import wrap_once
from . import eligibility
from .eligibility import Reason
from .rank import Rank
from .records import Model

_GUARD = "_kdtree_guard"


def patch_backend(cls: type, on_backend: Callable[[Any, Any], None]) -> None:
    """Wraps the class once. `on_backend(backend, model_runner)` is called with every instance constructed after.

    on_backend decides whether the instance gets a guard (`guard_backend`); one without runs stock.
    """

    def make_init(stock: Callable[..., None]) -> Callable[..., None]:
        def __init__(self: Any, model_runner: Any, *args: Any, **kwargs: Any) -> None:
            stock(self, model_runner, *args, **kwargs)
            on_backend(self, model_runner)

        return __init__

    wrap_once(cls, "forward_extend", _make_forward_extend)
    wrap_once(cls, "__init__", make_init)


def guard_backend(backend: Any, rank: Rank, model: Model, reason: Reason | None = None) -> None:
    """Puts a guard before the attention function of this instance, unless it has one.

    Args:
        backend: The instance.
        rank: Answers its verify calls.
        model: Whose backend it is.
        reason: Why every one of them is declined; None where each is to be examined.

    Raises:
        ContractError: The instance has no such function, or its signature is another.
    """
    if hasattr(backend, _GUARD):
        return
    guard = _Guard(rank, model, reason, contract.attention_call(backend))
    # Stock's own attribute is torch.compiler.disable(function): as little of ours may be traced.
    setattr(backend, contract.ATTENTION_CALL, torch.compiler.disable(guard.attend))
    setattr(backend, _GUARD, guard)


class _Turn:
    """One verify call of forward_extend that is under way and may be ours."""

    __slots__ = ("answered", "guard", "layer")

    def __init__(self, guard: _Guard, layer: int):
        self.guard, self.layer, self.answered = guard, layer, False


class _ThisThread(threading.local):
    turn: _Turn | None = None


_this_thread = _ThisThread()


class _Guard:
    """Stands before the attention function of one backend instance."""

    def __init__(self, rank: Rank, model: Model, reason: Reason | None, stock: Callable[..., Any]):
        self.rank, self.model, self.reason, self.stock = rank, model, reason, stock

    def attend(self, *args: Any, **kwargs: Any) -> Any:
        turn = _this_thread.turn
        if turn is None or turn.guard is not self or turn.answered:
            return self.stock(*args, **kwargs)
        turn.answered = True
        return self.rank.attend(self.stock, args, kwargs, self.model, turn.layer)


def _make_forward_extend(stock: Callable[..., Any]) -> Callable[..., Any]:
    # The parameters are those that contract.FORWARD_EXTEND holds stock's equal to.
    @torch.compiler.disable
    def forward_extend(
        self: Any,
        q: Any,
        k: Any,
        v: Any,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: Any = True,
        sinks: Any = None,
        score_mod: Any = None,
        aux_tensors: Any = None,
    ) -> Any:
        guard: _Guard | None = getattr(self, _GUARD, None)
        turn = None
        if guard is not None:
            if not forward_batch.forward_mode.is_target_verify():
                guard.rank.not_verify_calls += 1
            else:
                reason = guard.reason or guard.rank.examine(
                    eligibility.forward_reason, self, layer, sinks, score_mod, aux_tensors
                )
                if reason is None:
                    turn = _Turn(guard, layer.layer_id)
                else:
                    guard.rank.decline(guard.model, reason)
        outer, _this_thread.turn = _this_thread.turn, turn
        try:
            out = stock(self, q, k, v, layer, forward_batch, save_kv_cache, sinks, score_mod, aux_tensors)
        finally:
            _this_thread.turn = outer
        if turn is not None and not turn.answered:
            turn.guard.rank.decline(turn.guard.model, Reason.BYPASSED)
        return out

    return forward_extend
