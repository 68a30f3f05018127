"""SGLang plugin: tree speculation (NGRAM, EAGLE) with `--device cpu --attention-backend triton`.

SGLang on a CPU without its CPU engine (SGLANG_USE_CPU_ENGINE unset) is a device it knows for plain decoding
only. What is missing for tree verify is supplied here, by SGLang's own code wherever it has some:

- two compiled packages are imported by name: `stub_packages` puts importable stand-ins there;
- the tree helpers dispatch by vendor: `use_triton_tree_helpers` picks their Triton versions, those of XPU;
- the attention and the helpers then run under Triton's interpreter, which must compute bf16 rightly;
- EAGLE's draft models call torch.cuda.synchronize() whatever the device: it becomes a no-op.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types
from typing import Any

_KERNELS = "sglang.kernels.ops.speculative"
TREE_HELPERS = (f"{_KERNELS}.spec_tree", f"{_KERNELS}.cache_locs", f"{_KERNELS}.reconstruct_tree")
# Where an older SGLang has its switches.
TREE_HELPERS_0_5_21 = ("sglang.srt.speculative.eagle_utils", f"{_KERNELS}.cache_locs")


def register() -> None:
    """Entry point, called in every SGLang process. Does nothing unless TRITON_INTERPRET=1 and no GPU is there."""
    import torch

    if os.environ.get("TRITON_INTERPRET") != "1" or torch.cuda.is_available():
        return
    from kdtree_cpu_shim import triton_interpreter

    triton_interpreter.install()
    stub_packages()
    use_triton_tree_helpers()
    torch.cuda.synchronize = lambda device=None: None


def stub_packages() -> None:
    """Make `sgl_kernel.speculative` and `vllm._custom_ops` importable. What they offer raises when called."""
    _stub("sgl_kernel.speculative", "reconstruct_indices_from_tree_mask")
    _stub("vllm._custom_ops", "rotary_embedding")


def use_triton_tree_helpers() -> None:
    """Send the tree helpers down their XPU branch: the same Triton kernels, FULL_MASK layout kept."""
    kernels = importlib.import_module(f"{_KERNELS}.spec_tree")
    helpers = TREE_HELPERS if hasattr(kernels, "_is_xpu") else TREE_HELPERS_0_5_21
    for module in map(importlib.import_module, helpers):
        if not hasattr(module, "_is_xpu"):
            raise SystemExit(f"kdtree-cpu-shim: {module.__name__} has no _is_xpu: not the SGLang this shim is for")
        module._is_xpu = True  # type: ignore[attr-defined]
    if helpers is TREE_HELPERS_0_5_21:  # whose n-gram worker chooses by the device when it is imported
        own = importlib.import_module(f"{_KERNELS}.reconstruct_tree")
        name = "reconstruct_indices_from_tree_mask"
        setattr(sys.modules["sgl_kernel.speculative"], name, getattr(own, f"{name}_triton"))


def _stub(name: str, *functions: str) -> None:
    """A package `a` and its module `a.b` in sys.modules, unless the real package is installed."""
    package_name, _, leaf = name.partition(".")
    if package_name in sys.modules or importlib.util.find_spec(package_name) is not None:
        return
    package, module = _module(package_name, is_package=True), _module(name, is_package=False)
    setattr(package, leaf, module)
    for function in functions:
        setattr(module, function, _absent(f"{name}.{function}"))


def _module(name: str, *, is_package: bool) -> types.ModuleType:
    module = types.ModuleType(name, "Stand-in of kdtree-cpu-shim.")
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=is_package)
    if is_package:
        module.__path__ = []
    sys.modules[name] = module
    return module


def _absent(name: str) -> Any:
    def absent(*_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(f"{name} is a stand-in of kdtree-cpu-shim: nothing should call it on a CPU")

    return absent
