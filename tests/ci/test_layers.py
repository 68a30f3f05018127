"""What of a layer is unpacked; tests/ci/test_pins_update.py has whole images."""

from __future__ import annotations

import io
from pathlib import Path, PurePosixPath

import pytest

from oci.client import digest_of
from oci.errors import RegistryError
from oci.stream import Blob
from pinning import layers
from small_images import layer

ROOT = PurePosixPath("a/sglang")


def take(folder: Path, *newest_first: bytes) -> list[str]:
    """The files that are there then."""
    seen: set[PurePosixPath] = set()
    for content in newest_first:
        blob = Blob(digest_of(content), len(content), io.BytesIO(content).read)
        layers._take(blob, ROOT, folder / "sources", seen)
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_folder_that_was_made_anew_hides_the_one_below(tmp_path: Path) -> None:
    newer = layer({"a/sglang/srt/.wh..wh..opq": b"", "a/sglang/srt/new.py": b""})
    older = layer({"a/sglang/srt/old.py": b"", "a/sglang/kept.py": b""})
    assert take(tmp_path, newer, older) == ["sources/kept.py", "sources/srt/new.py"]


def test_nothing_is_written_outside(tmp_path: Path) -> None:
    content = layer({"a/sglang/../out.py": b"", "b/other.py": b"", "a/sglang/in.py": b""})
    assert take(tmp_path, content) == ["sources/in.py"]


def test_what_comes_after_the_archive_s_end_is_checked_too(tmp_path: Path) -> None:
    content = layer({"a/sglang/in.py": b""}) + bytes(300_000)
    blob = Blob(digest_of(content[:-1] + b"x"), len(content), io.BytesIO(content).read)
    with pytest.raises(RegistryError, match="answers with another blob"):
        layers._take(blob, ROOT, tmp_path, set())
