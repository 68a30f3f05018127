"""Outputs of a call that differ in some of its requests."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import torch

from kdtree_verify.native import abi
from kdtree_verify.native.call import Call


def outputs(call: Call, random: Random) -> tuple[Call, torch.Tensor]:
    """The call with stock's output, and ours: some requests of it off, some with NaN, by chance none."""
    generator = torch.Generator().manual_seed(random.getrandbits(32))
    stock = torch.randn(call.o_extend.shape, generator=generator).bfloat16()
    ours = stock * 1.01
    starts = [min(max(int(start), 0), len(stock)) for start in call.qo_indptr]
    for begin, end in pairwise(starts):
        what = random.choice(("fine", "off", "off", "nan", "stock nan"))
        if begin >= end or what == "fine":
            continue
        element = random.randrange(begin, end), random.randrange(stock.shape[1]), random.randrange(abi.V_DIM)
        if what == "off":
            ours[begin:end] *= random.choice((1.04, 1.2, 3.0))
        else:
            (ours if what == "nan" else stock)[element] = float("nan")
    return call._replace(o_extend=stock), ours
