"""The self-test's shapes: which recorded requests one call holds, and how they lie in memory.

What a call must not read is poison: unused pool rows, rows of q, k and v that no indptr names, and the gaps
between strides are NaN, unused indices are far out of range. What it must not write holds a marker.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch

from ..native.abi import QK_DIM, V_DIM
from . import golden

MARKER = 0x7FDE  # int16 view of the output before a call: a NaN that no arithmetic makes
_POISON_INDEX = 1 << 40
_FLOAT8_NAN = 0x7F  # in both formats
_TAIL = 5  # rows, indices and mask bytes beyond the last named one


@dataclass(frozen=True)
class Member:
    """One request of a shape.

    Attributes:
        request: Name of the recorded request; None is SGLang's graph padding, one prefix key in slot 0.
        rows: How many of the T draft tokens it has: all, half, one or none.
    """

    request: str | None
    rows: str = "all"

    def row_count(self, draft_tokens: int) -> int:
        return {"all": draft_tokens, "half": (draft_tokens + 1) // 2, "one": 1, "none": 0}[self.rows]

    @property
    def prefix(self) -> int:
        return golden.REQUESTS[self.request].prefix if self.request else 1


@dataclass(frozen=True)
class Shape:
    """One call.

    Attributes:
        scattered: The prefix's slots are in no order.
        strided: q, k, v, pool and out are views with gaps (a slot spans 17 pool rows), and the first request
            starts neither at row 0 nor at index 0.
    """

    name: str
    members: tuple[Member, ...]
    scattered: bool = False
    strided: bool = False

    @property
    def first(self) -> golden.Request:
        """The request whose scales, pool dtype and kind of mask are the call's; the others have the same."""
        return golden.REQUESTS[next(member.request for member in self.members if member.request)]


def _shape(name: str, *members: str | tuple[str | None, str], **layout: bool) -> Shape:
    return Shape(name, tuple(Member(m) if isinstance(m, str) else Member(*m) for m in members), **layout)


_PADDING = (None, "all")
SHAPES = (
    _shape("prefix-0", "p0"),
    _shape("prefix-1", "p1"),
    _shape("tile-edges", "p15", "p16", "p17"),
    _shape("block-edge", "p64", "p65"),
    _shape("long-prefix", "p4097"),
    _shape("ragged-prefix", "p300", "p0", "p17", "p1"),
    _shape("ragged-tokens", "p65", ("p64", "half"), ("p16", "none"), ("p15", "one")),
    _shape("scattered-slots", "p300", "p64", scattered=True),
    _shape("strided", "p65", "p17", scattered=True, strided=True),
    _shape("causal", "chain130"),
    _shape("scaled", "scaled40"),
    _shape("e4m3-subnormals", "e4m3-low"),
    _shape("e5m2-subnormals", "e5m2-low"),
    _shape("e4m3-range", "e4m3-all", scattered=True, strided=True),
    _shape("e5m2-range", "e5m2-all", scattered=True, strided=True),
    _shape("padded", "p17", "p64", _PADDING, _PADDING),
)


@dataclass(frozen=True)
class Inputs:
    """One recorded request, with T draft tokens, on the device; shapes take what they need of it."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    pool: torch.Tensor
    seen: torch.Tensor
    columns: torch.Tensor
    expected: torch.Tensor


def make_inputs(heads: int, draft_tokens: int, device: torch.device) -> dict[str, Inputs]:
    """Every recorded request at these heads and draft tokens."""
    recorded = golden.load_recorded()
    patterns = torch.tensor([golden.pattern(head) for head in range(heads)])
    return {
        name: Inputs(
            query=golden.query(request, draft_tokens, heads, device),
            keys=golden.draft_keys(request, draft_tokens, device),
            values=golden.draft_values(request, draft_tokens, device),
            pool=golden.pool_rows(request, device),
            seen=golden.visible(request, draft_tokens).to(device),
            columns=golden.columns(request)[:draft_tokens, patterns].to(device),
            expected=recorded[name][:draft_tokens, patterns].double().to(device),
        )
        for name, request in golden.REQUESTS.items()
    }


@dataclass(frozen=True)
class Metadata:
    """A call's indptrs, indices and mask, in the dtypes of one of SGLang's two ways to call."""

    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    mask: torch.Tensor | None
    mask_indptr: torch.Tensor | None

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for tensor in vars(self).values() if tensor is not None]

    def blank(self) -> Metadata:
        """Such buffers, zeroed: what a capture sees before a replay fills in the lengths."""
        return replace(
            self, **{name: torch.zeros_like(tensor) for name, tensor in vars(self).items() if tensor is not None}
        )


@dataclass(frozen=True)
class Layout:
    """A shape at given heads and draft tokens, in the memory of one device.

    Attributes:
        q, k, v, pool, out: views: [tokens, heads, 576], [tokens, 576], [tokens, 512], [slots, 576],
            [tokens, heads, 512]; bf16, but for a pool in fp8.
        storage: The memory that `out` is a view of, int16 [tokens, heads, 512 or more].
        compared: int64 [rows]: rows of `out` that have a recorded result.
        columns: int64 [rows, heads]: the recorded column of each.
        expected: float64 [rows, heads, 2]: its value, and the signed sum of the 512.
        unnamed: int64: rows of `out` that the call must leave alone.
        named_rows: Rows that the call computes, padded requests' among them.
    """

    shape: Shape
    draft_tokens: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    pool: torch.Tensor
    out: torch.Tensor
    storage: torch.Tensor = field(repr=False)
    compared: torch.Tensor
    columns: torch.Tensor
    expected: torch.Tensor
    unnamed: torch.Tensor
    named_rows: int
    eager: Metadata
    graph: Metadata

    def where(self, row: int, head: int) -> str:
        """Words for a position in `compared`."""
        for index, member in enumerate(self.shape.members):
            count = member.row_count(self.draft_tokens) if member.request else 0
            if row < count:
                return f"request {index}, token {row}, head {head}"
            row -= count
        raise IndexError(row)


def build(shape: Shape, heads: int, draft_tokens: int, device: torch.device, inputs: dict[str, Inputs]) -> Layout:
    """Lays a shape out on `device`. `inputs` are make_inputs' of the same heads, draft tokens and device."""
    counts = [member.row_count(draft_tokens) for member in shape.members]
    qo_indptr = _offsets(counts, 3 if shape.strided else 0)
    tokens = qo_indptr[-1] + _TAIL
    gap = 8 if shape.strided else 0
    q = _poisoned((tokens, heads + (1 if gap else 0), QK_DIM + gap), device)[:, :heads, :QK_DIM]
    k = _poisoned((tokens, QK_DIM + gap), device)[:, :QK_DIM]
    v = _poisoned((tokens, V_DIM + 2 * gap), device)[:, :V_DIM]
    storage = torch.full((tokens, heads, V_DIM + gap), MARKER, dtype=torch.int16, device=device)
    pool = _poisoned_pool(shape, device)
    slots = [_slots(shape, index, device) for index in range(len(shape.members))]

    compared, columns, expected = [], [], []
    for index, (member, count) in enumerate(zip(shape.members, counts, strict=True)):
        if member.request is None:
            continue
        request, rows = inputs[member.request], slice(qo_indptr[index], qo_indptr[index + 1])
        q[rows], k[rows], v[rows] = request.query[:count], request.keys[:count], request.values[:count]
        pool[slots[index]] = request.pool.view(pool.dtype)
        compared.append(torch.arange(rows.start, rows.stop, device=device))
        columns.append(request.columns[:count])
        expected.append(request.expected[:count])

    unnamed = [*range(qo_indptr[0]), *range(qo_indptr[-1], tokens)]
    return Layout(
        shape=shape,
        draft_tokens=draft_tokens,
        q=q,
        k=k,
        v=v,
        pool=pool.view(shape.first.pool_dtype),
        out=storage.view(torch.bfloat16)[..., :V_DIM],
        storage=storage,
        compared=torch.cat(compared),
        columns=torch.cat(columns),
        expected=torch.cat(expected),
        unnamed=torch.tensor(unnamed, device=device),
        named_rows=sum(counts),
        eager=_metadata(shape, qo_indptr, slots, inputs, graph=False),
        graph=_metadata(shape, qo_indptr, slots, inputs, graph=True),
    )


def _metadata(
    shape: Shape, qo_indptr: list[int], slots: list[torch.Tensor], inputs: dict[str, Inputs], graph: bool
) -> Metadata:
    device = slots[0].device
    lead = _TAIL if shape.strided else 0
    kv_indptr = _offsets([member.prefix for member in shape.members], lead)
    # Eager indices are exact, a graph's have an unused tail; so has its mask, which eager hands as bool.
    poison = torch.full((_TAIL,), _POISON_INDEX, device=device)
    indices = torch.cat([poison[:lead], *slots, poison if graph else poison[:0]])
    mask = mask_indptr = None
    if not shape.first.causal:
        counts = [end - begin for begin, end in pairwise(qo_indptr)]
        parts = [_mask(*pair, inputs, device) for pair in zip(shape.members, counts, strict=True)]
        mask_indptr = torch.tensor(_offsets([len(part) for part in parts], 0), device=device)
        mask = torch.cat([*parts, parts[0].new_full((_TAIL,), 255)]) if graph else torch.cat(parts).bool()
    return Metadata(
        qo_indptr=torch.tensor(qo_indptr, dtype=torch.int64 if graph else torch.int32, device=device),
        kv_indptr=torch.tensor(kv_indptr, dtype=torch.int32, device=device),
        kv_indices=indices,
        mask=mask,
        mask_indptr=mask_indptr,
    )


def _mask(member: Member, count: int, inputs: dict[str, Inputs], device: torch.device) -> torch.Tensor:
    # uint8 [count * (prefix + count)]. The prefix part is to be ignored: stripes. Any nonzero byte is true.
    width = member.prefix + count
    mask = torch.arange(count * width, device=device).view(count, width) % 3
    if member.request:
        truth = torch.arange(count * count, device=device).view(count, count) % 255 + 1
        mask[:, member.prefix :] = truth * inputs[member.request].seen[:count, :count]
    return mask.to(torch.uint8).flatten()


def _slot_count(shape: Shape) -> int:
    # A power of two with at least as many unused rows as used; slot 0, padding's sink, is among the unused.
    return 1 << (2 * (1 + sum(member.prefix for member in shape.members)) - 1).bit_length()


def _slots(shape: Shape, index: int, device: torch.device) -> torch.Tensor:
    """int64 [prefix]: where the prefix of member `index` lies."""
    member = shape.members[index]
    if member.request is None:
        return torch.zeros(1, dtype=torch.int64, device=device)
    before = sum(other.prefix for other in shape.members[:index] if other.request)
    place = 1 + before + torch.arange(member.prefix, device=device)
    # An odd factor permutes the numbers below a power of two and keeps 0.
    return place * 0x9E3779B1 % _slot_count(shape) if shape.scattered else place


def _offsets(counts: list[int], start: int) -> list[int]:
    offsets = [start]
    for count in counts:
        offsets.append(offsets[-1] + count)
    return offsets


def _poisoned_pool(shape: Shape, device: torch.device) -> torch.Tensor:
    """[slots, 576]; an fp8 pool as its bytes, since few of torch's functions take fp8."""
    size = (_slot_count(shape), QK_DIM * (17 if shape.strided else 1))
    if not shape.first.codes:
        return _poisoned(size, device)[:, :QK_DIM]
    return torch.full(size, _FLOAT8_NAN, dtype=torch.uint8, device=device)[:, :QK_DIM]


def _poisoned(size: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.full(size, torch.nan, dtype=torch.bfloat16, device=device)
