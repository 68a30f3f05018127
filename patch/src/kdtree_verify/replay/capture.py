"""What is kept of a verify call that left its bound: all that is needed to compute it once more, anywhere."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch

from ..native.abi import MAX_BATCH, MAX_DRAFT_TOKENS, MAX_HEADS, QK_DIM, V_DIM
from ..rank.records import Model

# float32 is the host library's: a server on the CPU may hold all in it.
OUT_DTYPES = (torch.bfloat16, torch.float32)
_INPUT_DTYPES = OUT_DTYPES
POOL_DTYPES = (*_INPUT_DTYPES, torch.float8_e4m3fn, torch.float8_e5m2)
_LARGEST_SCALE = torch.finfo(torch.float32).max


@dataclass(frozen=True, eq=False)
class Capture:
    """One request of one layer's verify call, in host memory: T draft tokens, H query heads, a prefix of L keys.

    Every tensor is contiguous and a copy: nothing of the server's memory is referred to.

    Attributes:
        q: [T, H, 576] bf16 (float32: the host library only, here and below).
        k: [T, 576] in q's dtype, the draft tokens' keys, rope applied.
        v: [T, 512] in q's dtype, their values.
        visible: [T, T] uint8, nonzero where row t sees draft token j; None where the call had no mask: j <= t.
        prefix: [L, 576] in the pool's dtype (bf16, float32, e4m3 or e5m2), gathered in the prefix's order; L may be 0.
        stock: [T, H, 512] bf16 or float32, what SGLang's kernel answered.
        ours: [T, H, 512] in stock's dtype, what this package's kernel answered.
        model: Whose layer it is.
        layer: The layer's id in that model.
        sm_scale, k_scale, v_scale: As the call had them.
        rel_l2: ||ours - stock|| / ||stock|| of the whole call, as the device measured it; inf or NaN are possible.
        bound: What rel_l2 was held against.
        request: Which of the call's requests this is, from 0.
        batch: Requests of the call.

    Raises:
        ValueError: A shape, dtype or number is none of these; the message names it. Values of tensors are not looked
            at.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    visible: torch.Tensor | None
    prefix: torch.Tensor
    stock: torch.Tensor
    ours: torch.Tensor
    model: Model
    layer: int
    sm_scale: float
    k_scale: float
    v_scale: float
    rel_l2: float
    bound: float
    request: int
    batch: int

    def __post_init__(self) -> None:
        self._check_shapes()
        self._check_numbers()

    @property
    def draft_tokens(self) -> int:
        return self.q.shape[0]

    @property
    def heads(self) -> int:
        return self.q.shape[1]

    @property
    def prefix_length(self) -> int:
        return self.prefix.shape[0]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors by their names; without `visible` where there is none."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}

    def _check_shapes(self) -> None:
        tokens, heads = self.q.shape[:2] if self.q.dim() == 3 else (0, 0)
        if not (1 <= tokens <= MAX_DRAFT_TOKENS and 1 <= heads <= MAX_HEADS):
            limits = f"[1..{MAX_DRAFT_TOKENS}, 1..{MAX_HEADS}, {QK_DIM}]"
            raise ValueError(f"q is {list(self.q.shape)}, wanted {limits}")
        length = self.prefix.shape[0] if self.prefix.dim() == 2 else 0
        _check("q", self.q, (tokens, heads, QK_DIM), _INPUT_DTYPES)
        _check("k", self.k, (tokens, QK_DIM), (self.q.dtype,))
        _check("v", self.v, (tokens, V_DIM), (self.q.dtype,))
        if self.visible is not None:
            _check("visible", self.visible, (tokens, tokens), (torch.uint8,))
        _check("prefix", self.prefix, (length, QK_DIM), POOL_DTYPES)
        _check("stock", self.stock, (tokens, heads, V_DIM), OUT_DTYPES)
        _check("ours", self.ours, (tokens, heads, V_DIM), (self.stock.dtype,))

    def _check_numbers(self) -> None:
        for name in ("sm_scale", "k_scale", "v_scale"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and abs(value) <= _LARGEST_SCALE):
                raise ValueError(f"{name} is {value!r}, wanted a finite float32")
        if not isinstance(self.rel_l2, (int, float)) or self.rel_l2 < 0:
            raise ValueError(f"rel_l2 is {self.rel_l2!r}, wanted a number from 0")
        if not (isinstance(self.bound, (int, float)) and math.isfinite(self.bound) and self.bound >= 0):
            raise ValueError(f"bound is {self.bound!r}, wanted a finite number from 0")
        if not isinstance(self.model, Model):
            raise ValueError(f"model is {self.model!r}, wanted one of {', '.join(Model)}")
        if not (isinstance(self.layer, int) and self.layer >= 0):
            raise ValueError(f"layer is {self.layer!r}, wanted a count")
        if not (isinstance(self.batch, int) and 1 <= self.batch <= MAX_BATCH):
            raise ValueError(f"batch is {self.batch!r}, wanted 1..{MAX_BATCH}")
        if not (isinstance(self.request, int) and 0 <= self.request < self.batch):
            raise ValueError(f"request is {self.request!r}, wanted 0..{self.batch - 1}")


def _check(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} is {list(tensor.shape)}, wanted {list(shape)}")
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name} is {_name(tensor.dtype)}, wanted {' or '.join(_name(dtype) for dtype in dtypes)}")
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(f"{name} is not a contiguous tensor in host memory")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
