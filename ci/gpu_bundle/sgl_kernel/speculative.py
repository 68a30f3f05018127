"""The tree helpers of speculative decoding, in torch: by tables over all nodes, without asking the GPU for a value.

Names and arguments are those of the compiled package. A tree of n nodes is given by two links a node: its first child
(retrive_next_token) and its next sibling (retrive_next_sibling), -1 for none; node 0 is the root, the token verified
last. A node's row in flat outputs is retrive_index.
"""

from __future__ import annotations

import torch
from torch import Tensor

FULL_MASK, QLEN_ONLY = 0, 1


def build_tree_kernel_efficient(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int = FULL_MASK,
) -> None:
    """EAGLE's tree out of what it drafted: mask, positions and links, written in place; links come in as -1.

    selected_index[i - 1] is node i's place among the drafted tokens; its parent is the token at
    parent_list[place // topk], the root where that is 0.
    """
    if tree_mask_mode not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(f"build_tree_kernel_efficient with tree_mask_mode {int(tree_mask_mode)} (bits)")
    batch, n, device = len(verified_seq_len), draft_token_num, verified_seq_len.device
    group = selected_index // topk
    places = parent_list.gather(1, group) if parent_list.shape[1] else torch.zeros_like(group)
    node = _first(selected_index[:, None, :] == places[:, :, None]) + 1  # n where no selected token is the parent
    root = torch.full((batch, 1), n, device=device)
    parent = torch.cat([root, torch.where(group == 0, 0, node)], dim=1)
    _link(parent, retrive_index, retrive_next_token, retrive_next_sibling)

    nodes = torch.arange(n, device=device).expand(batch, n)
    path = torch.zeros(batch, n, n, dtype=torch.bool, device=device)
    levels, step = torch.zeros_like(nodes), nodes
    for _ in range(depth):
        levels = levels + (step > 0)
        path.scatter_(2, step[..., None], True)
        step = torch.where(step > 0, parent.gather(1, step) % n, 0)
    path[..., 0] = True
    positions.copy_((verified_seq_len[:, None] + levels).flatten())
    prefix = verified_seq_len[:, None, None] * (1 if tree_mask_mode == FULL_MASK else 0)
    start = torch.cumsum(prefix * n + n * n, dim=0) - prefix * n - n * n
    where = start + (prefix + n) * nodes[:, :, None] + prefix + nodes[:, None, :]
    tree_mask[where.flatten()] = path.flatten().to(tree_mask.dtype)


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """NGRAM's positions and links out of its mask: entry (i, j) of a request's n x n says that i descends from j."""
    n = draft_token_num
    nodes = torch.arange(n, device=tree_mask.device)
    above = tree_mask[: batch_size * n * n].view(batch_size, n, n).bool() & (nodes < nodes[:, None])
    positions.copy_((above.sum(-1) + verified_seq_len[:, None]).flatten())
    parent = torch.where(above, nodes, -1).amax(-1)
    retrive_next_token.fill_(-1)
    retrive_next_sibling.fill_(-1)
    _link(parent, retrive_index, retrive_next_token, retrive_next_sibling)


def verify_tree_greedy(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """From the root down, each time to the first child that is the target's own choice; outputs as the compiled ones.

    predicts gets the target's choice at each node passed and at the last; accept_index the nodes passed, the root
    first; accept_token_num how many drafted tokens that accepts. Entries for anything else stay as they were.
    """
    children = _children(retrive_next_token, retrive_next_sibling)
    choice = target_predict.flatten()[retrive_index]
    taken = _taken(children, _of_children(candidates, children) == choice[..., None])
    nodes, last = _walk(taken, accept_index.shape[1])
    final = choice.gather(1, last[:, None])
    _write(predicts, accept_index, accept_token_num, candidates, retrive_index, nodes, last, final)


def tree_speculative_sampling_target_only(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """As verify_tree_greedy, by chance: at each node its coin picks a child by the target's probabilities, or none.

    The last token is sampled from what the target's distribution there has left over the drafted tokens that were
    refused, or from all of it where the tree's depth ended the walk.
    """
    children = _children(retrive_next_token, retrive_next_sibling)
    tokens = _of_children(candidates, children)
    chance = torch.where(children >= 0, target_probs.gather(2, tokens), 0.0)
    passed = uniform_samples[..., None] < chance.cumsum(-1) / max(threshold_acc, 1e-9)
    taken = _taken(children, (chance > 0) & (passed | (chance >= threshold_single)))
    nodes, last = _walk(taken, accept_index.shape[1])

    def at_last(table: Tensor) -> Tensor:
        return table.gather(1, last[:, None, None].expand(-1, 1, table.shape[2]))[:, 0]

    target, left = at_last(target_probs), at_last(draft_probs)
    refused = at_last(children) >= 0
    drafted = at_last(tokens)
    # A slot without a child names some token too: what it adds to the refused must be nothing.
    gone = torch.zeros_like(target).scatter_add_(1, drafted, refused.to(target.dtype)) > 0
    left = torch.where(gone, target, left)
    full = (nodes >= 0).all(1, keepdim=True)
    rest = (target - torch.where(full, 0.0, left)).clamp(min=0)
    bound = uniform_samples_for_final_sampling[:, None] * rest.sum(-1, keepdim=True)
    over = (rest.cumsum(-1) > bound) & (rest > 0)
    vocabulary = torch.arange(target.shape[1], device=target.device)
    some = torch.where(rest > 0, vocabulary, -1).amax(-1)  # the last one left, where rounding let nothing pass
    none_over = torch.where(some < 0, target.shape[1] - 1, some)
    first = _first(over)
    final = torch.where(first < target.shape[1], first, none_over)[:, None]
    _write(predicts, accept_index, accept_token_num, candidates, retrive_index, nodes, last, final)


def top_k_renorm_prob(probs: Tensor, top_k: Tensor | int) -> Tensor:
    """The k likeliest tokens of each row, and those that tie with the last of them, scaled to sum to 1."""
    count = _of_rows(top_k, probs).long().clamp(1, probs.shape[1])
    least = probs.sort(-1, descending=True).values.gather(1, count[:, None] - 1)
    return _scaled(torch.where(probs >= least, probs, 0.0))


def top_p_renorm_prob(probs: Tensor, top_p: Tensor | float) -> Tensor:
    """The fewest likeliest tokens of each row that together reach p, scaled to sum to 1."""
    reach = _of_rows(top_p, probs).to(probs.dtype)
    ordered, token = probs.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.where(before < reach[:, None], ordered, 0.0)
    return _scaled(torch.zeros_like(probs).scatter_(1, token, kept))


def _of_rows(value: Tensor | float, probs: Tensor) -> Tensor:
    """The value, one a row: a number is filled in on the GPU, not copied to it."""
    rows = value if isinstance(value, Tensor) else torch.full((1,), value, device=probs.device)
    return rows.expand(len(probs))


def _scaled(probs: Tensor) -> Tensor:
    return probs / probs.sum(-1, keepdim=True)


def _first(mask: Tensor) -> Tensor:
    """The first true place along the last axis; its length where there is none."""
    length = mask.shape[-1]
    return torch.where(mask, torch.arange(length, device=mask.device), length).amin(-1)


def _link(parent: Tensor, index: Tensor, next_token: Tensor, next_sibling: Tensor) -> None:
    """Writes the links of nodes whose parents are 0 .. n - 1, any other number for none; siblings in rising order."""
    batch, n = parent.shape
    nodes = torch.arange(n, device=parent.device)
    index.copy_((torch.arange(batch * n, device=parent.device)).view(batch, n))
    child = _first((parent[:, None, :] == nodes[:, None]) & (nodes > nodes[:, None]))
    next_token.copy_(torch.where(child < n, child, next_token))
    has_parent = (parent >= 0) & (parent < n)
    same = (parent[:, None, :] == parent[:, :, None]) & has_parent[:, :, None] & (nodes > nodes[:, None])
    sibling = _first(same)
    next_sibling.copy_(torch.where(sibling < n, sibling, next_sibling))


def _children(next_token: Tensor, next_sibling: Tensor) -> Tensor:
    """[batch, n, n - 1]: each node's children in their order, then -1."""
    table, step = [], next_token
    for _ in range(max(next_token.shape[1] - 1, 1)):
        table.append(step)
        step = torch.where(step >= 0, next_sibling.gather(1, step.clamp(min=0)), -1)
    return torch.stack(table, dim=-1)


def _of_children(values: Tensor, children: Tensor) -> Tensor:
    """The values, one a node, at each child; the root's where there is no child."""
    return values.gather(1, children.clamp(min=0).flatten(1)).view(children.shape)


def _taken(children: Tensor, wanted: Tensor) -> Tensor:
    """[batch, n]: each node's first wanted child, -1 for none."""
    place = _first(wanted & (children >= 0))
    last = children.shape[-1] - 1
    return torch.where(place <= last, children.gather(2, place.clamp(max=last)[..., None])[..., 0], -1)


def _walk(taken: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The nodes from the root down, [batch, length] ending in -1s, and the last of them, [batch]."""
    last = torch.zeros_like(taken[:, 0])
    nodes = [last]
    for _ in range(length - 1):
        below = taken.gather(1, last[:, None])[:, 0]
        nodes.append(below)
        last = torch.where(below >= 0, below, last)
    return torch.stack(nodes, dim=1), last


def _write(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    index: Tensor,
    nodes: Tensor,
    last: Tensor,
    final: Tensor,
) -> None:
    """Puts a walk into the three outputs; final is the token after the last node, [batch, 1]."""
    there = nodes >= 0
    known = nodes.clamp(min=0)
    accept_index.copy_(torch.where(there, index.gather(1, known), accept_index))
    accept_token_num.copy_(there.sum(1) - 1)
    # One more slot than steps; the slots after the walk's end all say the same of its last node.
    follows = torch.cat([there[:, 1:], torch.zeros_like(there[:, :1])], dim=1)
    after = torch.cat([known[:, 1:], known[:, :1]], dim=1)
    at = torch.where(follows, known, last[:, None])
    token = torch.where(follows, candidates.gather(1, after), final)
    predicts[index.gather(1, at).flatten()] = token.flatten().to(predicts.dtype)
