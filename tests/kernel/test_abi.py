"""The ctypes mirror of the header, the header, and what the library says of itself are one."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest

from kdtree_verify.native import abi
from kdtree_verify.native.library import Library, package_version

ROOT = Path(__file__).parents[2]
HEADER = ROOT / "kernel" / "include" / "kdtree_verify.h"

STRUCTS = {
    "kdtree_layer_record": abi.LayerRecord,
    "kdtree_verify_args": abi.VerifyArgs,
    "kdtree_compare_args": abi.CompareArgs,
    "kdtree_shape_record": abi.ShapeRecord,
    "kdtree_box_header": abi.BoxHeader,
    "kdtree_box_state": abi.BoxState,
    "kdtree_box_args": abi.BoxArgs,
    "kdtree_gate_args": abi.GateArgs,
    "kdtree_workspace_args": abi.WorkspaceArgs,
    "kdtree_description": abi.Description,
}
CONSTANTS = {
    "KDTREE_ABI_VERSION": abi.ABI_VERSION,
    "KDTREE_QK_DIM": abi.QK_DIM,
    "KDTREE_V_DIM": abi.V_DIM,
    "KDTREE_MAX_HEADS": abi.MAX_HEADS,
    "KDTREE_MAX_DRAFT_TOKENS": abi.MAX_DRAFT_TOKENS,
    "KDTREE_MAX_BATCH": abi.MAX_BATCH,
    "KDTREE_PREFIX_BUCKETS": abi.PREFIX_BUCKETS,
    "KDTREE_BATCH_BUCKETS": abi.BATCH_BUCKETS,
    **{f"KDTREE_{status.name}": int(status) for status in abi.Status},
    **{f"KDTREE_{dtype.name}": int(dtype) for dtype in abi.DType},
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the C compiler makes of the header: sizes, offsets, constants."""
    lines = ['printf("KDTREE_VERSION %s\\n", KDTREE_VERSION);']
    for name in CONSTANTS:
        lines.append(f'printf("{name} %lld\\n", (long long){name});')
    for struct, mirror in STRUCTS.items():
        lines.append(f'printf("{struct} %zu\\n", sizeof({struct}));')
        for field, _ in mirror._fields_:
            size = f"sizeof((({struct}*)0)->{field})"
            lines.append(f'printf("{struct}.{field} %zu+%zu\\n", offsetof({struct}, {field}), {size});')
    folder = tmp_path_factory.mktemp("abi")
    source, program = folder / "abi.c", folder / "abi"
    body = "\n  ".join(lines)
    source.write_text(f'#include <stdio.h>\n#include "kdtree_verify.h"\nint main(void) {{\n  {body}\n  return 0;\n}}\n')
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{HEADER.parent}", source, "-o", program]
    subprocess.run(command, check=True)  # the header is C, too
    output = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return dict(line.split(" ", 1) for line in output.splitlines())


@pytest.mark.parametrize("name", STRUCTS)
def test_structs(compiled: dict[str, str], name: str) -> None:
    mirror = STRUCTS[name]
    assert compiled[name] == str(ctypes.sizeof(mirror))
    for field, _ in mirror._fields_:
        descriptor = getattr(mirror, field)
        assert compiled[f"{name}.{field}"] == f"{descriptor.offset}+{descriptor.size}", field


def test_the_mirror_has_every_field_of_the_header() -> None:
    """A field that the mirror lacked at a struct's end would be missed by sizes where padding hides it."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    for name, mirror in STRUCTS.items():
        body = re.search(r"typedef struct " + name + r" \{(.*?)\} " + name + ";", text, re.S)[1]
        declared = re.findall(r"(\w+)(?:\[\d+\])?\s*(?=[,;])", body)
        assert declared == [field for field, _ in mirror._fields_]


def test_constants(compiled: dict[str, str]) -> None:
    assert {name: compiled[name] for name in CONSTANTS} == {name: str(value) for name, value in CONSTANTS.items()}


def test_the_mirror_has_every_function_and_enumerator_of_the_header() -> None:
    text = HEADER.read_text()
    assert set(re.findall(r"^KDTREE_API .*?(kdtree_\w+)\(", text, re.M)) == set(abi.FUNCTIONS)
    assert set(re.findall(r"^  (KDTREE_\w+) = \d+", text, re.M)) <= set(CONSTANTS)


def test_versions(compiled: dict[str, str], library: Library) -> None:
    assert compiled["KDTREE_VERSION"] == library.description.version == package_version()


def test_description(library: Library) -> None:
    found = library.description
    assert (found.device_kind, found.archs, found.variants) == ("host", (), ("float64",))
    assert re.fullmatch(r"g\+\+ \d+\.\d+\.\d+", found.compiler)
    assert re.fullmatch(r"[0-9a-f]{64}", found.source_hash)
    floats = {abi.DType.F32, abi.DType.BF16}
    assert found.q_dtypes == found.out_dtypes == floats
    assert found.pool_dtypes == floats | {abi.DType.F8_E4M3, abi.DType.F8_E5M2}
    assert (found.max_heads, found.max_draft_tokens, found.max_batch) == (128, 256, 1024)
