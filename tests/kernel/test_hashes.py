"""kernel/hashes.py: what differs from the table fails, what the table does not know is said to be unknown."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from pinning import lockfile

ROOT = Path(__file__).parents[2]
TOOLS = {
    "host": ["g++ 1", "ld 1", "libc 1"],
    "cuda": ["g++ 1", "ld 1", "libc 1", "nvcc 1", "for sm_120a"],
}
# A library of these tests is a text whose words are its cubins.
CUOBJDUMP = """#!/bin/sh
case $(cat "$3") in *broken*) echo "not an ELF file" >&2; exit 1 ;; esac
for word in $(cat "$3"); do n=$((n + 1)); echo "$word" >"x.$n.sm_120a.cubin"; done
"""


class Kernel:
    """hashes.py and build.sh on sources of a line each, with a folder of libraries."""

    def __init__(self, folder: Path) -> None:
        self.sources = folder / "kernel"
        self.lib = folder / "lib"
        self.tools = folder / "tools"
        for name in ("common/x.cpp", "host/x.cpp", "cuda/x.cu", "include/x.h", "hashes.py", "build.sh"):
            path = self.sources / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "kernel" / name, path) if path.suffix in (".py", ".sh") else path.write_text("//\n")
        self.lib.mkdir()
        self.tools.mkdir()
        (self.tools / "cuobjdump").write_text(CUOBJDUMP)
        (self.tools / "cuobjdump").chmod(0o755)
        self.table = self.sources / "hashes.toml"
        self.table.write_text(
            'toolchain = [{of = "elsewhere", tools = ["unknown"], host = "unknown", cuda = "unknown"}]\n'
            'sources = {host = "unknown", cuda = "unknown"}\ncubins = {}\n'
        )
        for library in TOOLS:
            self.compiled(library, "first second")

    def compiled(self, library: str, content: str, **changed: str) -> None:
        """Leaves a library as build.sh would; `changed` are its tools of other versions."""
        (self.lib / f"libkdtree_verify_{library}.so").write_text(content)
        tools = [f"{tool.split()[0]} {changed.get(tool.split()[0], tool.split()[1])}" for tool in TOOLS[library]]
        (self.lib / f"libkdtree_verify_{library}.toolchain").write_text("\n".join(tools) + "\n")

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PATH": f"{self.tools}:{os.environ['PATH']}"}
        command = ["python3", self.sources / "hashes.py", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    def check(self) -> subprocess.CompletedProcess[str]:
        return self.run("check", self.lib)

    def row(self, name: str) -> dict[str, str]:
        (row,) = (row for row in tomllib.loads(self.table.read_text())["toolchain"] if row["of"] == name)
        return row


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    made = Kernel(tmp_path)
    done = made.run("record", made.lib, "here")
    assert done.returncode == 0, done.stderr
    return made


def test_the_table_is_of_these_sources_and_knows_the_pinned_image() -> None:
    done = subprocess.run(["python3", ROOT / "kernel" / "hashes.py", "sources"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = tomllib.loads((ROOT / "kernel" / "hashes.toml").read_text())["toolchain"]
    assert lockfile.get(lockfile.load(), "images.cuda-devel") in [row["of"] for row in rows]


def test_what_is_recorded_is_the_same(kernel: Kernel) -> None:
    assert kernel.row("here")["host"] == hashlib.sha256(b"first second").hexdigest()
    done = kernel.check()
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("as recorded") == 3
    before = kernel.table.read_text()
    assert kernel.run("record", kernel.lib).returncode == 0
    assert kernel.table.read_text() == before, "the toolchain has its row and keeps its name"
    kernel.compiled("cuda", "first second", ld="2")
    assert kernel.run("record", kernel.lib).returncode == 0
    assert len(tomllib.loads(kernel.table.read_text())["toolchain"]) == 3, "this system has a row of its own"


def test_cubins_in_another_order_are_the_same_cubins(kernel: Kernel) -> None:
    kernel.compiled("cuda", "second first", ld="2")
    done = kernel.check()
    assert done.returncode == 0, done.stderr
    assert "cubins: as recorded" in done.stdout
    assert "libkdtree_verify_cuda.so: unknown for " in done.stdout


@pytest.mark.parametrize(
    ("library", "changed", "differing"),
    [
        ("host", {}, ["libkdtree_verify_host.so"]),
        ("cuda", {}, ["libkdtree_verify_cuda.so", "the sm_120a cubins"]),
        ("cuda", {"ld": "2"}, ["the sm_120a cubins"]),
        ("host", {"ld": "2"}, []),
        ("cuda", {"nvcc": "2"}, []),
    ],
)
def test_other_bytes_of_a_known_toolchain_fail_and_of_an_unknown_one_do_not(
    kernel: Kernel, library: str, changed: dict[str, str], differing: list[str]
) -> None:
    kernel.compiled(library, "other", **changed)
    done = kernel.check()
    assert done.returncode == (1 if differing else 0)
    lines = done.stderr.splitlines()
    assert [line.split(" is not ")[0] for line in lines] == [f"kdtree: {what}" for what in differing]
    assert all("Fix: " in line for line in lines)
    assert ("unknown for " in done.stdout) == bool(changed)


def test_changed_sources_are_not_compared_and_fail_the_lint(kernel: Kernel) -> None:
    (kernel.sources / "host" / "x.cpp").write_text("// other\n")
    kernel.compiled("host", "other")
    assert kernel.check().returncode == 0
    done = kernel.run("sources")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "the host library's have changed. Fix: ci/kernel --record" in line


def test_a_record_of_changed_sources_makes_the_other_rows_unknown(kernel: Kernel) -> None:
    kernel.compiled("cuda", "first second", nvcc="2", ld="2")
    kernel.run("record", kernel.lib, "there")
    (kernel.sources / "cuda" / "x.cu").write_text("// other\n")
    kernel.run("record", kernel.lib, "there")
    assert kernel.run("sources").returncode == 0
    assert kernel.row("here")["cuda"] == "unknown"
    assert kernel.row("here")["host"] != "unknown", "its sources are the same"
    assert kernel.row("there")["cuda"] != "unknown"
    kernel.compiled("cuda", "compiled here")
    done = kernel.check()
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("unknown for ") == 2, "the library, and the cubins of the other nvcc"


def test_a_toolchain_has_one_row_whatever_its_name(kernel: Kernel) -> None:
    kernel.run("record", kernel.lib, "there")
    assert [row["of"] for row in tomllib.loads(kernel.table.read_text())["toolchain"]] == ["elsewhere", "there"]


def test_of_two_rows_with_the_host_s_tools_the_one_that_knows_counts(kernel: Kernel) -> None:
    (kernel.sources / "host" / "x.cpp").write_text("// other\n")
    kernel.compiled("host", "compiled anew")
    kernel.compiled("cuda", "first second", nvcc="2")
    assert kernel.run("record", kernel.lib, "there").returncode == 0
    assert kernel.row("here")["host"] == "unknown"
    assert kernel.row("there")["host"] == hashlib.sha256(b"compiled anew").hexdigest()
    assert kernel.check().stdout.count("as recorded") == 3, "the row that knows"
    kernel.compiled("host", "other")
    assert kernel.check().returncode == 1


@pytest.mark.parametrize("fault", ["no library", "broken library", "no table", "no cuobjdump"])
def test_what_is_missing_ends_in_a_line(kernel: Kernel, fault: str) -> None:
    if fault == "no library":
        (kernel.lib / "libkdtree_verify_cuda.toolchain").unlink()
    elif fault == "broken library":
        kernel.compiled("cuda", "broken")
    elif fault == "no table":
        kernel.table.write_text("[sources\n")
    else:
        (kernel.tools / "cuobjdump").chmod(0)
    done = kernel.check()
    assert done.returncode == 69
    (line,) = done.stderr.splitlines()
    assert line.startswith("kdtree: ")
    assert "Fix: " in line


@pytest.mark.parametrize("arguments", [["check"], ["record"], ["record", "lib", "a", "b"]])
def test_bad_usage_is_refused(kernel: Kernel, arguments: list[str]) -> None:
    done = kernel.run(*arguments)
    assert (done.returncode, done.stdout) == (64, "")
