"""What the bundle's packages require, and where each requirement is: in the bundle, on the machine, or left out.

requirements.py SITE      holds an unpacked site folder to it; 1 where a requirement is not accounted for
"""

from __future__ import annotations

import sys
import zipfile
from dataclasses import dataclass, field
from email.message import Message
from email.parser import Parser
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

MACHINE = {
    "python_full_version": "3.12.3",
    "python_version": "3.12",
    "implementation_name": "cpython",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "os_name": "posix",
    "sys_platform": "linux",
    "extra": "",
}
THERE = (
    *("aiohttp", "annotated-doc", "anyio", "attrs", "build", "click", "einops", "h11", "httpx", "ninja", "numba"),
    *("numpy", "nvidia-ml-py", "packaging", "pillow", "prometheus-client", "psutil", "pygments", "python-dateutil"),
    *("pyyaml", "regex", "requests", "scipy", "sentencepiece", "tiktoken", "timm", "tokenizers", "torch"),
    *("torchaudio", "torchvision", "tqdm", "transformers", "triton", "typing-extensions", "uvloop", "xxhash"),
)
"""What the machine brings, whatever its version (torch 2.11, Triton 3.6 and transformers 5.17 are known to do)."""
_SHELL = "IPython's shell; SGLang takes IPython.display alone"
_KERNELS = "kernels of other models, numbers or attention backends"
ABSENT = {
    "anthropic": "types of an API's client, for requests in its form",
    "blobfile": "tokenizers of tiktoken's kind that lie in a blob store",
    "cuda-python": "imported for CUDA's own graph and memory calls, which no default of the server makes",
    "datasets": "benchmarks",
    "deepseek-recipe": "recipes of other DeepSeek models",
    "easydict": "configurations of image models",
    "flash-attn-4": _KERNELS,
    "flashinfer-python": "the Triton backend, torch's sampling and this bundle's plugin need none of it",
    "humming-kernels": _KERNELS,
    "interegular": "a grammar backend that is not the default",
    "ipython-pygments-lexers": _SHELL,
    "jedi": _SHELL,
    "kernels": "kernels out of a hub",
    "llguidance": "a grammar backend that is not the default",
    "matplotlib-inline": _SHELL,
    "mistral-common": "Mistral's tokenizers",
    "modelscope": "another model hub",
    "nvidia-cutlass-dsl": _KERNELS,
    "nvidia-mathdx": _KERNELS,
    "nvshmem4py-cu13": "several machines",
    "openai-harmony": "gpt-oss's chat format",
    "outlines": "a grammar backend that is not the default",
    "pexpect": _SHELL,
    "prompt-toolkit": _SHELL,
    "py-spy": "a profiler for a server that hangs",
    "quack-kernels": _KERNELS,
    "sgl-deep-ep": "experts spread over GPUs",
    "sgl-deep-gemm": _KERNELS,
    "sgl-flash-mla": "the compiled package that ci/gpu_bundle/flash_mla stands in for",
    "sglang-kernel": "the compiled package that ci/gpu_bundle/sgl_kernel stands in for",
    "smg-grpc-servicer": "serving by gRPC",
    "stack-data": _SHELL,
    "tilelang": _KERNELS,
    "tml-renderers": "chat formats of other models",
    "torch-memory-saver": "a server that gives its memory back while it sleeps",
    "torchcodec": "video",
    "watchfiles": "reloading TLS certificates",
    "zstandard": "compressed requests",
}
"""Required by name, and knowingly left out: what it is for."""


@dataclass
class Package:
    """A package of the bundle and what it requires on the machine, extras aside."""

    name: str
    version: str
    requires: list[Requirement] = field(default_factory=list)


def of_metadata(metadata: Message) -> Package:
    """The package that METADATA describes."""
    requires = [Requirement(text) for text in metadata.get_all("Requires-Dist") or []]
    here = [one for one in requires if one.marker is None or one.marker.evaluate(MACHINE)]
    return Package(canonicalize_name(metadata["Name"]), metadata["Version"], here)


def of_wheel(wheel: Path) -> Package:
    """The package in a wheel."""
    with zipfile.ZipFile(wheel) as content:
        name, version = wheel.name.split("-")[:2]
        return of_metadata(Parser().parsestr(content.read(f"{name}-{version}.dist-info/METADATA").decode()))


def report(packages: list[Package], *, verbose: bool = False) -> list[str]:
    """Requirements that are nowhere, each with who requires it; verbose prints where the others are."""
    have = {package.name: package.version for package in packages}
    unexplained = []
    for package in sorted(packages, key=lambda one: one.name):
        for one in package.requires:
            name = canonicalize_name(one.name)
            if name not in have and name not in THERE and name not in ABSENT:
                unexplained.append(f"{package.name} requires {one.name}")
            elif verbose and name in ABSENT and name not in have:
                print(f"absent: {one.name} (of {package.name}): {ABSENT[name]}")
            elif verbose and name in have and have[name] not in one.specifier:
                print(f"another version: {one.name} {have[name]}, {package.name} asks for {one.specifier}")
    return unexplained


def main(site: Path) -> int:
    """Reports on the site folder."""
    found = [of_metadata(one.metadata) for one in distributions(path=[str(site)])]  # type: ignore[arg-type]
    unexplained = report(found, verbose=True)
    for line in unexplained:
        print(f"kdtree: {line}, which is neither in {site} nor accounted for. Fix: ci/gpu-bundle", file=sys.stderr)
    print(f"gpu-bundle: {len(found)} packages in {site}; on the machine must be: {' '.join(THERE)}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
