"""How the proof's servers are started on a GPU."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .server import state_of
from .starts import MAX_REQUESTS, Start

POOL_TOKENS = 163_840
"""Of a server's KV pool: the longest batch of proof/dialogue.py and its answers."""
MEMORY_FRACTION = 0.6
"""--mem-fraction-static: SGLang keeps the rest of the *whole* card free of the pool, other servers' memory included. So
it starts while they leave this much; what the pool takes is POOL_TOKENS."""
READY_SECONDS = 240.0

MORE_ARGUMENTS = "KDTREE_PROOF_ARGUMENTS"
"""The variable with server arguments that this machine's SGLang needs, as those of the bundle do (docs/proof.md)."""


@dataclass(frozen=True)
class GpuLaunch:
    """A server on GPUs.

    Attributes:
        start: Its configuration.
        mode: KDTREE_VERIFY.
        model: The model's folder.
        folder: Its own folder.
        gpus: CUDA_VISIBLE_DEVICES: as many as start.tp.
        context: The longest sequence, in tokens.
        pool_tokens: Of the KV pool.
        arguments: Server arguments on top.
        environment: Variables on top of this process's own.
    """

    start: Start
    mode: str
    model: Path
    folder: Path
    gpus: tuple[int, ...] = (0,)
    context: int = 4096
    pool_tokens: int = POOL_TOKENS
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_seconds: float = READY_SECONDS

    def command(self, port: int) -> list[str]:
        return [
            *(sys.executable, "-W", "ignore", "-m", "kdtree_verify.launch"),
            *("--model-path", str(self.model), "--host", "127.0.0.1", "--port", str(port)),
            *("--attention-backend", "triton", "--context-length", str(self.context)),
            *("--max-total-tokens", str(self.pool_tokens), "--mem-fraction-static", str(MEMORY_FRACTION)),
            *(
                "--max-running-requests",
                str(max(MAX_REQUESTS, self.start.graph_batch)),
                "--chunked-prefill-size",
                "8192",
            ),
            *("--skip-server-warmup", "--random-seed", "20"),
            *shlex.split(os.environ.get(MORE_ARGUMENTS, "")),
            *self.start.arguments(),
            *self.arguments,
        ]

    def process_environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("KDTREE_")}
        own = {
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpus)),
            "HF_HUB_OFFLINE": "1",
            "KDTREE_LIBRARY_DIR": os.environ.get("KDTREE_LIBRARY_DIR", ""),
            "KDTREE_LOG_INTERVAL": "1",
            "KDTREE_STATE_DIR": str(state_of(self)),
            "KDTREE_EVIDENCE_DIR": str(self.folder / "evidence"),
            "KDTREE_VERIFY": self.mode,
        }
        return inherited | own | dict(self.environment)
