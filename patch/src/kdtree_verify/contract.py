"""What the patch expects of SGLang, and the refusal when the installed SGLang is another.

Two checks of the same contract: on the sources (launcher, image build: nothing of SGLang is imported) and on
the imported objects (each rank: another plugin may have changed them).
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import ContractError

BACKEND_MODULE = "sglang.srt.layers.attention.triton_backend"
BACKEND_CLASS = "TritonAttnBackend"
ATTENTION_CALL = "extend_attention_fwd"
RUNNER_MODULE = "sglang.srt.model_executor.model_runner"
RUNNER_CLASS = "ModelRunner"
# Sizes the KV pool by the memory that is free when it is called: what a rank keeps is allocated before.
POOL_ALLOCATION = "alloc_memory_pool"
_POOL_BASELINE = "pre_model_load_memory"
# Their begin tells how far a rank's start is. One that is missing is not told of: nothing depends on it.
LOAD = "load_model"
CAPTURE = "init_cuda_graphs"
# The one helper through which forward_extend may make the call (SGLang 0.5.23).
CALL_HELPER = "_forward_extend_kernel"

FORWARD_EXTEND = "self, q, k, v, layer, forward_batch, save_kv_cache=True, sinks=None, score_mod=None, aux_tensors=None"
EXTEND_ATTENTION_FWD = (
    "q_extend, k_extend, v_extend, o_extend, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, custom_mask, "
    "is_causal, mask_indptr, max_len_extend, k_scale, v_scale, sm_scale=None, logit_cap=0.0, "
    "skip_prefix_custom_mask=True, sliding_window_size=-1, sinks=None, window_kv_offsets=None, "
    "xai_temperature_len=-1, lse_extend=None, skip_prefix=False, skip_extend=False, page_size=1, score_mod=None, "
    "aux_tensors=None, extend_seq_lens_cpu=None, identity_kv_indices=False"
)
# What the decline list reads (rank/eligibility.py). One that is gone is no decline: each call would be "unknown".
LAYER_MODULE = "sglang.srt.layers.radix_attention"
LAYER_CLASS = "RadixAttention"
BACKEND_ATTRIBUTES = ("use_mla", "enable_deterministic", "dcp_size", "dllm_block_size")
LAYER_ATTRIBUTES = (
    "qk_head_dim", "v_head_dim", "tp_k_head_num", "tp_v_head_num", "is_cross_attention", "attn_type",
    "sliding_window_size", "logit_cap", "xai_temperature_len",
)  # fmt: skip

_FIX = "use an SGLang that this release was tested with (0.5.21, 0.5.23), or set KDTREE_VERIFY=off"


def drift(what: str, found: str) -> ContractError:
    """The refusal of an SGLang that is not the one the patch was written for."""
    return ContractError(what, found, _FIX)


def check_signature(name: str, function: Callable[..., Any], wanted: str) -> None:
    """Holds an imported function's parameters (names, order, defaults; not annotations) equal to `wanted`.

    Raises:
        ContractError: They differ.
    """
    parameters = inspect.signature(function).parameters.values()
    found = ", ".join(str(p.replace(annotation=inspect.Parameter.empty)) for p in parameters)
    if found != wanted:
        raise _changed(name, found, wanted)


def backend_class(module: ModuleType) -> type:
    """TritonAttnBackend of the imported module, with the expected forward_extend.

    Raises:
        ContractError: No such class, no such method, or another signature.
    """
    cls = getattr(module, BACKEND_CLASS, None)
    method = getattr(cls, "forward_extend", None)
    if not isinstance(cls, type) or method is None:
        raise drift(f"SGLang has no {BACKEND_CLASS}.forward_extend", module.__name__)
    check_signature(f"{BACKEND_CLASS}.forward_extend", method, FORWARD_EXTEND)
    return cls


def runner_class(module: ModuleType) -> type:
    """ModelRunner of the imported module, with the method that sizes the KV pool.

    Raises:
        ContractError: No such class, or no such method.
    """
    cls = getattr(module, RUNNER_CLASS, None)
    if not isinstance(cls, type) or not callable(getattr(cls, POOL_ALLOCATION, None)):
        raise drift(f"SGLang has no {RUNNER_CLASS}.{POOL_ALLOCATION}", module.__name__)
    return cls


def attention_call(backend: Any) -> Callable[..., Any]:
    """The attention function that a new backend instance holds, with the expected signature.

    Raises:
        ContractError: The attribute is gone, or its signature is another.
    """
    function = getattr(backend, ATTENTION_CALL, None)
    if function is None:
        raise drift(f"{BACKEND_CLASS} has no {ATTENTION_CALL}", "the attribute is gone")
    check_signature(ATTENTION_CALL, function, EXTEND_ATTENTION_FWD)
    return function


def installed_root() -> Path:
    """The folder of the installed sglang package; nothing is imported.

    Raises:
        ContractError: SGLang is not installed for this Python.
    """
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise ContractError("SGLang is not installed", "no module sglang", "run this with the Python that has SGLang")
    return Path(spec.submodule_search_locations[0])


def check_sources(root: Path) -> None:
    """Checks the sources under the package folder `root` against the contract, without importing them.

    Raises:
        ContractError: A file, class or function is missing, a signature differs, forward_extend does not end
            in the expected attention call, an attribute that the decline list reads is gone, or the KV pool is
            not sized where it was.
    """
    _check_attention(root)
    _check_decline_list(root, BACKEND_MODULE, BACKEND_CLASS, BACKEND_ATTRIBUTES)
    _check_decline_list(root, LAYER_MODULE, LAYER_CLASS, LAYER_ATTRIBUTES)
    _check_pool_allocation(root)


def _check_attention(root: Path) -> None:
    tree = _parse(root, BACKEND_MODULE)
    cls = _find(tree, ast.ClassDef, BACKEND_CLASS)
    method = _find(cls, ast.FunctionDef, "forward_extend") if cls else None
    constructor = _find(cls, ast.FunctionDef, "__init__") if cls else None
    if cls is None or method is None or constructor is None:
        raise drift(f"SGLang has no {BACKEND_CLASS}.forward_extend", BACKEND_MODULE)
    _check_source_signature(f"{BACKEND_CLASS}.forward_extend", method, FORWARD_EXTEND)

    callers = [method, _find(cls, ast.FunctionDef, CALL_HELPER)]
    reached = _calls_self(method, ATTENTION_CALL) or (
        _calls_self(method, CALL_HELPER) and callers[1] is not None and _calls_self(callers[1], ATTENTION_CALL)
    )
    assigned = ATTENTION_CALL in _assigned(constructor)
    if not reached or not assigned:
        raise drift(
            f"{BACKEND_CLASS}.forward_extend does not call self.{ATTENTION_CALL}",
            "no such call" if assigned else "no such attribute",
        )

    home = next((module for module, name in _imports(tree) if name == ATTENTION_CALL), None)
    function = _find(_parse(root, home), ast.FunctionDef, ATTENTION_CALL) if home else None
    if function is None:
        raise drift(f"SGLang has no {ATTENTION_CALL}", home or f"{BACKEND_MODULE} imports none")
    _check_source_signature(ATTENTION_CALL, function, EXTEND_ATTENTION_FWD)


def _check_decline_list(root: Path, module: str, name: str, attributes: tuple[str, ...]) -> None:
    cls = _find(_parse(root, module), ast.ClassDef, name)
    constructor = _find(cls, ast.FunctionDef, "__init__") if cls else None
    assigned = _assigned(constructor) if constructor else set()
    if gone := [attribute for attribute in attributes if attribute not in assigned]:
        raise drift(f"SGLang's {name} lacks what tells whose a call is", ", ".join(gone))


def _check_pool_allocation(root: Path) -> None:
    cls = _find(_parse(root, RUNNER_MODULE), ast.ClassDef, RUNNER_CLASS)
    method = _find(cls, ast.FunctionDef, POOL_ALLOCATION) if cls else None
    if method is None:
        raise drift(f"SGLang has no {RUNNER_CLASS}.{POOL_ALLOCATION}", RUNNER_MODULE)
    names = {node.attr for node in ast.walk(method) if isinstance(node, ast.Attribute)}
    if _POOL_BASELINE not in names:
        raise drift(f"{RUNNER_CLASS}.{POOL_ALLOCATION} does not size the KV pool", f"it reads no {_POOL_BASELINE}")


def _changed(name: str, found: str, wanted: str) -> ContractError:
    had, want = found.split(", "), wanted.split(", ")
    new = [p for p in had if p not in want]
    gone = [p for p in want if p not in had]
    parts = [f"{word} {_some(names)}" for word, names in (("new:", new), ("gone:", gone)) if names]
    return drift(f"the signature of {name} has changed", "; ".join(parts) or "another order of parameters")


def _some(names: list[str]) -> str:
    shown, more = names[:4], len(names) - 4
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _parse(root: Path, module: str) -> ast.Module:
    path = root.joinpath(*module.split(".")[1:]).with_suffix(".py")
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError) as error:
        raise drift(f"SGLang's {module} cannot be read", str(error)) from error


def _find(tree: ast.AST, kind: type[ast.AST], name: str) -> Any:
    body = getattr(tree, "body", [])
    return next((node for node in body if isinstance(node, kind) and getattr(node, "name", None) == name), None)


def _calls_self(function: ast.FunctionDef, name: str) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == name
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
        for node in ast.walk(function)
    )


def _assigned(function: ast.FunctionDef) -> set[str]:
    """The attributes that it gives a value, of whatever object."""
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.Attribute)]
    return {node.attr for node in nodes if isinstance(node.ctx, ast.Store)}


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def _check_source_signature(name: str, function: ast.FunctionDef, wanted: str) -> None:
    arguments = function.args
    for argument in arguments.posonlyargs + arguments.args + arguments.kwonlyargs:
        argument.annotation = None
    found = ", ".join(ast.unparse(arguments).replace(" = ", "=").split(", "))
    if found != wanted:
        raise _changed(name, found, wanted)
