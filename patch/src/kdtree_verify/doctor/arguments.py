"""As much of the server's command line as the checks need, read without importing SGLang: that takes seconds.

The launcher reads all of it with SGLang's own parser afterwards.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NoReturn


@dataclass(frozen=True)
class Plan:
    """What the server is to be. What the command line does not say has SGLang's default.

    Attributes:
        given: Whether there is a command line.
        known: Whether it could be read.
        model: --model-path.
        tensor, pipeline: Ranks that share one copy of the weights.
        replicas: Copies of the weights.
        nodes: Hosts.
        first_gpu, gpu_step: Which of CUDA's devices the ranks take.
        fraction: --mem-fraction-static, if given.
        as_stored: Whether the weights take on the GPUs what they take on disk.
        on_cpu: Whether it says --device cpu.
    """

    given: bool = False
    known: bool = False
    model: str | None = None
    revision: str | None = None
    download_dir: str | None = None
    tensor: int = 1
    pipeline: int = 1
    replicas: int = 1
    nodes: int = 1
    first_gpu: int = 0
    gpu_step: int = 1
    fraction: float | None = None
    as_stored: bool = True
    on_cpu: bool = False

    @property
    def ranks(self) -> int:
        """Ranks on this host."""
        return max(self.tensor * self.pipeline // self.nodes, 1) * self.replicas


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def read(arguments: Sequence[str]) -> Plan:
    """The plan; an unknown one where there is no command line, or one that SGLang will refuse."""
    on_cpu = ("--device", "cpu") in pairwise(arguments) or "--device=cpu" in arguments
    unknown = Plan(given=bool(arguments), on_cpu=on_cpu)
    try:
        found, _ = _parser().parse_known_args(list(arguments))
        if found.config:
            found, _ = _parser().parse_known_args([*_configured(found.config), *arguments])
        numbers = [found.tp, found.pp, found.dp, found.nodes, found.gpu_step]
        if not arguments or min(numbers) < 1 or found.first_gpu < 0:
            return unknown
    except (ValueError, OSError):
        return unknown
    return Plan(
        given=True,
        known=True,
        model=found.model,
        revision=found.revision,
        download_dir=found.download_dir,
        tensor=found.tp,
        pipeline=found.pp,
        replicas=1 if found.enable_dp_attention else found.dp,
        nodes=found.nodes,
        first_gpu=found.first_gpu,
        gpu_step=found.gpu_step,
        fraction=found.fraction,
        as_stored=not found.offload and found.quantization is None and found.load_format in _AS_STORED,
        on_cpu=on_cpu,
    )


def _configured(path: str) -> list[str]:
    """A --config file's entries as arguments, which those of the command line come after and override."""
    try:
        import yaml  # SGLang brings it
    except ImportError:
        raise ValueError("no yaml") from None
    try:
        if Path(path).exists() and not Path(path).is_file():  # a pipe would wait, a device never end
            raise ValueError("no file")
        entries = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, RecursionError):
        raise ValueError("no YAML") from None
    if not isinstance(entries, dict):
        raise ValueError("no mapping")
    given = [(f"--{name}", value) for name, value in entries.items() if value is not False]
    return [word for name, value in given for word in ([name] if value is True else [name, str(value)])]


_AS_STORED = ("auto", "safetensors", "pt")


def _parser() -> argparse.ArgumentParser:
    # SGLang's names, all of which argparse lets one shorten there; here whole names count, and the usual --tp and --dp.
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model-path", "--model", dest="model")
    parser.add_argument("--revision")
    parser.add_argument("--download-dir")
    parser.add_argument("--config")
    parser.add_argument("--tp-size", "--tensor-parallel-size", "--tp", dest="tp", type=int, default=1)
    parser.add_argument("--pp-size", "--pipeline-parallel-size", dest="pp", type=int, default=1)
    parser.add_argument("--dp-size", "--data-parallel-size", "--dp", dest="dp", type=int, default=1)
    parser.add_argument("--enable-dp-attention", action="store_true")
    parser.add_argument("--nnodes", dest="nodes", type=int, default=1)
    parser.add_argument("--base-gpu-id", dest="first_gpu", type=int, default=0)
    parser.add_argument("--gpu-id-step", dest="gpu_step", type=int, default=1)
    parser.add_argument("--mem-fraction-static", dest="fraction", type=float)
    parser.add_argument("--cpu-offload-gb", dest="offload", type=float, default=0)
    parser.add_argument("--quantization")
    parser.add_argument("--load-format", default="auto")
    return parser
