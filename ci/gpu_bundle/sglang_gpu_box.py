"""SGLang plugin of the GPU bundle: tree verify at a temperature, which SGLang compiles with FlashInfer's headers.

Where FlashInfer is not installed, the stand-in's torch versions are called in its place. The other tree helpers are
SGLang's own CUDA sources, compiled on the spot by nvcc: nothing to do for them.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import SimpleNamespace


def register() -> None:
    """Entry point, called in every SGLang process."""
    import torch

    if importlib.util.find_spec("flashinfer") is not None or not torch.cuda.is_available():
        return
    standin = importlib.import_module("sgl_kernel.speculative")
    sampling = importlib.import_module("sglang.kernels.ops.speculative.sampling")
    renorm = importlib.import_module("sglang.kernels.ops.sampling.renorm")
    # Both are looked up when they are called, so it does not matter who has imported them already.
    compiled = SimpleNamespace(sample=standin.tree_speculative_sampling_target_only)
    sampling._jit_sampling_module = lambda vec_size, deterministic: compiled  # type: ignore[attr-defined]
    renorm.top_k_renorm_prob._module = standin.top_k_renorm_prob
    renorm.top_p_renorm_prob._module = standin.top_p_renorm_prob
