"""The contract with SGLang: it holds for the installed one, and each kind of drift is refused with a clear line."""

from __future__ import annotations

import ast
import inspect
import shutil
from pathlib import Path

import pytest
import torch

from kdtree_verify import contract
from kdtree_verify.errors import ContractError
from kdtree_verify.native.call import Call
from kdtree_verify.rank import eligibility, hook

BACKEND = Path("srt/layers/attention/triton_backend.py")
KERNEL = Path("kernels/ops/attention/extend_attention.py")
RUNNER = Path("srt/model_executor/model_runner.py")
LAYER = Path("srt/layers/radix_attention.py")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files of the installed SGLang that the contract is about, to be changed."""
    installed = contract.installed_root()
    for path in (BACKEND, KERNEL, RUNNER, LAYER):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(installed / path, tmp_path / path)
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_installed_sglang_is_the_expected_one(copy) -> None:
    contract.check_sources(contract.installed_root())
    contract.check_sources(copy)


def test_the_installed_functions_are_the_expected_ones() -> None:
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd
    from sglang.srt.layers.attention import triton_backend
    from sglang.srt.model_executor import model_runner

    assert contract.backend_class(triton_backend) is triton_backend.TritonAttnBackend
    assert contract.runner_class(model_runner) is model_runner.ModelRunner
    contract.check_signature("f", extend_attention_fwd, contract.EXTEND_ATTENTION_FWD)
    contract.check_signature("f", torch.compiler.disable(extend_attention_fwd), contract.EXTEND_ATTENTION_FWD)


def test_what_binds_a_call_has_the_contracts_signature() -> None:
    contract.check_signature("Call", Call, contract.EXTEND_ATTENTION_FWD)


def test_the_contract_has_all_that_the_decline_list_reads() -> None:
    read: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(inspect.getsource(eligibility))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            read.setdefault(node.value.id, set()).add(node.attr)
    assert read["backend"] == set(contract.BACKEND_ATTRIBUTES)
    assert read["layer"] == set(contract.LAYER_ATTRIBUTES)


def test_the_wrapper_has_the_contracts_signature() -> None:
    wrapper = hook._make_forward_extend(lambda *args: None)
    contract.check_signature("forward_extend", wrapper, contract.FORWARD_EXTEND)


@pytest.mark.parametrize(
    ("path", "old", "new", "message"),
    [
        (
            BACKEND,
            "aux_tensors=None,\n    ):\n        if (",
            "aux_tensors=None,\n        rope=None,\n    ):\n        if (",
            "the signature of TritonAttnBackend.forward_extend has changed: new: rope=None",
        ),
        (
            BACKEND,
            "save_kv_cache=True,\n        sinks=None,\n        score_mod=None",
            "save_kv_cache=False,\n        sinks=None,\n        score_mod=None",
            "forward_extend has changed: new: save_kv_cache=False; gone: save_kv_cache=True",
        ),
        (
            KERNEL,
            "def extend_attention_fwd(\n    q_extend,",
            "def extend_attention_fwd(\n    q,",
            "new: q; gone: q_ext",
        ),
        (
            KERNEL,
            "    k_extend,\n    v_extend,\n    o_extend,\n    k_buffer,",
            "    v_extend,\n    k_extend,\n    o_extend,\n    k_buffer,",
            "the signature of extend_attention_fwd has changed: another order",
        ),
        (BACKEND, "self.extend_attention_fwd", "self.tree_attention_fwd", "does not call self.extend_attention_fwd"),
        (BACKEND, "class TritonAttnBackend(", "class TritonBackend(", "SGLang has no TritonAttnBackend.forward_extend"),
        (BACKEND, "def forward_extend(", "def forward_verify(", "SGLang has no TritonAttnBackend.forward_extend"),
        (KERNEL, "def extend_attention_fwd(", "def extend_fwd(", "SGLang has no extend_attention_fwd"),
        (BACKEND, "import torch", "import", "triton_backend cannot be read"),
        (
            BACKEND,
            "self.dllm_block_size = ",
            "block_size = ",
            "TritonAttnBackend lacks what tells whose a call is: dllm_block_size",
        ),
        (LAYER, "self.qk_head_dim = ", "self.head_dim = ", "lacks what tells whose a call is: qk_head_dim"),
        (LAYER, "class RadixAttention(", "class Attention(", "lacks what tells whose a call is: qk_head_dim, v_head"),
        (RUNNER, "class ModelRunner", "class Runner", "SGLang has no ModelRunner.alloc_memory_pool"),
        (RUNNER, "def alloc_memory_pool(", "def allocate(", "SGLang has no ModelRunner.alloc_memory_pool"),
        (RUNNER, "self.pre_model_load_memory", "self.free_memory", "alloc_memory_pool does not size the KV pool"),
    ],
)
def test_drift_in_the_sources(copy, path, old, new, message) -> None:
    edit(copy / path, old, new)
    with pytest.raises(ContractError) as refused:
        contract.check_sources(copy)
    assert message in str(refused.value)
    assert "Fix: " in str(refused.value)
    assert refused.value.code == 78


def test_only_the_call_at_the_end_counts(copy) -> None:
    # The DCP and dense paths call the same attribute: that forward_extend itself no longer does must be seen.
    text = (copy / BACKEND).read_text()
    start = text.index("    def forward_extend(")
    end = text.index("    def _dense_one_shot_kv_indptr_for(")
    body = text[start:end].replace("self.extend_attention_fwd(", "self.extend_attention_fwd_v2(")
    (copy / BACKEND).write_text(text[:start] + body + text[end:])
    assert "self.extend_attention_fwd(" in text[end:]
    with pytest.raises(ContractError, match="does not call"):
        contract.check_sources(copy)


def test_a_missing_file(copy) -> None:
    (copy / BACKEND).unlink()
    with pytest.raises(ContractError, match="cannot be read"):
        contract.check_sources(copy)


def test_drift_by_another_plugin(arm, monkeypatch, capsys) -> None:
    # The sources are as expected, the class is not: someone replaced the method before us.
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    monkeypatch.setattr(TritonAttnBackend, "forward_extend", lambda self, q, k, v, layer, batch: None)
    with pytest.raises(SystemExit) as end:
        arm("on")
    assert end.value.code == 78
    assert "the signature of TritonAttnBackend.forward_extend has changed" in capsys.readouterr().err


def test_an_attention_function_that_changed(arm, monkeypatch, capsys) -> None:
    from sglang.kernels.ops.attention import extend_attention

    from rig import Rig

    monkeypatch.setattr(extend_attention, "extend_attention_fwd", lambda q, k, v: None)
    arm("validate")
    with pytest.raises(SystemExit) as end:
        Rig()
    assert end.value.code == 78
    assert "the signature of extend_attention_fwd has changed" in capsys.readouterr().err
