#!/usr/bin/env python3
"""Draws the two pictures of docs/architecture.md: draw.py [FOLDER], by default the one that this file is in.

What a box has as its head is code: a file below patch/src/kdtree_verify, kernel or the repository, or a name of
SGLang's; a test holds it to the sources.
"""

from __future__ import annotations

import sys
from pathlib import Path

from drawing import Box, Picture, svg

CALL = Picture(
    "A verify call: q, k, v from forward_extend to the kernel and back",
    (
        "SGLang, in a scheduler process",
        "KDTree, on the same thread",
        "on the device, in stream order",
        "told, by a thread",
    ),
    (
        Box(
            "batch",
            0,
            0,
            "stock",
            "Scheduler.run_batch",
            ("a batch whose draft tokens form a tree:", "ForwardMode.TARGET_VERIFY"),
        ),
        Box(
            "hook",
            1,
            0,
            "ours",
            "rank/hook.py",
            ("forward_extend, wrapped: notes that a verify", "call is under way on this thread (a turn)"),
        ),
        Box(
            "reason",
            1,
            1,
            "ours",
            "rank/eligibility.py",
            ("forward_reason: layer, sinks, score_mod;", "a reason against it: no turn, counted, stock runs"),
        ),
        Box(
            "extend",
            0,
            1,
            "stock",
            "TritonAttnBackend.forward_extend",
            (
                "allocates o, writes k and v into the KV pool,",
                "builds nothing new: indptrs, indices and",
                "mask are the batch's own",
            ),
        ),
        Box(
            "function",
            0,
            2,
            "stock",
            "self.extend_attention_fwd",
            ("(q, k, v, o, pool, indptrs, indices, mask, ...)", "the one function that is exchanged"),
        ),
        Box(
            "attend",
            1,
            2,
            "ours",
            "rank/rank.py",
            ("attend: binds the arguments (native/call.py),", "call_reason: shapes, dtypes, strides"),
        ),
        Box(
            "stock",
            0,
            3,
            "stock",
            "extend_attention_fwd",
            ("SGLang's Triton kernel: always in validate,", "in on for what is declined or sampled;", "writes o"),
        ),
        Box(
            "out",
            0,
            4,
            "stock",
            "o_extend",
            ("[tokens, heads, 512], of stock or of ours: what", "reads it is behind both in the same stream"),
        ),
        Box(
            "kernel",
            1,
            3,
            "ours",
            "rank/kernel.py",
            ("on: verify into o", "validate: after stock, verify into a buffer", "of its own, then compare with o"),
        ),
        Box(
            "abi",
            1,
            4,
            "ours",
            "native/abi.py",
            (
                "kdtree_verify, kdtree_compare by ctypes:",
                "pointers, strides, dtypes, a stream;",
                "a status comes back, nothing waits",
            ),
        ),
        Box(
            "host",
            2,
            4,
            "device",
            "kernel/cuda/launch.cu",
            ("after kernel/common/checks.cpp it launches;", "kernel/host does the same in float64 on a CPU"),
        ),
        Box(
            "walk",
            2,
            3,
            "device",
            "kdtree_attend_m64n32",
            ("splits prefix and draft tokens over the card, one", "pass for all heads; ..._fp8 for fp8 pools"),
        ),
        Box(
            "merge",
            2,
            2,
            "device",
            "kdtree_merge",
            ("adds the parts by log-sum-exp, writes", "o (on) or the buffer (validate)"),
        ),
        Box(
            "compare",
            2,
            1,
            "device",
            "kdtree_compare_rows",
            ("the difference to stock;", "kdtree_compare_total adds it up, by shape, too"),
        ),
        Box(
            "record",
            2,
            0,
            "device",
            "rank/records.py",
            ("a record a layer, a counter a reason; each new", "value also in mapped host memory"),
        ),
        Box(
            "reporter",
            3,
            0,
            "told",
            "rank/reporter.py",
            ("looks every 0.5 s, without a CUDA call;", "rank/report.py makes the document"),
        ),
        Box(
            "state",
            3,
            1,
            "told",
            "reporting/state.py",
            ("KDTREE_STATE_DIR/rank-*.json:", "kdtree status, kdtree health"),
        ),
        Box("metrics", 3, 2, "told", "metrics/publisher.py", ("SGLang's /metrics",)),
        Box(
            "evidence",
            3,
            3,
            "told",
            "evidence/follower.py",
            ("KDTREE_EVIDENCE_DIR: kdtree report", "(verdict/judge.py)"),
        ),
        Box("keeper", 3, 4, "told", "replay/keeper.py", ("a call out of bound, as inputs:", "kdtree replay")),
    ),
    (
        "batch hook",
        "hook reason",
        "reason extend",
        "extend function",
        "function attend",
        "attend kernel: ours",
        "attend stock",
        "stock out",
        "kernel out",
        "kernel abi",
        "abi host",
        "host walk",
        "walk merge",
        "merge compare: validate, sampled",
        "compare record",
        "record reporter",
        "reporter state",
        "~state metrics",
        "~metrics evidence",
        "~evidence keeper",
    ),
)

MODE = Picture(
    "How KDTREE_VERIFY reaches a rank, and how a rank's answer reaches the health check",
    ("on the host", "the container's main process", "each scheduler process (rank)"),
    (
        Box("env", 0, 0, "stock", ".env", ("KDTREE_VERIFY=off, validate or on",)),
        Box(
            "compose",
            0,
            1,
            "stock",
            "compose.yaml",
            ("environment of the service, off by default;", "a changed .env needs docker compose up -d"),
        ),
        Box(
            "entry",
            1,
            1,
            "ours",
            "docker/entrypoint.py",
            (
                "under tini; config.py refuses any other value,",
                "doctor/run.py checks GPU, driver, memory;",
                "then exec",
            ),
        ),
        Box(
            "launch",
            1,
            2,
            "ours",
            "launch.py",
            (
                "preflight.py: SGLang's sources, entry point,",
                "library; writes server.json with the mode;",
                "then is sglang.launch_server, same process",
            ),
        ),
        Box(
            "spawn",
            1,
            3,
            "stock",
            "sglang.launch_server",
            ("load_plugins, then one process a rank by", "spawn: it inherits the environment"),
        ),
        Box(
            "scheduler",
            2,
            3,
            "stock",
            "run_scheduler_process",
            ("load_plugins: entry point kdtree", "of the group sglang.srt.plugins"),
        ),
        Box(
            "plugin",
            2,
            4,
            "ours",
            "plugin.py",
            (
                "reads the mode again from its environment;",
                "off: off.py alone, no library, stock's objects;",
                "else patches what is imported: importhook.py",
            ),
        ),
        Box(
            "reserve",
            2,
            5,
            "ours",
            "rank/process.py",
            ("loads the library, takes its memory before", "the KV pool is sized; arms the Triton backend"),
        ),
        Box(
            "proof",
            2,
            6,
            "ours",
            "selftest/runner.py",
            ("the library on this card against float64;", "a failure ends the server, in one line"),
        ),
        Box(
            "ready",
            2,
            7,
            "ours",
            "rank/reporter.py",
            ("the rank's file: mode, state, library's sha256;", "without Triton verify the server ends instead"),
        ),
        Box(
            "files",
            1,
            7,
            "told",
            "reporting/state.py",
            ("KDTREE_STATE_DIR: server.json, what was", "asked for; rank-*.json, what is"),
        ),
        Box(
            "health",
            1,
            6,
            "told",
            "reporting/health.py",
            (
                "kdtree health: every expected rank lives,",
                "reports the mode asked for, serves or may yet,",
                "and SGLang's /ready answers",
            ),
        ),
        Box("docker", 0, 6, "stock", "docker/Dockerfile", ("HEALTHCHECK: healthy or unhealthy",)),
        Box("status", 0, 7, "told", "reporting/status_command.py", ("kdtree status: the same files, for people",)),
    ),
    (
        "env compose",
        "compose entry",
        "entry launch",
        "launch spawn",
        "spawn scheduler",
        "scheduler plugin",
        "plugin reserve",
        "reserve proof",
        "proof ready",
        "ready files",
        "files health",
        "files status",
        "health docker",
    ),
)

PICTURES = {"call.svg": CALL, "mode.svg": MODE}


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]) if arguments else Path(__file__).parent
    for name, picture in PICTURES.items():
        (folder / name).write_text(svg(picture), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
