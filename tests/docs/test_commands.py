"""What the operating pages tell to type and to set is what SGLang, KDTree, Compose and Docker take.

A fenced block's info string says what it is, and what it must hold to:

    dotenv [name=N] [cards=C]   a .env, or a part of one: Compose and SGLang take it; KDTree serves its tree on C ranks
    sh [as=N]                   commands; its `docker run` is the same server as the .env of that name
    yaml                        an override of compose.yaml
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import docker_run
import documents
from documents import Block
from kdtree_verify import cli
from kdtree_verify.config import Device
from kdtree_verify.native import library
from probe import Probe
from served import MOST_DRAFTS, complaints

Resolve = Callable[..., dict[str, Any]]

BLOCKS = [block for page in documents.operating_pages() for block in documents.blocks(page)]
SETTINGS = [block for block in BLOCKS if block.kind == "dotenv"]
SHELL = [block for block in BLOCKS if block.kind == "sh"]
# Programs of the host that the pages use, beside docker, kdtree and python3. Their arguments are not looked at.
HOST = {"nvidia-smi", "curl", "cp", "sed", "git", "grep", "umask", "openssl", "pip"}
# What programs print or others take, by the names of blocks: held to what they do by tests of their own.
PRINTED = {"probes", "replay", "report", "start"}
PROFILES = {
    name: service.get("profiles", [])
    for name, service in yaml.safe_load((documents.ROOT / "compose.yaml").read_text())["services"].items()
}
COMPOSE = {"build", "up", "down", "logs", "exec", "run", "ps", "cp"}


def whole(block: Block) -> str:
    """The block's settings, with a model where it names none."""
    return block.text if "KDTREE_MODEL=" in block.text else f"KDTREE_MODEL=m\n{block.text}"


def server(resolve: Resolve, block: Block) -> dict[str, Any]:
    return resolve(whole(block))["services"]["server"]


def shell_commands(*program: str) -> list[tuple[Block, list[str]]]:
    """The pages' commands that begin with these words, without them."""
    found = ((block, words) for block in SHELL for words in documents.commands(block))
    return [(block, words[len(program) :]) for block, words in found if tuple(words[: len(program)]) == program]


def server_arguments() -> list[tuple[Block, list[str]]]:
    """SGLang's arguments in shell commands: of `docker run IMAGE` and of Python's -m."""
    found = []
    for block, words in shell_commands("docker", "run"):
        command = docker_run.parse(words).command
        found.append((block, command[3:] if command[1:2] == ["-m"] else command))
    return [(block, words) for block, words in found if words and words[0].startswith("-")]


# ---- every block


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    known = [block for block in BLOCKS if block.kind in ("dotenv", "sh", "yaml") or block.value("name") in PRINTED]
    assert {f"{block}: {block.kind}" for block in BLOCKS} == {f"{block}: {block.kind}" for block in known}
    assert {block.page for block in SETTINGS} >= {documents.OPERATING / "quick-start.md"}


def test_every_command_is_of_a_program_that_is_checked_or_known() -> None:
    unknown = {
        f"{block}: {words[0]}"
        for block in SHELL
        for words in documents.commands(block)
        if words[0] not in {"docker", "kdtree", "python3"} | HOST
    }
    assert unknown == set()


# ---- settings


@pytest.mark.parametrize("block", SETTINGS, ids=str)
def test_settings_are_documented_and_reach_the_server(resolve: Resolve, block: Block) -> None:
    example = (documents.ROOT / ".env.example").read_text()
    names = set(re.findall(r"^([A-Z_]+)=", block.text, re.M))
    assert names <= set(re.findall(r"^#?([A-Z_]+)=", example, re.M))
    found = server(resolve, block)
    given = re.search(r'^KDTREE_SERVER_ARGS="([^"]*)"', block.text, re.M)
    words = given[1].split() if given else []
    assert found["command"][len(found["command"]) - len(words) :] == words
    assert found["environment"]["KDTREE_VERIFY"] in ("off", "validate", "on")


def test_the_built_library_takes_as_many_draft_tokens() -> None:
    folder = documents.ROOT / "build" / "lib"
    if not (folder / library.FILE_NAMES[Device.CPU]).is_file():
        pytest.skip("ci/kernel has not built the host library")
    assert library.load(folder, Device.CPU).description.max_draft_tokens == MOST_DRAFTS


def test_sglang_and_kdtree_take_the_settings(probe: Probe, resolve: Resolve) -> None:
    answers = probe.ask([server(resolve, block)["command"] for block in SETTINGS])
    found = {str(block): complaints(block, told) for block, told in zip(SETTINGS, answers, strict=True)}
    assert {where: what for where, what in found.items() if what} == {}


def test_sglang_takes_the_arguments_of_shell_commands(probe: Probe) -> None:
    commands = server_arguments()
    answers = probe.ask([words for _, words in commands])
    found = {str(block): told["error"] for (block, _), told in zip(commands, answers, strict=True) if "error" in told}
    assert found == {}


WRONG = {
    "--no-such-option": "unrecognized arguments",
    "--speculative-algo NGRAM": "unrecognized arguments",
    "--attention-backend flashinfer": "verify does not run on Triton",
    "--use-ray": "use_ray",
    "--dcp-size 2": "DCP and trees",
    "--kv-cache-dtype nvfp4": "is not the kernel's",
    "--tp-size 3": "3 ranks on 8 cards",
    "--speculative-algorithm NGRAM --page-size 64": "NGRAM trees with pages",
    "--speculative-algorithm NGRAM --speculative-num-draft-tokens 512": "512 draft tokens",
    "--speculative-algorithm NEXTN --speculative-eagle-topk 4": "all or none",
    "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 4": "a chain, no tree",
    "--speculative-algorithm EAGLE --speculative-num-steps 1 --speculative-eagle-topk 4 "
    "--speculative-num-draft-tokens 8": "fewer candidates",
}


def test_wrong_settings_are_found(probe: Probe) -> None:
    base = ["--model-path", "moonshotai/Kimi-K2.6", "--attention-backend", "triton", "--tp-size", "8"]
    block = Block(Path("page.md"), 1, ("dotenv", "cards=8"), "")
    answers = probe.ask([base, *([*base, *extra.split()] for extra in WRONG)])
    assert complaints(block, answers[0]) == []
    for (extra, wanted), told in zip(WRONG.items(), answers[1:], strict=True):
        assert any(wanted in complaint for complaint in complaints(block, told)), (extra, complaints(block, told))


# ---- docker and Compose


def named(name: str) -> Block:
    (found,) = (block for block in SETTINGS if block.value("name") == name)
    return found


@pytest.mark.parametrize("block", [block for block in SHELL if block.value("as")], ids=str)
def test_docker_run_is_the_same_server(resolve: Resolve, block: Block) -> None:
    (words,) = documents.commands(block)
    run = docker_run.parse(words[2:])
    project = resolve(whole(named(block.value("as") or "")))
    wanted = project["services"]["server"]
    assert run.image == wanted["image"]
    assert run.command == wanted["command"]
    assert run.env == [f"KDTREE_VERIFY={wanted['environment']['KDTREE_VERIFY']}"]
    assert run.gpus == "all"
    assert int(run.shm_size.removesuffix("g")) << 30 == int(wanted["shm_size"])
    assert set(run.ulimit) == {f"{name}={value}" for name, value in wanted["ulimits"].items()}
    (port,) = wanted["ports"]
    assert run.publish == [f"{port['host_ip']}:{port['published']}:{port['target']}"]
    volumes = {project["volumes"][v["source"]]["name"] + ":" + v["target"] for v in wanted["volumes"]}
    assert set(run.volume) == volumes
    assert (run.read_only, run.tmpfs) == (wanted["read_only"], wanted["tmpfs"])
    assert (run.cap_drop, run.security_opt) == (wanted["cap_drop"], wanted["security_opt"])
    assert (run.restart, f"{run.stop_timeout}s") == (wanted["restart"], _seconds(wanted["stop_grace_period"]))


def _seconds(duration: str) -> str:
    minutes, _, rest = duration.rpartition("m")
    return f"{int(minutes or 0) * 60 + int(rest.removesuffix('s'))}s"


def test_docker_knows_the_options() -> None:
    client = shutil.which("docker") or shutil.which(str(documents.ROOT / "build" / "engine" / "bin" / "docker"))
    if client is None:
        pytest.skip("no docker client is installed or was brought by ci/engine")
    known = subprocess.run([client, "run", "--help"], capture_output=True, text=True, timeout=60).stdout
    options = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", known))
    for block, words in shell_commands("docker", "run"):
        run = docker_run.parse(words)
        given = words[: words.index(run.image)]
        assert {word for word in given if word.startswith("-")} - options - {"-1"} == set(), str(block)


@pytest.mark.parametrize(("block", "words"), shell_commands("docker", "compose"), ids=str)
def test_compose_commands(resolve: Resolve, block: Block, words: list[str]) -> None:
    if words[0] == "--profile":
        assert words[1] in {name for profiles in PROFILES.values() for name in profiles}
        words = words[2:]
    verb, *rest = words
    assert verb in COMPOSE
    if verb in ("exec", "run"):
        operands = [word for word in rest if word != "--rm"]
        assert operands[0] in resolve("KDTREE_MODEL=m")["services"]
        assert operands[1] == "kdtree"
        cli._parser().parse_args(operands[2:])


def test_volumes_that_are_removed_are_composes(resolve: Resolve) -> None:
    volumes = {volume["name"] for volume in resolve("KDTREE_MODEL=m")["volumes"].values()}
    removed = {name for _, words in shell_commands("docker", "volume", "rm") for name in words}
    assert removed
    assert removed <= volumes


@pytest.mark.parametrize(("block", "words"), shell_commands("sed"), ids=str)
def test_sed_sets_what_it_says(block: Block, words: list[str], tmp_path: Path) -> None:
    """On a copy of .env.example, as it is and set to something else before."""
    assert words[0] == "-i"
    assert words[2] == ".env"
    setting = words[1].rpartition("=.*/")[2].rstrip("/")
    settings = tmp_path / ".env"
    settings.write_text((documents.ROOT / ".env.example").read_text())
    for _ in range(2):
        subprocess.run(["sed", *words], cwd=tmp_path, check=True)
        assert settings.read_text().splitlines().count(setting) == 1
        settings.write_text(settings.read_text().replace(setting, f"{setting}-otherwise"))


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind == "yaml"], ids=str)
def test_overrides(resolve: Resolve, block: Block) -> None:
    plain, changed = resolve("KDTREE_MODEL=m"), resolve("KDTREE_MODEL=m", block.text)
    assert changed != plain
    kept = changed["services"]["server"]
    assert kept["environment"].items() >= plain["services"]["server"]["environment"].items()
