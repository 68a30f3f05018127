"""The entry point in processes of its own: what it changes, in which order, and how it ends a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest

BACKEND = "sglang.srt.layers.attention.triton_backend"
RUNNER = "sglang.srt.model_executor.model_runner"


def python(script: str, mode: str, tmp_path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
        env={
            **os.environ,
            "KDTREE_VERIFY": mode,
            "KDTREE_DEVICE": "cpu",
            "KDTREE_STATE_DIR": str(tmp_path),
            "SGLANG_PLUGINS": "kdtree",  # without the stand-in's shim, which refuses an SGLang it was not made for
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )


def answer(script: str, mode: str, tmp_path, **environment: str):
    run = python(script, mode, tmp_path, **environment)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.strip().splitlines()[-1])


def test_off_changes_and_loads_nothing(tmp_path) -> None:
    found = answer(
        f"""
        import importlib, json, sys
        import {BACKEND} as backend, {RUNNER} as runner
        classes = backend.TritonAttnBackend, runner.ModelRunner
        stock = [dict(vars(cls)) for cls in classes]
        from sglang.srt.plugins import load_plugins
        load_plugins()
        import sglang.srt.managers.scheduler
        same = [dict(vars(cls)) for cls in classes] == stock
        ours = sorted(name for name in sys.modules if name.startswith("kdtree_verify."))
        print(json.dumps([same, ours, "libkdtree" in open("/proc/self/maps").read()]))
        """,
        "off",
        tmp_path,
        KDTREE_LIBRARY_DIR="/no/such/folder",
    )
    same, ours, mapped = found
    assert same
    assert not mapped
    kernel_side = {"abi", "library", "kernel", "records", "rank", "hook", "process", "selftest"}
    assert kernel_side.isdisjoint(name.split(".")[1] for name in ours)


@pytest.mark.parametrize("order", ["before", "after"])
def test_patched_once_whoever_comes_first(tmp_path, order) -> None:
    imports = f"import {BACKEND} as backend, {RUNNER} as runner"
    found = answer(
        f"""
        import importlib, json, sys
        {imports if order == "after" else "backend = None"}
        from kdtree_verify.plugin import register
        from sglang.srt.plugins import load_plugins
        load_plugins()
        register()
        untouched = backend is None and "{BACKEND}" in sys.modules
        {imports}
        register()
        found = []
        for wrapped in (backend.TritonAttnBackend.forward_extend, runner.ModelRunner.alloc_memory_pool):
            depth = 0
            while hasattr(wrapped, "__wrapped__"):
                wrapped, depth = wrapped.__wrapped__, depth + 1
            found.append([depth, wrapped.__code__.co_filename.rpartition("/")[2]])
        print(json.dumps([untouched, *found]))
        """,
        "on",
        tmp_path,
    )
    untouched, *wrapped = found
    assert not untouched, "the plugin imported the attention stack"
    assert wrapped == [[1, "triton_backend.py"], [1, "model_runner.py"]]


def test_a_process_that_needs_no_attention_imports_none(tmp_path) -> None:
    # The main process imports the scheduler's module too, to spawn it.
    found = answer(
        f"""
        import json, sys
        from sglang.srt.plugins import load_plugins
        load_plugins()
        import sglang.srt.managers.detokenizer_manager, sglang.srt.managers.scheduler
        print(json.dumps(["{BACKEND}" in sys.modules, "libkdtree" in open("/proc/self/maps").read()]))
        """,
        "on",
        tmp_path,
    )
    assert found == [False, False]


def test_sglang_cannot_swallow_a_refusal(tmp_path) -> None:
    run = python("from sglang.srt.plugins import load_plugins; load_plugins()", "maybe", tmp_path)
    assert run.returncode == 64
    line = run.stderr.strip().splitlines()[-1]
    assert line.startswith("kdtree: KDTREE_VERIFY is not one of off, validate, on: 'maybe'. Fix: ")


def test_a_backend_module_that_drifted_ends_the_process(tmp_path) -> None:
    run = python(
        f"""
        import sys, types
        from kdtree_verify.plugin import register
        fake = types.ModuleType("{BACKEND}")
        fake.TritonAttnBackend = type("TritonAttnBackend", (), {{"forward_extend": lambda self, q: q}})
        sys.modules["{BACKEND}"] = fake
        register()
        print("served")
        """,
        "on",
        tmp_path,
    )
    assert run.returncode == 78
    assert run.stdout == ""
    line = run.stderr.strip().splitlines()[-1]
    assert line.startswith("kdtree: the signature of TritonAttnBackend.forward_extend has changed")
    (path,) = tmp_path.glob("rank-*.json")
    document = json.loads(path.read_text())
    assert (document["state"], document["exit_code"], document["reason"]) == ("failed", 78, line)


def scheduler(backend) -> SimpleNamespace:
    """What is read of a Scheduler: the target's backend."""
    return SimpleNamespace(tp_worker=SimpleNamespace(model_runner=SimpleNamespace(attn_backend=backend)))


class TorchNativeAttnBackend:
    pass


@pytest.fixture
def armed(arm):
    from rig import Rig

    process = arm("on")
    return process, Rig().backend


def hybrid(prefill, decode, verify):
    """SGLang's HybridAttnBackend as far as it is looked at."""
    backend = TorchNativeAttnBackend()
    backend.prefill_backend, backend.decode_backend = prefill, decode
    backend._select_backend = lambda mode: verify if mode.is_target_verify() else None
    return backend


def test_a_scheduler_whose_verify_is_triton_may_serve(armed) -> None:
    process, triton = armed
    other = TorchNativeAttnBackend()
    wrapped = SimpleNamespace(primary=SimpleNamespace(full_attn_backend=triton))
    for backend in (triton, wrapped, hybrid(triton, other, triton), None):
        process.on_scheduler(scheduler(backend))


def test_a_scheduler_whose_verify_is_not_triton_ends(armed, capsys) -> None:
    process, triton = armed
    other = TorchNativeAttnBackend()
    for backend in (other, SimpleNamespace(primary=other), hybrid(other, triton, other)):
        with pytest.raises(SystemExit) as end:
            process.on_scheduler(scheduler(backend))
        assert end.value.code == 78
        line = capsys.readouterr().err.strip()
        assert line.startswith(
            "kdtree: KDTREE_VERIFY=on needs the Triton attention backend for verify: TorchNativeAttnBackend. Fix: "
        )


def test_a_draft_model_alone_is_not_enough(arm, capsys) -> None:
    from rig import Rig

    process = arm("on")
    rig = Rig()
    process._target_armed = False
    rig.runner.is_draft_worker = True
    type(rig.backend)(rig.runner)
    with pytest.raises(SystemExit):
        process.on_scheduler(scheduler(None))
    assert "no Triton backend was built" in capsys.readouterr().err


def test_an_unexpected_error_while_arming_ends(arm, monkeypatch, capsys) -> None:
    from kdtree_verify import selftest
    from rig import Rig

    arm("on")
    monkeypatch.setattr(selftest, "run", lambda *args: 1 / 0)
    with pytest.raises(SystemExit) as end:
        Rig()
    assert end.value.code == 78
    assert "the patch could not be armed: ZeroDivisionError" in capsys.readouterr().err
