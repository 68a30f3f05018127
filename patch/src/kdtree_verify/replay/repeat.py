"""The captured call once more: by a library of this package on any device, and by SGLang's own kernel."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import torch

from .. import contract
from ..errors import LibraryError, WorkspaceError
from ..native import abi
from ..native.call import Call, verify_args
from ..native.library import Library
from .capture import Capture

STOCK_MODULE = "sglang.kernels.ops.attention.extend_attention"
_AUTOMATIC = 0  # the variant that the library picks


@dataclass(frozen=True)
class Repeated:
    """One way of computing the call again.

    Attributes:
        name: The variant's name; "automatic" for what the library picks.
        out: [T, H, 512] in host memory.
        steady: Whether a second run gave the same bits; None where there was none.
    """

    name: str
    out: torch.Tensor
    steady: bool | None


def ours(capture: Capture, library: Library, device: torch.device) -> list[Repeated]:
    """The call by every variant of the library; on a GPU twice each.

    Raises:
        LibraryError: The library refuses the device or the call, or breaks off.
        WorkspaceError: The device has too little memory left.
    """
    ordinal = device.index or 0 if device.type == "cuda" else -1
    names = library.description.variants
    # One that is all there is needs no second name.
    variants = [(_AUTOMATIC, "automatic"), *enumerate(names, 1)] if len(names) > 1 else [(1, names[0])]
    size = library.workspace_size(device=ordinal, num_heads=capture.heads, max_q_len=capture.draft_tokens, max_batch=1)
    try:
        call = _call(capture, device)
        workspace = torch.empty(size, dtype=torch.uint8, device=device)
        return [_run(library, call, workspace, number, name) for number, name in variants]
    except torch.OutOfMemoryError as error:
        raise _no_memory(device, error) from error
    except RuntimeError as error:  # CUDA's: a fault of the kernel, or of the card
        fix = "report it, with what compute-sanitizer says of the same command"
        raise LibraryError(f"the call broke off on {device}", str(error).partition("\n")[0].rstrip("."), fix) from error


def stock(capture: Capture, device: torch.device) -> torch.Tensor:
    """The call by the Triton kernel of the installed SGLang; [T, H, 512] in host memory.

    On a CPU under Triton's interpreter, which TRITON_INTERPRET=1 must have chosen before anything imported Triton.

    Raises:
        ImportError: No SGLang, or no Triton.
        ContractError: Its signature is another than this package was written for.
        WorkspaceError: The device has too little memory left.
    """
    function = getattr(importlib.import_module(STOCK_MODULE), contract.ATTENTION_CALL)
    contract.check_signature(contract.ATTENTION_CALL, function, contract.EXTEND_ATTENTION_FWD)
    try:
        call = _call(capture, device)
        function(*call)
        return call.o_extend.cpu()
    except torch.OutOfMemoryError as error:
        raise _no_memory(device, error) from error


def _run(library: Library, call: Call, workspace: torch.Tensor, variant: int, name: str) -> Repeated:
    device = workspace.device
    results = []
    for _ in range(2 if device.type == "cuda" else 1):
        out = torch.full_like(call.o_extend, float("nan"))  # what is not written shows
        args = verify_args(call, out)
        args.variant = variant
        args.device = device.index or 0 if device.type == "cuda" else -1
        args.stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
        args.workspace, args.workspace_bytes = workspace.data_ptr(), workspace.numel()
        library.check(library.verify(args), "kdtree_verify")
        results.append(out.cpu())  # waits for the device
    steady = None if len(results) == 1 else same_bits(*results)
    return Repeated(name, results[0], steady)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype are the same, NaNs' bits included."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def _call(capture: Capture, device: torch.device) -> Call:
    """The request as a call of its own, on the device: its prefix lies in slots 1..L of a pool of its own."""
    length, tokens = capture.prefix_length, capture.draft_tokens
    # Put together as bytes: torch has few functions for fp8. Slot 0 is SGLang's sink for padding.
    sink = torch.zeros(1, abi.QK_DIM, dtype=capture.prefix.dtype)
    rows = torch.cat([sink.view(torch.uint8), capture.prefix.view(torch.uint8)]).view(capture.prefix.dtype)
    pool = rows[:, None].to(device)
    mask = None
    if capture.visible is not None:
        prefix = torch.ones(tokens, length, dtype=torch.uint8)
        mask = torch.cat([prefix, capture.visible], dim=1).flatten().to(device)
    return Call(
        q_extend=capture.q.to(device),
        k_extend=capture.k[:, None].to(device),
        v_extend=capture.v[:, None].to(device),
        o_extend=torch.empty(tokens, capture.heads, abi.V_DIM, dtype=capture.ours.dtype, device=device),
        k_buffer=pool,
        v_buffer=pool[..., : abi.V_DIM],
        qo_indptr=_indices([0, tokens], device),
        kv_indptr=_indices([0, length], device),
        # One entry more than is used: no address of nothing is handed on where the prefix is empty.
        kv_indices=torch.arange(1, length + 2, device=device),
        custom_mask=mask,
        is_causal=True,
        mask_indptr=None if mask is None else _indices([0, mask.numel()], device),
        max_len_extend=tokens,
        k_scale=capture.k_scale,
        v_scale=capture.v_scale,
        sm_scale=capture.sm_scale,
    )


def _indices(values: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


def _no_memory(device: torch.device, error: Exception) -> WorkspaceError:
    fix = "end what fills it, or repeat the call with --device cpu"
    return WorkspaceError(f"{device} has no memory for the call", str(error).partition("\n")[0].rstrip("."), fix)
