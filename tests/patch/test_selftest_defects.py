"""The self-test must fail a library that is wrong: each defect of defective_library.c, and what catches it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kdtree_verify import selftest
from kdtree_verify.config import Device
from kdtree_verify.native import library
from kdtree_verify.selftest.shapes import SHAPES

HEADS, DRAFT_TOKENS = 18, 13

ALL = {shape.name for shape in SHAPES}
MASKED = ALL - {"causal"}
WITH_PREFIX = ALL - {"prefix-0"}
FP8 = {"e4m3-subnormals", "e5m2-subnormals", "e4m3-range", "e5m2-range"}
FP8_STRIDED = {"e4m3-range", "e5m2-range"}

# Defect -> the cases that fail, and no others.
CAUGHT_BY = {
    "head-stride": ALL,
    "heads-swapped": ALL,
    "heads-modulo-16": ALL,
    "last-head-unwritten": ALL,
    "rope-ignored": ALL,
    "values-from-keys": ALL,
    "last-column-zero": ALL,
    "scale-2-percent": ALL,
    "two-percent-off": ALL,
    "launch-refused": ALL,
    "tail-row-written": ALL,
    "gap-written": ALL,
    "mask-ignored": MASKED,
    "mask-all-visible": MASKED,
    "mask-without-prefix": MASKED & WITH_PREFIX,
    "mask-row-stride": MASKED & WITH_PREFIX,
    "blind-row-average": {"prefix-0", "ragged-prefix"},
    "last-key-lost": WITH_PREFIX,
    "one-key-too-many": WITH_PREFIX,
    "later-splits-lost": {"long-prefix"},
    "prefix-shared": {
        "tile-edges", "block-edge", "ragged-prefix", "ragged-tokens", "scattered-slots", "strided", "padded"
    },
    "slots-contiguous": {"scattered-slots", "strided"} | FP8_STRIDED,
    "rows-uniform": {"ragged-tokens", "strided", "record"} | FP8_STRIDED,
    "draft-scaled": {"scaled"} | FP8,
    "prefix-unscaled": {"scaled"} | FP8,
    "scales-swapped": {"scaled"} | FP8,
    "fp8-formats-swapped": FP8,
    "subnormals-flushed": FP8 - FP8_STRIDED,
    "record-out-of-range": ALL | {"record"},
    "record-uncounted": {"record"},
    "mirror-stale": {"record"},
    "padding-compared": {"compare"},
    "compare-blind": {"compare"},
    "count-unmirrored": {"compare"},
    "shapes-unmirrored": {"compare"},
    "gate-refused": {"compare"},
    "gate-open": {"compare"},
}  # fmt: skip


@pytest.fixture(scope="module")
def defective(defective_dir) -> library.Library:
    return library.load(defective_dir, Device.CPU)


def test_the_document_names_every_shape_and_defect():
    text = (Path(__file__).parents[2] / "docs" / "selftest.md").read_text()
    for name in {"columns-swapped", "record", "compare", *ALL, *CAUGHT_BY}:
        assert f"`{name}`" in text


def _failed(defective: library.Library) -> set[str]:
    report = selftest.run(defective, torch.device("cpu"), HEADS, DRAFT_TOKENS)
    return {case.shape for case in report.failures}


def test_without_a_defect_it_passes(defective):
    assert _failed(defective) == set()


@pytest.mark.parametrize("defect", CAUGHT_BY)
def test_a_defect_is_caught(defective, defect, monkeypatch):
    monkeypatch.setenv("KDTREE_DEFECT", defect)
    assert _failed(defective) == CAUGHT_BY[defect]


def test_columns_that_changed_places_are_caught(defective, monkeypatch):
    # By those rows whose recorded column is one of the two, or whose signs differ there.
    monkeypatch.setenv("KDTREE_DEFECT", "columns-swapped")
    assert len(_failed(defective)) >= len(ALL) // 2


def test_the_line_says_where(defective, monkeypatch):
    monkeypatch.setenv("KDTREE_DEFECT", "draft-scaled")
    report = selftest.run(defective, torch.device("cpu"), HEADS, DRAFT_TOKENS)
    assert str(report.failures[0]).startswith("shape scaled, variant 1 (float64), eager: request 0, token ")
    assert "expected" in str(report.failures[0])
