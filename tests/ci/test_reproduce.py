"""ci/reproduce: what differs between two images is told where it is, and what does not is not."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tarfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from imaging.errors import ImageError
from oci_archives import File, Image, tar, wheel, write
from reproducing import bases, cli, compare, layers, report, twice
from reproducing.archive import Archive, ArchiveError, Layer
from reproducing.bases import Bases
from reproducing.content import MOST_LINES, explain

ROOT = Path(__file__).parents[2]
FILE = File("opt/x", b"one\ntwo\n")
IMAGE = Image(((FILE, File("opt/y", b"y")),))


def explained(*archives: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "ci" / "reproduce", "--explain", *archives]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def compared(folder: Path, a: Image, b: Image) -> tuple[bool, str]:
    """Whether two images are the same, and what is said of them."""
    found = compare.archives(Archive(write(folder / "a.tar", a)), Archive(write(folder / "b.tar", b)))
    return found.same, "\n".join(report.lines(found))


def with_file(**changes: object) -> Image:
    """The image, and its first file otherwise."""
    return Image(((replace(FILE, **changes), *IMAGE.layers[0][1:]),))  # type: ignore[arg-type]


def test_the_command_says_whether_two_archives_are_the_same(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.tar", IMAGE), write(tmp_path / "b.tar", with_file(mode=0o600))
    same, differing = explained(a, a), explained(a, b)
    assert (same.returncode, differing.returncode) == (0, 1)
    assert "DIFFERS" not in same.stdout
    assert same.stdout.splitlines()[-1].startswith("the same to the bit: sha256:")
    assert "        mode 0644 | 0600" in differing.stdout.splitlines()
    assert differing.stderr.startswith("kdtree: the two images differ: ")


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("RUN |1 A=b /bin/sh -c --mount=type=bind,target=/mnt make  it # buildkit", "make it"),
        ("RUN --mount=type=bind,target=/mnt /bin/sh -c make it # buildkit", "make it"),
        ("COPY /a /b # buildkit", "COPY /a /b"),
        ("", "imported"),
        ("COPY " + "a" * 60, "COPY " + "a" * 55 + "…"),
    ],
)
def test_a_layer_is_called_by_its_step(step: str, told: str) -> None:
    assert compare.step(Layer(1, "", "", step)) == told


def test_a_content_that_is_large_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "LARGEST", len(FILE.content) - 1)
    told = compared(tmp_path, IMAGE, with_file(content=b"one\nTWO\n"))[1]
    assert "content, of too many bytes to show" in told
    assert "TWO" not in told


def test_attestations_are_not_compared_for_they_carry_times(tmp_path: Path) -> None:
    assert compared(tmp_path, IMAGE, replace(IMAGE, attested=True))[0]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (with_file(mode=0o600), ["layer 1: step 0\n    opt/x\n        mode 0644 | 0600"]),
        (with_file(mtime=999_999_999), ["opt/x", "time 2001-09-09 01:46:40 | 2001-09-09 01:46:39"]),
        (with_file(uid=1000), ["opt/x", "owner 0:0 | 1000:0"]),
        (with_file(owner="me"), ["opt/x", "owner's name : | me:"]),
        (with_file(extended={"SCHILY.xattr.user.a": "b"}), ["opt/x", "extended [] | [('SCHILY.xattr.user.a', 'b')]"]),
        (with_file(content=b"one\nTWO\n"), ["opt/x", "line 2: two | TWO"]),
        (with_file(content=b"one\ntwo\nthree\n"), ["opt/x", "size 8 | 14", "2 lines | 3 lines"]),
        (with_file(kind=tarfile.SYMTYPE, target="z", content=b""), ["opt/x", "kind file | link", "target  | z"]),
        (Image((IMAGE.layers[0][:1],)), ["opt/y", "only in A: file, mode 0644, owner 0:0, 1 bytes"]),
        (Image((IMAGE.layers[0][::-1],)), ["the same files in another order, from opt/x | opt/y"]),
        (replace(IMAGE, level=1), ["the same tar, compressed otherwise"]),
        (replace(IMAGE, labels={"a": "b"}), ["configuration", 'config.Labels.a: null | "b"']),
        (Image((*IMAGE.layers, (FILE,))), ["layer 2: step 1", "only in B"]),
        (replace(IMAGE, damaged=True), ["archive B\n    sha256:", "its bytes are not those of its digest"]),
    ],
)
def test_a_difference_is_told_where_it_is(tmp_path: Path, other: Image, told: list[str]) -> None:
    image = replace(IMAGE, layers=((*IMAGE.layers[0], *(File(f"z{n}", bytes([n])) for n in range(99))),))
    other = replace(other, layers=((*other.layers[0], *image.layers[0][2:]), *other.layers[1:]))
    same, said = compared(tmp_path, image, other)
    assert not same
    for words in told:
        assert words in said
    assert "z1" not in said, "what is the same is not told"


INDEXES = [tar((File("index.json", content),)) for content in (b"{}", b"[]", b'{"manifests": [5]}')]


@pytest.mark.parametrize("content", [b"no tar", tar(()), *INDEXES, None])
def test_what_is_no_archive_of_an_image_is_said(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "b.tar").write_bytes(content)
    with pytest.raises(ArchiveError, match=r"^no OCI archive of one image: .+\. Fix: "):
        Archive(tmp_path / "b.tar")


def test_where_nothing_is_compared_a_line_says_so(tmp_path: Path) -> None:
    done = explained(tmp_path / "a.tar", tmp_path / "a.tar")
    assert done.returncode == 69
    (line,) = done.stderr.splitlines()
    assert line.startswith("kdtree: nothing was compared: no OCI archive of one image: ")


def test_bad_usage_is_refused() -> None:
    done = explained(Path("one"))
    assert done.returncode == 64
    assert done.stderr.startswith("kdtree: bad usage of ci/reproduce: ")


def test_of_a_layer_that_differs_everywhere_the_first_paths_are_told(tmp_path: Path) -> None:
    a, b = (Image((tuple(File(f"z{n:02}", mode=mode) for n in range(99)),)) for mode in (0o644, 0o600))
    said = compared(tmp_path, a, b)[1]
    assert f"z{report.MOST_PATHS - 1:02}" in said
    assert f"z{report.MOST_PATHS:02}" not in said
    assert said.endswith(f"and {99 - report.MOST_PATHS} more")


# ---- In one file


def compiled(folder: Path, name: str, source: str) -> bytes:
    (folder / "x.c").write_text(source)
    subprocess.run(["g++", "-shared", "-nostdlib", "-x", "c", folder / "x.c", "-o", folder / name], check=True)
    return (folder / name).read_bytes()


def test_of_a_library_the_section_is_told(tmp_path: Path) -> None:
    a, b = (compiled(tmp_path, "x.so", f"int f(void) {{ return {value}; }}") for value in (1, 2))
    lines = explain("x.so", a, b)
    assert any(line.startswith("section .text: from byte ") for line in lines)
    assert not any("section .dynsym" in line for line in lines)


def test_of_a_wheel_the_member_is_told() -> None:
    a = wheel({"x.py": b"a = 1\n", "y.py": b"", "only.py": b""})
    b = wheel({"y.py": b"", "x.py": b"a = 2\n"}, mode=0o600, year=2002)
    lines = explain("x.whl", a, b)
    for told in (
        "member only.py: only in A",
        "the members' order",
        "member x.py: mode 644 | 600",
        "member x.py: time 2001-01-01 00:00:00 | 2002-01-01 00:00:00",
        "member x.py: line 1: a = 1 | a = 2",
    ):
        assert told in lines


def test_of_compiled_python_header_and_code_are_told_apart() -> None:
    header, code = bytes(16), b"code"
    assert explain("x.pyc", header + code, b"\1" + header[1:] + code) == [
        f"its header (Python, and the source's hash or time): {header.hex()} | 01{header[1:].hex()}"
    ]
    assert explain("x.pyc", header + code, header + b"cord") == ["its code: from byte 2: 6465 | 7264"]


@pytest.mark.parametrize(
    ("name", "a", "b", "told"),
    [
        ("x.json", b'{"a": [1, 2]}', b'{"a": [1, 3]}', "a[1]: 2 | 3"),
        ("x.json", b"{", b"}", "line 1: { | }"),
        ("x", b"\0\1", b"\0\2\3", "2 bytes | 3 bytes, from byte 1: 01 | 0203"),
        ("x", b"\0", b"\0\3", "1 bytes | 2 bytes, from byte 1: end | 03"),
        ("x", b"\x7fELF", b"\x7fELG", "line 1: \x7fELF | \x7fELG"),
        ("x.whl", b"PK\3\4", b"PK\3\4 ", "line 1: PK\3\4 | PK\3\4 "),
        ("x", b"\xff\1", b"\xff\2", "from byte 1: 01 | 02"),
        ("x", b"a" * 999, b"b" * 999, f"line 1: {'a' * 100}… | {'b' * 100}…"),
        ("x", b"a\n", b"a", "2 bytes | 1 bytes, from byte 1: 0a | end"),
    ],
)
def test_other_files(name: str, a: bytes, b: bytes, told: str) -> None:
    assert explain(name, a, b) == [told]


def test_much_that_differs_is_cut() -> None:
    a, b = (b"".join(b"%d%c\n" % (n, end) for n in range(99)) for end in (b"a", b"b"))
    lines = explain("x", a, b)
    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == f"and {99 - MOST_LINES} more"


# ---- Folders, checkouts, the report


def test_what_is_compiled_is_compared_by_name(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for folder, content in ((a, b"1\n"), (b, b"2\n")):
        folder.mkdir()
        (folder / "same").write_bytes(b"")
        (folder / "other").write_bytes(content)
    (b / "more").write_bytes(b"")
    found = compare.folders(a, b)
    assert [(row.what, row.same) for row in found.rows] == [("more", False), ("other", False), ("same", True)]
    assert [(one.path, one.lines) for one in found.differences] == [
        ("more", ["only in one of them"]),
        ("other", ["line 1: 1 | 2"]),
    ]
    told = report.document(found, {"commit": "c"})
    assert (told["same"], told["commit"], len(told["compared"])) == (False, "c", 3)
    assert json.loads(json.dumps(told)) == told


def test_the_two_checkouts_are_alike_in_content_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "file").write_text("x")
    identity = ("-c", "user.name=x", "-c", "user.email=x")
    for command in (["init", "-q"], ["add", "file"], [*identity, "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=origin, check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=origin, check=True, capture_output=True, text=True).stdout
    monkeypatch.setattr(twice, "ROOT", origin)
    a, b = (twice.checkout(way, tmp_path / "work", commit.strip()) / "file" for way in twice.WAYS)
    assert a.read_text() == b.read_text()
    assert (a.stat().st_mode & 0o777, b.stat().st_mode & 0o777) == (0o644, 0o600)
    assert a.stat().st_mtime != b.stat().st_mtime == twice.WAYS[1].mtime
    assert len(str(a)) != len(str(b))
    assert os.umask(0o022) == 0o022


def test_each_way_is_built_from_scratch_and_leaves_what_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(twice, "checkout", lambda *_: tmp_path)
    monkeypatch.setattr(twice.recipe, "arguments", lambda *_: {})
    monkeypatch.setattr(twice, "buildx", lambda: ["buildx"])
    monkeypatch.setattr(twice, "output", lambda *command: asked.append(command))
    monkeypatch.setattr(twice, "build", lambda source, arguments, contexts, *options: asked.append(options))
    earlier = tmp_path / "A-artifacts" / "earlier"
    earlier.parent.mkdir()
    earlier.touch()
    built = twice.build_way(twice.WAYS[0], tmp_path, "commit", "120a", {}, "--network=host")
    assert not earlier.exists()
    archive, artifacts = f"dest={built.archive},rewrite-timestamp=true", f"--output=type=local,dest={built.artifacts}"
    assert asked == [
        ("buildx", "prune", "--all", "--force"),
        ("--network=host", "--no-cache", f"--output=type=oci,{archive}"),
        ("--network=host", "--target=artifacts", artifacts),
    ]


# ---- Where nothing is built


def test_a_second_run_waits_for_nobody() -> None:
    lock = ROOT / "build" / "reproduce.lock"
    with lock.open("a") as held:
        with suppress(BlockingIOError):  # else a run that is under way has it
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        command = [sys.executable, ROOT / "ci" / "reproduce", "--stand-in"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 69
    assert done.stderr == (
        "kdtree: nothing was compared: another ci/reproduce of this checkout is under way. Fix: wait for it\n"
    )


def test_too_small_a_disk_is_said_before_anything_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bases.ROOM, Bases.STAND_IN, 0)
    bases.need_room(Bases.STAND_IN, tmp_path)
    monkeypatch.setitem(bases.ROOM, Bases.STAND_IN, 10**6)
    with pytest.raises(ImageError, match=r"too little room on the disk of .+: 1000000 GB needed .+\. Fix: "):
        bases.need_room(Bases.STAND_IN, tmp_path)


@pytest.mark.parametrize("archives", [True, False])
def test_what_is_compiled_stays_and_archives_where_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archives: bool
) -> None:
    monkeypatch.setattr(cli, "FOLDER", tmp_path)
    for way in twice.WAYS:
        (tmp_path / way.folder).mkdir(parents=True)
        (tmp_path / f"{way.name}-artifacts").mkdir()
        (tmp_path / f"{way.name}.tar").touch()
    cli.clean(archives=archives)
    left = {"A-artifacts", "B-artifacts"} | (set() if archives else {"A.tar", "B.tar"})
    assert {path.name for path in tmp_path.iterdir()} == left


@pytest.mark.skipif(shutil.which("zstd") is None, reason="zstd is not installed")
def test_a_layer_that_is_compressed_with_zstd_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip

    def zstd(content: bytes, *_: object, **__: object) -> bytes:
        return subprocess.run(["zstd", "-cq"], input=content, stdout=subprocess.PIPE, check=True).stdout

    monkeypatch.setattr(gzip, "compress", zstd)
    assert "mode 0644 | 0600" in compared(tmp_path, IMAGE, with_file(mode=0o600))[1]
