"""A capture's file: what is written is read, and of what is not one a single line is said."""

from __future__ import annotations

import json
import math
import os
import re
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from captured import ORIGIN, made
from kdtree_verify import cli
from kdtree_verify.errors import UsageError
from kdtree_verify.rank.records import Model
from kdtree_verify.replay import file, text
from kdtree_verify.replay.capture import Capture

KINDS = {
    "bf16": {},
    "e4m3": {"pool": torch.float8_e4m3fn},
    "e5m2": {"pool": torch.float8_e5m2, "model": Model.DRAFT},
    "no mask": {"causal": True},
    "one token": {"tokens": 1, "heads": 1},
    "no prefix": {"prefix": 0},
    "no prefix, fp8": {"prefix": 0, "pool": torch.float8_e5m2},
    "float32": {"dtype": torch.float32, "pool": torch.float32},
    "not finite": {"rel_l2": math.inf},
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read(kind: str, tmp_path: Path) -> None:
    capture, path = made(**KINDS[kind]), tmp_path / "c.safetensors"
    file.write(path, capture, ORIGIN)
    read, origin = file.read(path)
    assert origin == ORIGIN
    assert read.tensors.keys() == capture.tensors.keys()
    for name, tensor in capture.tensors.items():
        found = read.tensors[name]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8)), name
    numbers = ("model", "layer", "sm_scale", "k_scale", "v_scale", "rel_l2", "bound", "request", "batch")
    assert [getattr(read, name) for name in numbers] == [getattr(capture, name) for name in numbers]
    assert path.stat().st_size <= file.size(capture)
    assert [each.name for each in tmp_path.iterdir()] == ["c.safetensors"]
    # The format is safetensors' own: what that library writes of the same is read the same.
    header = struct.unpack("<Q", path.read_bytes()[:8])[0]
    metadata = json.loads(path.read_bytes()[8 : 8 + header])["__metadata__"]
    save_file({name: tensor.clone() for name, tensor in capture.tensors.items()}, tmp_path / "theirs", metadata)
    theirs, _ = file.read(tmp_path / "theirs")
    assert all(
        torch.equal(theirs.tensors[name].view(torch.uint8), read.tensors[name].view(torch.uint8))
        for name in read.tensors
    )


def test_answers_that_are_not_finite_are_kept(tmp_path: Path) -> None:
    capture = made()
    capture.ours[1, 2, 3:6] = torch.tensor([math.nan, math.inf, -math.inf])
    file.write(tmp_path / "c", capture, ORIGIN)
    read, _ = file.read(tmp_path / "c")
    assert torch.equal(read.ours.view(torch.int16), capture.ours.view(torch.int16))


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_only_its_owner_may_read_it(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        file.write(tmp_path / "c", made(), ORIGIN)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o600 & ~umask


def test_a_link_in_its_way_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / ".c.part").symlink_to(elsewhere)
    with pytest.raises(OSError, match="exists"):
        file.write(tmp_path / "c", made(), ORIGIN)
    assert not elsewhere.exists()


# ---- what is no capture


def refusal(path: Path) -> str:
    """What `kdtree replay` says of the file: one line, on stderr, with exit code 64."""
    with pytest.raises(UsageError) as refused:
        file.read(path)
    line = str(refused.value)
    assert "\n" not in line
    assert line.isprintable()
    assert line.startswith("kdtree: ")
    assert ". Fix: " in line
    assert refused.value.code == 64
    return line


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "whole.safetensors"
    file.write(path, made(), ORIGIN)
    return path


def test_every_length_but_the_whole(whole: Path) -> None:
    content = whole.read_bytes()
    header = 8 + struct.unpack("<Q", content[:8])[0]
    for length in (0, 1, 7, 8, 9, 100, header - 1, header, header + 1, len(content) // 2, len(content) - 1):
        whole.write_bytes(content[:length])
        assert "the file is no capture" in refusal(whole), length
    whole.write_bytes(content + b"\0")
    assert "the file is no capture" in refusal(whole)
    whole.write_bytes(content)
    file.read(whole)


@pytest.mark.parametrize(
    "content",
    [
        b"not a safetensors file at all, but long enough to hold a length",
        b"\xff" * 64,
        struct.pack("<Q", 1 << 62) + b"{}",
        struct.pack("<Q", 99_000_000) + b" " * 100,
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 4) + b"\xff\xfe{}",
        b"\x80\x05\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x06system\x94\x93\x94",  # a pickle
        b"PK\x03\x04" + b"\0" * 100,  # an archive, as torch.save makes
        b"\x7fELF" + b"\0" * 100,
    ],
    ids=range(10),
)
def test_foreign_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(content)
    assert "the file is no capture" in refusal(path)


def test_headers_that_claim_more_than_there_is(whole: Path) -> None:
    content = whole.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]

    def write(name: str, **changes: Any) -> None:
        changed = json.dumps(header | {name: header[name] | changes}).encode()
        whole.write_bytes(struct.pack("<Q", len(changed)) + changed + data)

    begin, end = header["prefix"]["data_offsets"]
    for changes in (
        {"shape": [1 << 40, 576]},
        {"shape": [1 << 63, 1 << 63]},
        {"shape": [-1, 576]},
        {"shape": [0, 576]},
        {"shape": []},
        {"data_offsets": [begin, end + (1 << 40)]},
        {"data_offsets": [end, begin]},
        {"data_offsets": [0, end - begin]},  # another tensor's bytes
        {"dtype": "F64"},
        {"dtype": "I_AM_NONE"},
    ):
        write("prefix", **changes)
        assert "the file is no capture" in refusal(whole), changes


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as sparse:
        sparse.truncate(file.LARGEST_FILE + 1)
    assert "none is larger than" in refusal(path)


@pytest.mark.parametrize("what", ["missing", "a folder", "a pipe", "a device", "unreadable", "a name with a zero byte"])
def test_what_cannot_be_read(what: str, tmp_path: Path) -> None:
    path = tmp_path / "c"
    if what == "a folder":
        path.mkdir()
    elif what == "a pipe":
        os.mkfifo(path)
    elif what == "a device":
        path = Path("/dev/zero")
    elif what == "unreadable":
        if os.geteuid() == 0:
            pytest.skip("root reads everything")
        path.touch(mode=0)
    elif what == "a name with a zero byte":
        path = tmp_path / "a\0b"
    with pytest.raises(UsageError) as refused:
        file.read(path)
    assert refused.value.what == "the capture cannot be read"


def changed(whole: Path, tensors: Callable[[dict], Any] = lambda _: None, document: Any = lambda _: None) -> str:
    """What is said after a change of the tensors, or of the JSON document; both are changed in place."""
    content = load_file(whole)
    length = struct.unpack("<Q", whole.read_bytes()[:8])[0]
    said = json.loads(json.loads(whole.read_bytes()[8 : 8 + length])["__metadata__"]["kdtree"])
    tensors(content)
    document(said)
    contiguous = {name: tensor.contiguous() for name, tensor in content.items()}
    save_file(contiguous, whole, {"kdtree": json.dumps(said)})
    return refusal(whole)


TENSORS = {
    "q of another width": (lambda t: t.update(q=t["q"][..., :512]), r"q is \[5, 3, 512\], wanted \[5, 3, 576\]"),
    "q of two dimensions": (lambda t: t.update(q=t["q"].flatten(1)), r"q is \[5, 1728\]"),
    "no tokens": (lambda t: t.update(q=t["q"][:0]), r"q is \[0, 3, 576\]"),
    "too many tokens": (lambda t: t.update(q=torch.zeros(257, 1, 576).bfloat16()), r"q is \[257, 1, 576\]"),
    "too many heads": (lambda t: t.update(q=torch.zeros(1, 129, 576).bfloat16()), r"q is \[1, 129, 576\]"),
    "k of fewer tokens": (lambda t: t.update(k=t["k"][:4]), r"k is \[4, 576\], wanted \[5, 576\]"),
    "v as wide as k": (lambda t: t.update(v=t["k"].clone()), r"v is \[5, 576\], wanted \[5, 512\]"),
    "a mask of the prefix": (lambda t: t.update(visible=torch.ones(5, 45).byte()), r"visible is \[5, 45\]"),
    "a mask of floats": (lambda t: t.update(visible=torch.ones(5, 5)), "visible is float32, wanted uint8"),
    "a pool of three dimensions": (lambda t: t.update(prefix=t["prefix"][:, None]), r"prefix is \[40, 1, 576\]"),
    "a pool of bytes": (lambda t: t.update(prefix=t["prefix"].to(torch.uint8)), "prefix is uint8"),
    "float16 queries": (lambda t: t.update(q=t["q"].half()), "q is float16"),
    "two dtypes of answers": (lambda t: t.update(ours=t["ours"].float()), "ours is float32, wanted bfloat16"),
    "one answer missing": (lambda t: t.pop("stock"), "it holds no tensor 'stock'"),
    "a tensor too many": (lambda t: t.update(surprise=torch.zeros(1)), "it holds a tensor 'surprise'"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_are_none(name: str, whole: Path) -> None:
    change, said = TENSORS[name]
    line = changed(whole, change)
    assert "the file is no capture" in line
    assert re.search(said, line), line


DOCUMENTS = {
    "another schema": (lambda d: d.update(schema=2), "schema 2, this version reads 1"),
    "no schema": (lambda d: d.pop("schema"), "schema None"),
    "no call": (lambda d: d.pop("call"), "'call' of its metadata"),
    "a call as a list": (lambda d: d.update(call=[1]), "'call' of its metadata"),
    "a number missing": (lambda d: d["call"].pop("sm_scale"), "'call' of its metadata"),
    "a number too many": (lambda d: d["call"].update(q=1), "'call' of its metadata"),
    "a scale as text": (lambda d: d["call"].update(sm_scale="0.07"), "sm_scale is '0.07'"),
    "a scale beyond float32": (lambda d: d["call"].update(k_scale=1e300), "k_scale is 1e+300"),
    "a scale without an end": (lambda d: d["call"].update(v_scale=10**400), "v_scale is 1000"),
    "a distance below 0": (lambda d: d["call"].update(rel_l2=-1.0), "rel_l2 is -1.0"),
    "a distance that is no float": (lambda d: d["call"].update(rel_l2=10**400), "too large"),
    "a library's hash as a number": (lambda d: d["made"]["library"].update(sha256=0), "no plain text"),
    "a library's hash as an object": (lambda d: d["made"]["library"].update(sha256={}), "no plain text"),
    "no bound": (lambda d: d["call"].update(bound=None), "bound is None"),
    "a foreign model": (lambda d: d["call"].update(model="other"), "model is 'other'"),
    "a model as a list": (lambda d: d["call"].update(model=[]), "model is []"),
    "a layer below 0": (lambda d: d["call"].update(layer=-1), "layer is -1"),
    "a request that is not of the batch": (lambda d: d["call"].update(request=3), "request is 3, wanted 0..2"),
    "a batch too large": (lambda d: d["call"].update(batch=1025), "batch is 1025"),
    "no origin": (lambda d: d.pop("made"), "'made' of its metadata"),
    "a rank as a number": (lambda d: d["made"].update(rank=7), "no plain text"),
    "a device that steers the terminal": (lambda d: d["made"].update(device="\x1b[2J"), "no plain text"),
    "a library that does": (lambda d: d["made"]["library"].update(sha256="\x1b]0;x\7"), "no plain text"),
    "versions as a list": (lambda d: d["made"].update(versions=["1"]), "of the wrong type"),
    "a time that is none": (lambda d: d["made"].update(at="now"), "its time is none"),
    "a time far away": (lambda d: d["made"].update(at=1e300), "its time is none"),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_that_are_none(name: str, whole: Path) -> None:
    change, said = DOCUMENTS[name]
    line = changed(whole, document=change)
    assert "the file is no capture" in line
    assert said in line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is no capture"),
        ("null", "its metadata is no object"),
        ("[]", "its metadata is no object"),
        ('{"schema": NaN}', "its metadata holds NaN"),
        ("[" * 50_000, "nested too deeply"),
        (" " * (1 << 17), "its metadata is too long"),
    ],
    ids=range(6),
)
def test_metadata_that_is_none(text: str, said: str, whole: Path) -> None:
    save_file(load_file(whole), whole, {"kdtree": text})
    assert said in refusal(whole)
    save_file(load_file(whole), whole, {"another": text})
    assert "its metadata has no 'kdtree'" in refusal(whole)


@pytest.mark.parametrize("pool", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("name", ["q", "k", "v", "prefix"])
def test_inputs_that_are_not_finite(name: str, pool: torch.dtype, tmp_path: Path) -> None:
    # Where they come from lies before the attention: no kernel is to blame.
    capture = made(prefix=5000, pool=pool)
    tensor = getattr(capture, name)
    row = 4999 if name == "prefix" else 3
    tensor.view(torch.uint8)[row] = 0xFF  # NaN in all of them
    file.write(tmp_path / "c", capture, ORIGIN)
    line = refusal(tmp_path / "c")
    assert "the captured call's inputs are not finite" in line
    assert f"{name} holds NaN or Inf, first in row {row}" in line


def test_an_origin_that_says_little_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "c"
    library = dict.fromkeys(ORIGIN.library)
    file.write(path, made(), replace(ORIGIN, library=library, model_path=None, versions=dict.fromkeys(ORIGIN.versions)))
    found = file.read(path)
    assert any("sha256 ?" in line for line in text.head(text.Where(path, "CPU", ORIGIN.library), *found))


def test_replay_says_it_and_ends_with_64(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c"
    path.write_bytes(b"no capture")
    assert cli.main(["replay", str(path), "--device", "cpu"]) == 64
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert line.startswith("kdtree: the file is no capture: ")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_verdict_is_written_to_any_terminal_and_steers_none(tmp_path: Path, encoding: str) -> None:
    """1, with which a traceback ends, would say that ours was wrong."""
    path = tmp_path / "\x1b[2J.safetensors"
    file.write(path, made(), replace(ORIGIN, model_path="/models/模型"))
    done = subprocess.run(
        [sys.executable, "-m", "kdtree_verify.cli", "replay", str(path), "--device", "cpu"],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\x1b" not in done.stdout
    assert ("模型" if encoding == "utf-8" else "\\u6a21\\u578b").encode() in done.stdout


@pytest.mark.parametrize(
    "changes",
    [
        {"q": torch.zeros(3, 576, 5).bfloat16().permute(2, 0, 1)},
        {"layer": 1.5},
        {"sm_scale": math.nan},
        {"k_scale": math.inf},
        {"rel_l2": None},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_capture_is_checked_when_it_is_made(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        replace(made(), **changes)


def test_a_distance_may_be_infinite() -> None:
    assert isinstance(replace(made(), rel_l2=math.inf), Capture)
