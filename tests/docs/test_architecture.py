"""docs/architecture.md and its pictures: drawn from what they are said to be, and naming what is there."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

import documents

FOLDER = documents.ROOT / "docs" / "architecture"
PAGE = documents.ROOT / "docs" / "architecture.md"
PACKAGE = documents.ROOT / "patch" / "src" / "kdtree_verify"
PICTURES = sorted(FOLDER.glob("*.svg"))
SUFFIXES = ("py", "cu", "cpp", "h", "yaml", "env", "Dockerfile")
STOCK = {
    "Scheduler.run_batch": "managers/scheduler.py",
    "run_scheduler_process": "managers/scheduler.py",
    "load_plugins": "managers/scheduler.py",
    "ForwardMode.TARGET_VERIFY": "model_executor/forward_batch_info.py",
    "TritonAttnBackend.forward_extend": "layers/attention/triton_backend.py",
    "self.extend_attention_fwd": "layers/attention/triton_backend.py",
    "extend_attention_fwd": "../kernels/ops/attention/extend_attention.py",
    "o_extend": "../kernels/ops/attention/extend_attention.py",
    "sglang.srt.plugins": "plugins/__init__.py",
}
"""What the pictures and the page name of SGLang, and where below sglang/srt its last part stands."""
OTHERS = {".env", "sglang.launch_server"}


def words(picture: Path) -> list[str]:
    return [unescape(found) for found in re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text())]


def files(text: str) -> set[str]:
    """Names of files of the repository in a text: with a folder, or a module's."""
    return set(re.findall(rf"(?<![\w.*-])[\w/]*\w\.(?:{'|'.join(SUFFIXES)})\b", text)) | set(
        re.findall(r"docker/Dockerfile", text)
    )


def exists(name: str) -> bool:
    return (
        (documents.ROOT / name).exists()
        or (PACKAGE / name).exists()
        or any((folder / name).exists() for folder in (FOLDER, FOLDER.parent))
    )


def test_the_pictures_are_what_is_drawn(tmp_path: Path) -> None:
    subprocess.run([sys.executable, FOLDER / "draw.py", tmp_path], check=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {p.name: p.read_text() for p in PICTURES}
    assert len(PICTURES) == 2


@pytest.mark.parametrize("source", [PAGE, *PICTURES], ids=lambda path: path.name)
def test_files_that_are_named_are_there(source: Path) -> None:
    text = source.read_text() if source == PAGE else "\n".join(words(source))
    found = files(text)
    assert len(found) > 4
    assert {name for name in found if not exists(name)} == set()


def test_a_file_that_is_not_there_is_found() -> None:
    found = files("rank/gone.py and rank/hook.py; server.json, kernel/cuda/launch.cu")
    assert {name for name in found if not exists(name)} == {"rank/gone.py"}


def heads(picture: Path) -> set[str]:
    return set(re.findall(r'<text class="text head"[^>]*>([^<]*)<', picture.read_text()))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_box_is_a_file_or_a_name_of_the_sources(picture: Path) -> None:
    kernels = "\n".join(path.read_text() for path in (documents.ROOT / "kernel" / "cuda").glob("*.cu*"))
    for head in heads(picture) - STOCK.keys() - OTHERS:
        assert exists(head) or re.search(rf"__global__ [^;{{]*\b{re.escape(head)}\b", kernels), head


def test_functions_that_are_named_are_there() -> None:
    """Of the kernel library, and what a box says that its module does."""
    library = "\n".join(path.read_text() for path in (documents.ROOT / "kernel").rglob("*.[hc]*") if path.is_file())
    said = "\n".join(line for picture in PICTURES for line in words(picture)) + PAGE.read_text()
    for name in set(re.findall(r"\bkdtree_(?!verify\b)\w+", said)) | {"kdtree_verify"}:
        assert re.search(rf"\b{name}\b", library), name
    for module, name in (
        ("rank/hook.py", "forward_extend"),
        ("rank/eligibility.py", "forward_reason"),
        ("rank/eligibility.py", "call_reason"),
        ("rank/rank.py", "attend"),
    ):
        assert name in said
        assert re.search(rf"def {name}\b", (PACKAGE / module).read_text()), name


def test_what_is_named_of_sglang_is_there() -> None:
    import sglang

    root = Path(sglang.__file__).parent / "srt"
    for name, place in STOCK.items():
        assert re.search(rf"\b{name.rpartition('.')[2]}\b", (root / place).read_text()), name


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_line_stays_in_its_box(picture: Path) -> None:
    """By its length: in DejaVu Sans, which is wide, 49 characters left 5 of a box's 304 pixels; heads are monospace."""
    text = picture.read_text()
    assert "@media (prefers-color-scheme: dark)" in text
    assert re.search(r'(?:href|src)="(?!#)', text) is None, "nothing from elsewhere"
    assert max(len(line) for line in words(picture)[1:]) <= 50
    assert max(len(head) for head in heads(picture)) <= 39
