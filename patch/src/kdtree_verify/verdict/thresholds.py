"""How much evidence is enough. Nothing else decides, and no option changes it.

With no failure in n independent trials, the rate of failures is below 3/n at 95% confidence (the rule of three).
"""

CALLS_PER_LAYER = 10_000
"""Verify calls compared in each layer of each rank: a layer that fails in 3 of 10,000 would have shown itself. A user
alone makes 10,000 steps in about ten minutes of answers."""

ACTIVE_SECONDS = 3600.0
"""Time in which calls were compared, over all runs. Ten minutes may be one conversation; an hour is several."""

PREFIX_RANGES = 3
"""Ranges of prefix length, each twice as long as the one before, that are compared well: two tell no trend from chance,
and three reach beyond 2K tokens."""

CALLS_PER_CELL = 300
"""Calls per layer that make a range of prefix and batch compared well: 1% of failures would have shown itself, in
each layer."""

COVERED_SHARE = 0.99
"""Of all calls, those in ranges that are compared well. What is left is what happens now and then, and is named."""

DECLINED_SHARE = 0.001
"""Of the target's verify calls, those that stock had to run. Warm-up leaves a handful; more is a shape that the kernel
does not take, so that `on` changes less than it seems to. Below one layer of any model we know of."""

KERNEL_OVER_STOCK = 1.5
"""The kernel's error against float64 as a multiple of stock's. Both end with the same rounding of the result, which is
most of either with a bf16 pool; half as much again is no rounding."""

EXPLAINED_FACTOR = 3.0
"""A layer's difference from stock as a multiple of both errors against float64 together, beyond which it cannot be on
the same call. They are measured on one call of the self-test, and a model's scores make them larger: most with an e5m2
pool, where stock's arithmetic came to 0.21 (kernel.REL_L2_BOUND), 2.5 times both errors of the self-test's call."""
