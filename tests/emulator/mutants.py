"""Ways to break the kernel's protocol. Each must make the emulator fail: that is what shows that it can."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """In `file`, as emulated.py leaves it, `text` becomes `broken`; `fails` is how the emulator's line begins then."""

    name: str
    file: str
    text: str
    broken: str
    fails: str
    fp8: bool = False  # only an fp8 pool's call runs it


MUTANTS = (
    Mutant("tell without __syncwarp", "barriers.cuh", "__syncwarp();", "", "race"),
    Mutant(
        "no barrier before a segment",
        "barriers.cuh",
        "barrier_sync(kGroupsBarrier, kComputeThreads);",
        "",
        "race",
    ),
    Mutant(
        "a stage is filled before it is read",
        "loader.cuh",
        "wait(shared_, Signal::kEmpty, count - 2);",
        "",
        "race",
    ),
    Mutant(
        "a bit mask of seen drafts is written while the step before needs it",
        "loader.cuh",
        "      start(count == segment.first_step ? count + 2 : count + 1, first);\n      mark_visible(segment, first);",
        "mark_visible(segment, first); start(count == segment.first_step ? count + 2 : count + 1, first);",
        "race",
    ),
    Mutant(
        "copies are looked at before they have come",
        "loader.cuh",
        "    wait(shared_, Signal::kCopied, count);",
        "",
        "race",
    ),
    Mutant(
        "fp8 rows are widened over what others still read",
        "loader.cuh",
        "if (part % 2 == 1) __syncwarp();",
        "",
        "race",
        fp8=True,
    ),
    Mutant(
        "largest elements of Q are looked at before all warps have told theirs",
        "query.cuh",
        "barrier_sync(kGroupBarrier + me.group(), kGroupThreads);",
        "",
        "race",
        fp8=True,
    ),
    Mutant(
        "no proxy fence after fp8 rows are widened",
        "loader.cuh",
        "fence_stores_before_bulk_copies();  // those of the step before, whose stage is filled next",
        "",
        "no proxy fence",
        fp8=True,
    ),
    Mutant(
        "no proxy fence between fp8 rows and draft tokens",
        "loader.cuh",
        "if (fp8_pool) fence_stores_before_bulk_copies();",
        "",
        "no proxy fence",
        fp8=True,
    ),
    Mutant(
        "no proxy fence after the plan is made where the stages are",
        "attention.h",
        "fence_stores_before_bulk_copies();",
        "",
        "no proxy fence",
    ),
    Mutant(
        "row factors are written while the last step's are read",
        "group.cuh",
        "group_sync<kGroupBarrier, kGroupThreads>(me_.group());  // all have rescaled by the last step's factors",
        "",
        "race",
    ),
    Mutant(
        "the merge kernel goes to its next item while its warps are at this one",
        "merge.cuh",
        "    merge_rows(shared, args, workspace);\n    __syncthreads();",
        "    merge_rows(shared, args, workspace);",
        "race",
    ),
    Mutant(
        "slots are read past the end of kv_indices",
        "loader.cuh",
        "if (!has_key(left)) return {};",
        "",
        "segfault",
    ),
    Mutant("nobody has the first turn", "group.cuh", "if (me_.group() == 1) give_turn(1);", "", "deadlock"),
)
