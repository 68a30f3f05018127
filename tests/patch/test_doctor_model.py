"""What the doctor knows of a server without SGLang: its command line, and the size of its weights by real files."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from kdtree_verify.arguments import parse
from kdtree_verify.doctor import arguments
from kdtree_verify.doctor.arguments import Plan, read
from kdtree_verify.doctor.model import INDEX, weights

MIB = 1 << 20


def file(path: Path, size: int) -> Path:
    """A file of that size; it takes no space."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as created:
        created.truncate(size)
    return path


def indexed(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).write_text(json.dumps({"weight_map": {f"layer{i}": name for i, name in enumerate(names)}}))


def size(model: object, **env: str) -> int | None:
    return weights(Plan(model=str(model)), env).size


def reason(model: object, **env: str) -> str:
    found = weights(Plan(model=str(model)), env)
    assert found.size is None
    return found.reason


def test_a_folder_s_index_says_what_is_loaded(tmp_path: Path) -> None:
    file(tmp_path / "a.safetensors", 3 * MIB)
    file(tmp_path / "b.safetensors", 2 * MIB)
    file(tmp_path / "consolidated.safetensors", 99 * MIB)
    assert size(tmp_path) == 104 * MIB
    indexed(tmp_path, "a.safetensors", "b.safetensors", "a.safetensors")
    assert size(tmp_path) == 5 * MIB


def test_one_kind_of_file_is_loaded(tmp_path: Path) -> None:
    file(tmp_path / "pytorch_model.bin", 7 * MIB)
    assert size(tmp_path) == 7 * MIB
    file(tmp_path / "model.safetensors", 3 * MIB)
    assert size(tmp_path) == 3 * MIB
    assert size(file(tmp_path / "one.gguf", 4 * MIB)) == 4 * MIB


def test_what_is_not_whole_is_unknown(tmp_path: Path) -> None:
    assert "holds no weights" in reason(tmp_path)
    file(tmp_path / "a.safetensors", MIB)
    indexed(tmp_path, "a.safetensors", "b.safetensors", "c.safetensors")
    assert reason(tmp_path) == f"{tmp_path}/b.safetensors is not there, nor 1 more"
    for text in ("{", "[]", "{}", '{"weight_map": 1}', "[" * 200_000):
        (tmp_path / INDEX).write_text(text)
        assert "is no index" in reason(tmp_path)
    assert "no folder here" in reason(tmp_path / "none")
    assert "no --model-path" in weights(Plan(), {}).reason


def test_the_hugging_face_cache(tmp_path: Path) -> None:
    hub = tmp_path / "hub" / "models--org--name"
    blob = file(hub / "blobs" / "0123", 6 * MIB)
    snapshot = hub / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(blob)
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("abc")
    for env in ({"HF_HUB_CACHE": str(tmp_path / "hub")}, {"HF_HOME": str(tmp_path)}):
        assert size("org/name", **env) == 6 * MIB
    (tmp_path / "huggingface").symlink_to(tmp_path)
    assert size("org/name", XDG_CACHE_HOME=str(tmp_path)) == 6 * MIB
    assert weights(Plan(model="org/name", download_dir=str(tmp_path / "hub"), revision="abc"), {}).size == 6 * MIB
    assert "will be downloaded" in weights(Plan(model="org/name", revision="def"), {"HF_HOME": str(tmp_path)}).reason
    assert "will be downloaded" in reason("org/other", HF_HOME=str(tmp_path))
    blob.unlink()  # a download that was broken off
    assert "is not there" in reason("org/name", HF_HOME=str(tmp_path))


@pytest.mark.parametrize(
    "line",
    [
        "--tp 2",
        "--tensor-parallel-size=8 --nnodes 2",
        "--tp-size 4 --pp-size 2 --dp-size 3",
        "--tp 8 --dp 4 --enable-dp-attention --mem-fraction-static 0.8 --trust-remote-code --port 1",
        "--tp 4 --pp-size 2 --nnodes 2",
    ],
)
def test_ranks_are_those_of_sglang_s_own_reading(line: str) -> None:
    given = ["--model-path", "m", *line.split()]
    theirs = parse(given)
    assert theirs is not None
    assert read(given).ranks == theirs.expected_ranks


def test_a_configuration_file_is_read_as_sglang_reads_it(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("model-path: m\ntp-size: 4\npp-size: 2\ntrust-remote-code: true\n")
    for more in ([], ["--tp-size", "8"]):
        given = ["--config", str(config), *more]
        theirs, ours = parse(given), read(given)
        assert theirs is not None
        assert (ours.known, ours.model, ours.ranks) == (True, "m", theirs.expected_ranks)
    for text in ("[]", "a: [", "tp-size: two", "", "a: " + "[" * 20_000):
        config.write_text(text)
        assert not read(["--config", str(config)]).known
    assert not read(["--config", str(tmp_path / "none")]).known
    assert not read(["--config", "/dev/zero"]).known


def test_sglang_has_every_option_that_is_read() -> None:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(add_help=False)
    ServerArgs.add_cli_args(parser)
    theirs = {name for action in parser._actions for name in action.option_strings}
    ours = {name for action in arguments._parser()._actions for name in action.option_strings}
    assert ours - theirs <= {"--tp", "--dp"}  # which SGLang reads as beginnings
    for short in ("--tp", "--dp"):
        assert parser.parse_known_args(["--model-path", "m", short, "2"])[0].__dict__[f"{short[2:]}_size"] == 2


def test_a_command_line_that_tells_nothing() -> None:
    assert read([]) == Plan()
    for line in ("--tp two", "--tp 0", "--base-gpu-id -1", "--tp"):
        plan = read(line.split())
        assert (plan.given, plan.known, plan.ranks) == (True, False, 1)
    assert read(["--device", "cpu"]).on_cpu
    assert read(["--tp", "two", "--device=cpu"]).on_cpu


def test_weights_that_take_less_than_on_disk() -> None:
    assert read(["--model-path", "m"]).as_stored
    for line in ("--cpu-offload-gb 10", "--quantization fp8", "--load-format dummy"):
        assert not read(["--model-path", "m", *line.split()]).as_stored
