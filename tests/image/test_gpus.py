"""Which GPUs CUDA_VISIBLE_DEVICES leaves: every basic form, read as CUDA reads it."""

from __future__ import annotations

import pytest

from gpus import Gpu, visible_to_cuda


def cards(*capabilities: str) -> list[Gpu]:
    return [
        Gpu(index, "card", f"GPU-{index}{index}aa-{index}", capability, 1024, mig=False)
        for index, capability in enumerate(capabilities)
    ]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("none", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        (" 0 , 1 ", [0, 1]),
        ("0,7,1", [0]),
        ("0,-1,1", [0]),
        ("0,0", [0]),
        ("GPU-11aa-1", [1]),
        ("GPU-22", [2]),
        ("GPU-ff,0", []),
        ("MIG-known", [1]),
        ("MIG-unknown", []),
        ("11aa-1", []),
        ("²", []),
    ],
)
def test_forms(selection: str | None, expected: list[int]) -> None:
    parents = {"MIG-known": "GPU-11aa-1"}
    found = visible_to_cuda(cards("12.0", "12.0", "12.0"), selection, "", parents)
    assert [gpu.index for gpu in found] == expected


def test_an_index_among_different_cards_may_mean_any() -> None:
    mixed = cards("9.0", "12.0")
    assert len(visible_to_cuda(mixed, "1", "", {})) == 2
    assert [gpu.index for gpu in visible_to_cuda(mixed, "1", "PCI_BUS_ID", {})] == [1]
    assert [gpu.index for gpu in visible_to_cuda(mixed, "GPU-11", "", {})] == [1]
