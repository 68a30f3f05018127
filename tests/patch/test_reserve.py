"""What a rank keeps on its device is taken before SGLang sizes the KV pool by what is left, once, or not at all."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from kdtree_verify.native.abi import Status
from kdtree_verify.native.library import Library
from rig import Rig

EARLY, LATE = "before the KV pool is sized", "out of what the KV pool has left"


@pytest.fixture
def module() -> SimpleNamespace:
    """SGLang's model_runner as far as it is looked at; each call of the method notes what `reserved()` says then."""

    class ModelRunner:
        device = "cpu"
        reserved = staticmethod(lambda: None)

        def alloc_memory_pool(self, memory_pool_config=None, *, layout=None):
            return memory_pool_config, layout, self.reserved()

    return SimpleNamespace(__name__="model_runner", ModelRunner=ModelRunner)


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if "allocated on" in record.getMessage()]


@pytest.mark.parametrize(("mode", "sample", "boxed"), [("validate", 0, True), ("on", 0, False), ("on", 4, True)])
def test_allocated_before_the_pool_is_sized_and_kept(arm, module, caplog, mode, sample, boxed) -> None:
    caplog.set_level(logging.INFO)
    process = arm(mode, sample_every=sample)
    process.patch_runner(module)
    module.ModelRunner.reserved = staticmethod(lambda: process._reserved)
    config, layout, reserved = module.ModelRunner().alloc_memory_pool("config", layout=1)
    assert (config, layout) == ("config", 1)
    assert reserved is process._reserved
    kernel, records, box = reserved.kernel, reserved.records, reserved.box
    (line,) = lines(caplog)
    assert EARLY in line
    assert f"workspace {kernel.workspace_bytes / 2**20:.1f} MiB for the one stream that verifies" in line
    assert f"records {records.device_bytes / 2**20:.2f} MiB" in line
    assert ("of the host, for a call out of bound 64 MiB" in line) == (box is not None) == boxed

    module.ModelRunner().alloc_memory_pool()  # a draft model's
    rig = Rig()
    rig.run(rig.step())
    assert (process.rank.kernel, process.rank.records, process.rank.box) == (kernel, records, box)
    assert len(lines(caplog)) == 1


def test_a_backend_that_comes_first_allocates_and_says_so(arm, caplog) -> None:
    arm("on")
    Rig()
    (line,) = lines(caplog)
    assert LATE in line


def test_a_gpu_that_the_library_is_not_built_for_ends_the_process(arm, monkeypatch, capsys) -> None:
    arm("on")
    monkeypatch.setattr(Library, "supports_device", lambda *_: Status.ERR_DEVICE)
    with pytest.raises(SystemExit) as end:
        Rig()
    assert end.value.code == 66
    assert capsys.readouterr().err.startswith("kdtree: the kernel library has no code for this GPU: cpu, ")


@pytest.mark.parametrize("early", [True, False])
def test_no_memory_ends_the_process(arm, module, monkeypatch, capsys, early) -> None:
    def no_memory(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 34.00 MiB.\nMore.")

    process = arm("on")
    process.patch_runner(module)
    monkeypatch.setattr("kdtree_verify.rank.process.Records", no_memory)
    with pytest.raises(SystemExit) as end:
        module.ModelRunner().alloc_memory_pool() if early else Rig()
    assert end.value.code == 68
    assert capsys.readouterr().err.strip() == (
        "kdtree: cpu has no memory for the kernel's workspace: CUDA out of memory. Tried to allocate 34.00 MiB. "
        "Fix: give this GPU less to hold (more ranks, a lower --mem-fraction-static), or set KDTREE_VERIFY=off"
    )


def test_a_runner_that_drifted_ends_the_process(arm, module, capsys) -> None:
    process = arm("on")
    del module.ModelRunner.alloc_memory_pool
    with pytest.raises(SystemExit) as end:
        process.patch_runner(module)
    assert end.value.code == 78
    assert "SGLang has no ModelRunner.alloc_memory_pool" in capsys.readouterr().err
