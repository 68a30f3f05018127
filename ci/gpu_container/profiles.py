"""On what it runs: this machine's GPUs, or, as a rehearsal, its CPU. The steps are the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from kdtree_verify.config import PRODUCT_CAPABILITY
from kdtree_verify.doctor import nvml
from kdtree_verify.errors import DeviceError
from proof.dialogue import Request, longest_sequence, requests
from proof.starts import MAX_REQUESTS, Start

from .engine import Nodes, gpu_nodes
from .errors import Unavailable

LONGEST_PROMPT = 1000
POOL_TOKENS = 32_768
MARGIN = 256
"""Tokens of context beyond the longest sequence: a tree is drafted past its end."""


@dataclass(frozen=True)
class Profile:
    """What differs between GPUs and the rehearsal.

    Attributes:
        name: For people.
        card: The GPUs and their driver, for people.
        capability: The first GPU's that is not the product's, or "": which needs the documented override.
        nodes: Device nodes of the GPUs, and those that all need.
        start: The servers' configuration.
        asked: What each server is asked.
        arguments: Server arguments beside those.
        settings: Variables of each container.
        refused: What the entrypoint says where it refuses validate and on; "" where it does not.
        checked: What it says where it has checked the device.
        captured: What SGLang says when it has captured tree verify; "" where it captures nothing.
        ready_seconds: How long a server may take to be healthy.
        bundled: Whether SGLang comes from the bundle.
    """

    name: str
    card: str
    capability: str
    nodes: tuple[Nodes, Nodes]
    start: Start
    asked: tuple[Request, ...]
    arguments: tuple[str, ...]
    refused: str
    checked: str
    captured: str
    ready_seconds: float
    bundled: bool
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def allowed(self) -> dict[str, str]:
        """The documented override for development, where these GPUs need it."""
        return {"KDTREE_ALLOW_CC": self.capability} if self.capability else {}

    def server(self, port: int) -> list[str]:
        """A server's arguments but for its model."""
        return [
            *("--attention-backend", "triton", "--host", "127.0.0.1", "--port", str(port)),
            *("--context-length", str(longest_sequence(self.asked) + MARGIN), "--max-total-tokens", str(POOL_TOKENS)),
            *("--max-running-requests", str(MAX_REQUESTS), "--chunked-prefill-size", "8192"),
            *("--skip-server-warmup", "--random-seed", "20"),
            *self.arguments,
            *self.start.arguments(),
        ]


def on_gpus() -> Profile:
    """This machine's GPUs. Raises Unavailable."""
    if find_spec("pynvml") is None:
        found = f"{sys.executable} has no pynvml"
        raise Unavailable(
            f"the GPUs cannot be asked: {found}. Fix: set PYTHON to one with a CUDA torch and nvidia-ml-py"
        )
    try:
        seen = nvml.survey()
        nvml.check_driver(seen.driver)
    except DeviceError as refusal:
        raise Unavailable(str(refusal).removeprefix("kdtree: ")) from refusal
    if not seen.gpus:
        raise Unavailable("no GPU: NVML lists none. Fix: run it on a machine with one, or --rehearse")
    others = [gpu.capability for gpu in seen.gpus if gpu.capability != PRODUCT_CAPABILITY]
    return Profile(
        name="GPU",
        card=f"{'; '.join(map(str, seen.gpus))}; driver {seen.driver}",
        capability=others[0] if others else "",
        nodes=gpu_nodes(),
        start=Start(8, 16, "NGRAM", 4),
        asked=requests(LONGEST_PROMPT),
        # SGLang keeps this share of the whole card free of its pool, its neighbours' memory included.
        arguments=("--mem-fraction-static", "0.6"),
        refused=f"needs compute capability {PRODUCT_CAPABILITY} on every GPU" if others else "",
        checked=f"compute capability {seen.gpus[0].capability}",
        captured="Capture target verify CUDA graph end",
        ready_seconds=240.0,
        bundled=True,
    )


def on_cpu() -> Profile:
    """The rehearsal: the host library, SGLang's kernels interpreted, and a device that is none."""
    return Profile(
        name="CPU rehearsal",
        card="none",
        capability="",
        nodes=({"/dev/kdtree-rehearsal": os.devnull}, {}),
        start=replace(Start(8, 8, "NGRAM", 4), graphs=False),
        asked=(Request("alone-16", (16,), 12), Request("alone-60", (60,), 8), Request("batch-3", (16, 30, 20), 6)),
        arguments=(
            *("--device", "cpu", "--sampling-backend", "pytorch", "--disable-overlap-schedule", "--sleep-on-idle"),
            *("--mem-fraction-static", "0.5"),
        ),
        settings={
            "KDTREE_DEVICE": "cpu",
            "TRITON_INTERPRET": "1",
            "HF_HUB_OFFLINE": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
        },
        refused="no GPU can be seen",
        checked="KDTREE_DEVICE=cpu",
        captured="",
        ready_seconds=300.0,
        bundled=False,
    )


def bundle(folder: Path, installer: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Installs the GPU bundle into the folder; the variables and the server's flags that it asks for.

    Raises Unavailable.
    """
    if not installer.is_file():
        raise Unavailable(
            f"no GPU bundle: {installer} is not there. Fix: make it with ci/gpu-bundle, and carry it here"
        )
    bash = shutil.which("bash")
    if bash is None:
        raise Unavailable("no bash, in which the bundle's environment is written. Fix: install it")
    done = subprocess.run([installer, folder], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable((done.stderr.strip() or "the bundle was not installed").removeprefix("kdtree: "))
    # Containers have it read-only, and would compile it anew in each process.
    subprocess.run([sys.executable, "-m", "compileall", "-q", "-j", "0", folder], capture_output=True, check=False)
    script = '. "$1"/environment; env -0; printf "%s\\0" -- "${SGLANG_GPU_FLAGS[@]}"'
    bare = {"PATH": os.environ.get("PATH", os.defpath)}
    told = subprocess.run([bash, "-c", script, "bash", folder], env=bare, capture_output=True, text=True, check=True)
    variables, _, flags = told.stdout.partition("\0--\0")
    asked = dict(variable.split("=", 1) for variable in variables.split("\0") if "=" in variable)
    own = {name: value for name, value in asked.items() if name.startswith(("SGLANG_", "HF_"))}
    return own, tuple(flags.rstrip("\0").split("\0"))
