"""What a layer of experts calls on its way through SGLang's Triton kernels; EAGLE's draft layer is one."""

from __future__ import annotations

import torch
from torch import Tensor


def moe_align_block_size(
    topk_ids: Tensor,
    num_experts: int,
    block_size: int,
    sorted_token_ids: Tensor,
    experts_ids: Tensor,
    num_tokens_post_pad: Tensor,
    cumsum_buffer: Tensor,
    pad_sorted_token_ids: bool = False,
    ignore_invalid_expert: bool = False,
) -> None:
    """Sorts the slots of topk_ids by expert, each expert's rounded up to whole blocks, into the three outputs.

    num_experts counts one more than there are, the first for slots of expert -1. Padding is the number of slots, as
    no slot has it; blocks past the end are of expert -1.
    """
    if ignore_invalid_expert:
        raise NotImplementedError("sgl_kernel.moe_align_block_size with ignore_invalid_expert is not in the stand-in")
    bucket = topk_ids.flatten().long() + 1
    buckets = torch.arange(num_experts, device=bucket.device)
    counts = torch.zeros_like(buckets).scatter_add_(0, bucket, torch.ones_like(bucket))
    ends = ((counts + block_size - 1) // block_size * block_size).cumsum(0)
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    ordered, slot = bucket.sort(stable=True)
    rank = torch.arange(len(slot), device=slot.device) - (counts.cumsum(0) - counts)[ordered]
    sorted_token_ids.fill_(len(slot))
    sorted_token_ids[starts[ordered] + rank] = slot.to(sorted_token_ids.dtype)
    block = torch.arange(len(experts_ids), device=slot.device) * block_size
    owner = torch.searchsorted(ends, block, right=True)
    experts_ids.copy_(torch.where(block < ends[-1], owner - 1, -1))
    num_tokens_post_pad[:1].copy_(ends[-1:])


def moe_sum_reduce(input: Tensor, output: Tensor, routed_scaling_factor: float = 1.0) -> None:
    """output [tokens, width] becomes the sum over the experts of input [tokens, experts, width], scaled."""
    output.copy_(input.float().sum(1) * routed_scaling_factor)
