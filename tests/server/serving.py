"""Real SGLang servers on the CPU, as processes of the tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from proof.server import Ended, started, state_of

LAUNCHER = "kdtree_verify.launch"
SGLANG = "sglang.launch_server"

NGRAM = ("--speculative-algorithm", "NGRAM")
EAGLE = (
    *("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "2"),
    *("--speculative-eagle-topk", "2", "--speculative-num-draft-tokens", "4"),
)
METRICS = "--enable-metrics"
# SGLang at 0.5.23 refuses fp8_e4m3 for MLA on a CPU, before any of ours is asked.
FP8 = (*NGRAM, "--kv-cache-dtype", "fp8_e5m2")

# What the stand-in image sets too: one BLAS thread for the interpreter's small products, no spinning.
CPU_ENVIRONMENT = {"TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
# Compiling a few small helpers takes longer than they do, and Python's headers, which a bare machine has not.
CPU_ENVIRONMENT |= {"TORCH_COMPILE_DISABLE": "1"}
# For one that hangs: imports alone took over 200 s on two busy cores.
READY_SECONDS = 600.0


@dataclass(frozen=True)
class Launch:
    """How a server is started.

    Attributes:
        model: The model's folder.
        folder: An empty folder for the state files and the log.
        mode: KDTREE_VERIFY.
        arguments: Server arguments beside those that every CPU server here gets.
        module: LAUNCHER, or SGLANG: without the launcher.
        environment: Variables on top of the tests' own.
        attention: --attention-backend, None for none.
    """

    model: Path
    folder: Path
    mode: str
    arguments: tuple[str, ...] = NGRAM
    module: str = LAUNCHER
    environment: Mapping[str, str] = field(default_factory=dict)
    attention: str | None = "triton"
    ready_seconds: float = READY_SECONDS

    def command(self, port: int) -> list[str]:
        attention = ["--attention-backend", self.attention] if self.attention else []
        return [
            *(sys.executable, "-W", "ignore", "-m", self.module),
            *("--model-path", str(self.model), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"),
            *attention,
            *("--sampling-backend", "pytorch", "--disable-overlap-schedule", "--disable-cuda-graph"),
            *("--mem-fraction-static", "0.8", "--max-total-tokens", "2048", "--max-running-requests", "4"),
            # A request's prompts come to the scheduler in one message: else their batch depends on who was faster, and
            # another batch has other last bits.
            *("--skip-server-warmup", "--sleep-on-idle", "--enable-tokenizer-batch-encode"),
            *self.arguments,
        ]

    def process_environment(self) -> dict[str, str]:
        own = {
            "KDTREE_VERIFY": self.mode,
            "KDTREE_DEVICE": "cpu",
            "KDTREE_STATE_DIR": str(state_of(self)),
            "KDTREE_EVIDENCE_DIR": str(self.folder / "evidence"),
            "KDTREE_LOG_INTERVAL": "1",
        }
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_")}
        return inherited | CPU_ENVIRONMENT | own | dict(self.environment)


def run_to_end(launch: Launch) -> tuple[int, str]:
    """Starts a server that is to refuse; its exit status and its log. Fails where it serves instead."""
    with started(launch) as server:
        try:
            server.wait_ready()
        except Ended:
            return server.wait_end(), server.log()
        raise AssertionError(f"the server serves\n{server.log()[-3000:]}")
