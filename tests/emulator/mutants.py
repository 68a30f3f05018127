"""Ways to break the kernel's protocol. Each must make the emulator fail: that is what shows that it can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Mutant:
    """In `file`, as emulated.py leaves it, `text` becomes `broken`; `fails` is how the emulator's line begins then.

    Attributes:
        text: One or more whole statements, or an expression.
        calls: Which of emulated_cases.py's it runs: "any", on a bf16 or an "fp8" pool, or "weights"; or "compare",
            compared.py's.
        around: Where `text` alone is not in `file` once: what is, and has it once.
    """

    name: str
    file: str
    text: str
    broken: str
    fails: str
    calls: Literal["any", "fp8", "weights", "compare"] = "any"
    around: str = ""


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
        calls="fp8",
    ),
    Mutant(
        "largest elements of Q are looked at before all warps have told theirs",
        "query.cuh",
        "barrier_sync(kGroupBarrier + me.group(), kGroupThreads);",
        "",
        "race",
        calls="fp8",
    ),
    Mutant(
        "no proxy fence after fp8 rows are widened",
        "loader.cuh",
        "fence_stores_before_bulk_copies();  // those of the step before, whose stage is filled next",
        "",
        "no proxy fence",
        calls="fp8",
    ),
    Mutant(
        "no proxy fence between fp8 rows and draft tokens",
        "loader.cuh",
        "if (fp8_pool) fence_stores_before_bulk_copies();",
        "",
        "no proxy fence",
        calls="fp8",
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
    Mutant(
        "a phase of copies that loaders do not look at goes by unwaited",
        "loader.cuh",
        "wait(shared_, Signal::kCopied, count - 2);",
        "",
        "unwaited phase",
    ),
    Mutant(
        "a group without rows does not let stages go by",
        "group.cuh",
        "tell(shared_, Signal::kEmpty, count);",
        "",
        "deadlock",
        around="        give_turn(me_.group());\n      }\n      tell(shared_, Signal::kEmpty, count);",
    ),
    Mutant(
        "a group without rows gives its turn before it has it",
        "group.cuh",
        "        wait_turn(me_.group());\n        give_turn(me_.group());",
        "give_turn(me_.group()); wait_turn(me_.group());",
        "deadlock",
    ),
    Mutant("a group without rows takes turns for draft values", "group.cuh", "!values", "true", "deadlock"),
    *(
        Mutant(
            name, "scores.cuh", f"Number::{limit}", f"std::is_same_v<Number, F16> ? {f16} : {bf16}", "wrong", "weights"
        )
        for name, limit, f16, bf16 in (
            ("weights of float16 up to 2^16", "kSlack", "16.f", "Bf16::kSlack"),
            ("weights of bf16 up to 2^15", "kSlack", "F16::kSlack", "15.f"),
            ("weights of bf16 up to 2^100", "kSlack", "F16::kSlack", "100.f"),
            ("the greatest weight of float16 is 1", "kBelow", "0.f", "Bf16::kBelow"),
            ("the greatest weight of float16 is 2^-8", "kBelow", "-8.f", "Bf16::kBelow"),
            ("the greatest weight of bf16 is 2^7", "kBelow", "F16::kBelow", "7.f"),
        )
    ),
    Mutant(
        "all threads take a sum that one of them adds up",
        "compare_kernels.h",
        "if (threadIdx.x == 0) sums = scratch[0];",
        "sums = scratch[0];",
        "race",
        "compare",
    ),
    Mutant(
        "the table's next row is written by who does not own it",
        "compare_kernels.h",
        "if (first < last && last == args.batch) table.before[last] = before;",
        "if (first < last) table.before[last] = before;",
        "race",
        "compare",
    ),
    Mutant(
        "a request's sums go where the last one's are added up",
        "compare_kernels.h",
        "__syncthreads();  // the request before is done with",
        "",
        "race",
        "compare",
    ),
    Mutant(
        "the last request that is off goes to the box",
        "compare_kernels.h",
        "box_score(sums) > score",
        "true",
        "wrong",
        "compare",
    ),
    Mutant(
        "the box follows a slot that is outside the pool",
        "fill_box_kernel.h",
        "load_slot(call, request.prefix + row)",
        "load_index(call.kv_indices, call.kv_indices_dtype, request.prefix + row)",
        "segfault",
        "compare",
    ),
    Mutant(
        "all layers are let through at the same time",
        "stream_kernels.h",
        "(before + args.phase) % args.every == 0",
        "before % args.every == 0",
        "wrong",
        "compare",
    ),
)
