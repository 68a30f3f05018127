"""Which GPUs CUDA_VISIBLE_DEVICES leaves, in every form; what NVIDIA_VISIBLE_DEVICES has to do with it."""

from __future__ import annotations

import pytest

from kdtree_verify.doctor import report
from kdtree_verify.doctor.gpus import check_selected
from kdtree_verify.doctor.nvml import Gpu, Mig, Survey
from kdtree_verify.doctor.selection import CUDA, ORDER, TOOLKIT, by_cuda, by_toolkit, why_none

MIG = (Mig("MIG-aa", "GPU-11aa-1", 7, 0), Mig("MIG-ab", "GPU-11aa-1", 8, 1), Mig("MIG-c", "GPU-22aa-2", 1, 0))


def cards(*capabilities: str) -> Survey:
    gpus = tuple(
        Gpu(index, "card", f"GPU-{index}{index}aa-{index}", capability, 1024, 1024, mig=False)
        for index, capability in enumerate(capabilities)
    )
    return Survey("580.95.05", gpus, MIG)


THREE = cards("12.0", "12.0", "12.0")


def test_what_a_variable_holds_does_not_steer_the_terminal() -> None:
    findings = check_selected(THREE, {CUDA: "0,\x1b[2J\nkdtree: all is well"})
    for shown in (finding.line() for finding in findings):
        assert shown.isprintable()
    for shown in map(report.lines, findings):
        assert "\x1b" not in shown
        assert shown.count("\n") == shown.count("\n                   Fix: ")


@pytest.mark.parametrize(
    ("selection", "expected", "problem"),
    [
        (None, [0, 1, 2], ""),
        ("", [], "it is empty"),
        ("-1", [], "'-1' names none of 3 GPUs"),
        ("none", [], "'none' names none"),
        ("void", [], "'void' names none"),
        ("all", [], "'all' names none"),
        ("NoDevFiles", [], "names none"),
        ("1", [1], ""),
        ("2,0", [2, 0], ""),
        (" 0 , 1 ", [0, 1], ""),
        ("0,7,1", [0], "'7' names none of 3 GPUs, and takes no effect; nor does what stands after it (1)"),
        ("0,-1,1", [0], "'-1' names none"),
        ("0,,1", [0], "'' names none"),
        ("0,0", [], "'0' is there twice"),
        ("9" * 5000, [], "names none of 3 GPUs"),
        ("1gpu,+2", [1, 2], ""),
        ("²", [], "names none"),
        ("0,GPU-11", [0], "'GPU-11' names none"),
        ("GPU-11aa-1", [1], ""),
        ("GPU-22", [2], ""),
        ("GPU-22,GPU-00", [2, 0], ""),
        ("GPU-22,0", [2], "'0' is no GPU-UUID"),
        ("GPU-22,GPU-22", [], "'GPU-22' is there twice"),
        ("GPU-", [], "'GPU-' names 3 of the devices here"),
        ("GPU-ff,GPU-00", [], "'GPU-ff' names none"),
        ("gpu-22", [], "'gpu-22' names none"),
        ("22aa-2", [], "names none"),  # 22, as strtoul reads it
        ("MIG-c", [2], ""),
        ("MIG-aa,MIG-ab", [1], ""),
        ("MIG-a", [], "'MIG-a' names 2 of the devices here"),
        ("MIG-GPU-11aa-1/8/1", [1], ""),
        ("MIG-GPU-11aa-1/8/0", [], "names none"),
        ("MIG-unknown", [], "names none"),
    ],
)
def test_forms(selection: str | None, expected: list[int], problem: str) -> None:
    found = by_cuda(THREE, {} if selection is None else {CUDA: selection})
    assert [gpu.index for gpu in found.gpus] == expected
    assert bool(found.problem) == bool(problem)
    assert problem in found.problem


@pytest.mark.parametrize("value", ["2,0", "0,0", "1gpu,+2", "0,-1,1", "none", "all", "", "0,,1", "GPU-22,GPU-22"])
def test_torch_reads_it_alike(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.cuda import _parse_visible_devices

    monkeypatch.setenv(CUDA, value)
    theirs = [2 if entry == "GPU-22" else entry for entry in _parse_visible_devices()]
    assert [gpu.index for gpu in by_cuda(THREE, {CUDA: value}).gpus] == theirs


def test_an_index_among_different_cards_only_cuda_can_tell() -> None:
    mixed = cards("9.0", "12.0")
    assert not by_cuda(mixed, {CUDA: "1"}).known
    assert by_cuda(mixed, {CUDA: "1", ORDER: "PCI_BUS_ID"}).known
    assert by_cuda(mixed, {CUDA: "GPU-11"}).known
    assert by_cuda(THREE, {CUDA: "1"}).known


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, ""),
        ("", ""),
        ("void", ""),
        ("all", ""),
        ("none", "none asks for the driver without a GPU, yet 3 are here"),
        ("0,1,2", ""),
        ("0,1", "2 asked for, 3 here"),
        ("GPU-00aa-0,GPU-11aa-1,GPU-22aa-2", ""),
        ("GPU-00,GPU-11,gpu-22", "'gpu-22' is no index"),
        ("GPU-ff", "GPU-ff asked for, but not here"),
        ("MIG-aa", ""),
        ("MIG-unknown", "MIG-unknown asked for, but not here"),
        ("1:0", ""),
        ("-1", "'-1' is no index"),
    ],
)
def test_what_the_toolkit_was_asked_for(value: str | None, problem: str) -> None:
    found = by_toolkit(THREE, {} if value is None else {TOOLKIT: value})
    assert bool(found) == bool(problem)
    assert problem in found


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "is not set"), ("", "hands over none"), ("void", "hands over none"), ("none", "hands over none")],
)
def test_why_no_gpu_is_here(value: str | None, words: str) -> None:
    assert words in why_none({} if value is None else {TOOLKIT: value})
    assert "took no effect" in why_none({TOOLKIT: "all"})
    assert "took no effect" in why_none({TOOLKIT: "0"})
