"""Options, variables, files and sums in the operating pages' prose are there, and right."""

from __future__ import annotations

import re
from pathlib import Path

import documents
from kdtree_verify import cli
from kdtree_verify.errors import UsageError
from probe import Probe


def refused(words: list[str]) -> str:
    """What kdtree's parser has against these words; what is named without its value or its operand is none."""
    try:
        cli._parser().parse_args(words)
    except SystemExit as ended:  # --help
        return "" if ended.code == 0 else f"exit {ended.code}"
    except UsageError as error:
        unfinished = error.found.endswith("expected one argument") or "arguments are required" in error.found
        return "" if unfinished else error.found
    return ""


def test_kdtree_commands() -> None:
    spoken = [
        code.split()[1:]
        for page in documents.operating_pages()
        for code in documents.inline_code(page)
        if code.startswith("kdtree ") and not re.search(r"[:…<]", code)
    ]
    assert ["selftest", "--json"] in spoken
    assert {" ".join(words): refused(words) for words in spoken if refused(words)} == {}
    assert "invalid choice" in refused(["selftets"])
    assert "unrecognized arguments" in refused(["status", "--wach"])


# Options in the prose that are neither SGLang's nor kdtree's: Docker's, nvidia-smi's, make's own.
OTHERS = {"--gpus", "--user", "--tmpfs", "--ulimit", "--shm-size", "--help", "--cuda-graph-max-bs", "--no-build"}


def test_options_in_the_prose_exist(probe: Probe) -> None:
    known = set(probe.options) | OTHERS
    for action in cli._parser()._subparsers._group_actions[0].choices.values():  # type: ignore[union-attr]
        known |= set(action._option_string_actions)
    found = {
        f"{page.name}: {option}"
        for page in documents.operating_pages()
        for code in documents.inline_code(page)
        for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]", code)
        if option not in known
    }
    assert found == set()


def test_variables_in_the_prose_exist() -> None:
    """KDTree's are read by its sources or by Compose; SGLang's by SGLang."""
    import sglang

    ours = "".join(
        path.read_text()
        for folder in ("patch/src", "docker", "ci")
        for path in (documents.ROOT / folder).rglob("*")
        if path.suffix in (".py", ".yaml") or path.name == "Dockerfile"
    )
    ours += (documents.ROOT / "compose.yaml").read_text()
    theirs = "".join(path.read_text() for path in (Path(sglang.__file__).parent / "srt").rglob("*.py"))
    unknown = {
        f"{page.name}: {name}"
        for page in documents.operating_pages()
        for name in re.findall(r"\b(?:KDTREE|SGLANG)_[A-Z_]+\b", page.read_text())
        if not re.search(rf"\b{name}\b", ours if name.startswith("KDTREE") else theirs + ours)
    }
    assert unknown == set()


def test_files_in_the_prose_exist() -> None:
    """Paths of this repository that are named without a link."""
    roots = ("tests/", "ci/", "docker/", "deploy/", "docs/", "patch/", "kernel/")
    named_paths = {
        (page.name, code.rstrip("/"))
        for page in documents.operating_pages()
        for code in documents.inline_code(page)
        if code.startswith(roots) and " " not in code and "examples" not in code
    }
    assert {found for found in named_paths if not (documents.ROOT / found[1]).exists()} == set()


def test_the_published_sums_are_right() -> None:
    """The arithmetic of what fits, done again."""
    page = (documents.OPERATING / "quick-start.md").read_text()
    card, mib = 97_887, 2**20
    share = {"glm": 59.9e9, "kimi": 595e9 / 8, "deepseek": 672.8e9 / 8}
    for name, shown in (("glm", "57,125"), ("kimi", "70,930"), ("deepseek", "80,204")):
        assert round(share[name] / mib) == int(shown.replace(",", ""))
        assert f"{shown} MiB" in page
    experts = 46 * (65 * 3 * 2048 * 1536 + 64 * 2048)
    total = 2 * 154_880 * 2048 + 21.76e6 * 47 + experts + 3 * 2048 * 10_240
    assert abs(total * 2 - share["glm"]) < 0.05e9
    for name, fraction, row, shown in (
        ("glm", 0.847, 54_144, "499,000"),
        ("kimi", 0.85, 70_272, "183,000"),
        ("deepseek", 0.833, 70_272, "20,000"),
        ("deepseek", 0.92, 70_272, "147,000"),
    ):
        tokens = (fraction * card * mib - share[name]) / row
        assert abs(tokens - int(shown.replace(",", ""))) < 1000
        assert shown in page
