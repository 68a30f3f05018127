"""ci/kernel and ci/gpu-library: what they take, what is compiled again, and what is left where compiling fails."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A compiler that writes its own command line, or fails where BROKEN says so.
COMPILER = """#!/bin/sh
case $1 in --version | -dumpfullversion) echo "release, V1.2.3"; exit ;; esac
for word in "$@"; do [ "$last" != -o ] || output=$word; last=$word; done
case $output in *"${BROKEN-nothing}"*) echo "it does not compile" >&2; exit 2 ;; esac
echo "$NVCC_PREPEND_FLAGS $* $NVCC_APPEND_FLAGS" >"$output"
"""
GPU_LIBRARY_PYTHON = """#!/bin/sh
case $2 in *get_device_capability*) echo 90a ;; *) exec python3 "$@" ;; esac
"""
SEEN_LIBRARY = """\
from types import SimpleNamespace
def load(folder, device):
    description = SimpleNamespace(source_hash="{hash}", compiler="{compiler}")
    return SimpleNamespace(description=description, supports_device=lambda device: {status})
"""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


class Checkout:
    """ci/kernel, ci/gpu-library, kernel/build.sh on sources of a line, with compilers that only note what they get."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for file in ("ci/kernel", "ci/gpu-library", "ci/gpu-capability", "kernel/build.sh"):
            (folder / file).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / file, folder / file)
        for name in ("common/x.cpp", "host/x.cpp", "cuda/x.cu", "include/x.h"):
            program(folder / "kernel" / name, "//\n")
        program(folder / "kernel" / "report.py", "")
        program(folder / "kernel" / "hashes.py", "import sys; print(*sys.argv[1:])")
        program(folder / "ci" / "system-packages", "#!/bin/sh\n")
        program(folder / "ci" / "cuda-toolchain", "#!/bin/sh\necho /nowhere\n")
        program(folder / "ci" / "pins", "#!/bin/sh\necho 120a\n")
        self.compiler = program(folder / "compiler", COMPILER)
        self.lib = folder / "build" / "lib"

    def run(self, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        given = {name: value for name, value in os.environ.items() if not name.startswith(("NVCC", "KDTREE_"))}
        given |= {"CXX": str(self.compiler), "NVCC": str(self.compiler), **environment}
        return subprocess.run(
            [self.folder / "ci" / script, *arguments], env=given, capture_output=True, text=True, timeout=60
        )

    def compiled(self, *arguments: str, **environment: str) -> list[str]:
        """Runs ci/kernel, which must succeed; the libraries that it compiled."""
        done = self.run("kernel", *arguments, **environment)
        assert done.returncode == 0, done.stderr
        return [line.split("libkdtree_verify_")[1].split(".so")[0] for line in done.stderr.splitlines()]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "environment", "found"),
    [
        (["120a", "90a"], {}, "'120a' '90a'"),
        (["--help"], {}, "'--help'"),
        (["90b"], {}, "'90b'"),
        (["120a;ls"], {}, "'120a;ls'"),
        ([" "], {}, "' '"),
        ([""], {}, "''"),
        (["120a  90a"], {}, "'120a  90a'"),
        (["120a\n90a"], {}, r"$'120a\n90a'"),
        ([], {"KDTREE_ARCHS": "120a,90a"}, "KDTREE_ARCHS='120a,90a'"),
    ],
)
def test_what_is_no_architecture_is_refused(
    checkout: Checkout, arguments: list[str], environment: dict[str, str], found: str
) -> None:
    done = checkout.run("kernel", *arguments, **environment)
    assert done.returncode == 64
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"kdtree: no architectures to compile for: {found}. Fix: ")
    assert not (checkout.folder / "build").exists()


def test_architectures_are_the_argument_s_else_the_environment_s_else_the_pinned_ones(checkout: Checkout) -> None:
    library = checkout.lib / "libkdtree_verify_cuda.so"
    for archs, arguments, environment in (
        ("120a", [], {"KDTREE_ARCHS": ""}),
        ("120a 90a", [], {"KDTREE_ARCHS": "120a 90a"}),
        ("90", ["90"], {"KDTREE_ARCHS": "120a"}),
    ):
        assert "cuda" in checkout.compiled(*arguments, **environment)
        words = library.read_text().split()
        assert [word for word in words if "code=" in word] == [f"arch=compute_{a},code=sm_{a}" for a in archs.split()]


def test_it_compiles_what_changed_and_no_more(checkout: Checkout) -> None:
    assert checkout.compiled() == ["host", "cuda"]
    assert checkout.compiled() == []
    (checkout.lib / "libkdtree_verify_host.toolchain").unlink()
    assert checkout.compiled() == ["host"]
    for flags in ({"NVCC_APPEND_FLAGS": "-DX"}, {"NVCC_PREPEND_FLAGS": "-DX"}, {}):
        assert checkout.compiled(**flags) == ["cuda"]
        assert checkout.compiled(**flags) == []
        told = (checkout.lib / "libkdtree_verify_cuda.so").read_text()
        assert [name for name in flags if f"nvcc 1.2.3 with {name}" in told] == [*flags]
        assert ("_FLAGS" in told) == bool(flags)
    (checkout.folder / "kernel" / "cuda" / "x.cu").write_text("// other\n")
    assert checkout.compiled() == ["cuda"]


def test_hashes_are_recorded_for_the_pinned_architectures_and_compared_each_time(checkout: Checkout) -> None:
    assert checkout.run("kernel", "90a").stdout == "check build/lib\n"
    assert checkout.run("kernel", "--record", KDTREE_ARCHS="90a").stdout == "record build/lib\ncheck build/lib\n"


def test_what_compiled_a_library_is_noted_beside_it(checkout: Checkout) -> None:
    checkout.compiled(NVCC_CCBIN=str(checkout.compiler))
    host, cuda = ((checkout.lib / f"libkdtree_verify_{name}.toolchain").read_text() for name in ("host", "cuda"))
    lines = host.splitlines()
    assert lines[0] == "release, V1.2.3"
    assert [line.split()[0] for line in lines[1:]] == ["GNU", "glibc"]
    assert cuda == f"{host}nvcc 1.2.3\nfor sm_120a\n"


@pytest.mark.parametrize("library", ["host", "cuda"])
def test_no_old_library_is_left_where_compiling_fails(checkout: Checkout, library: str) -> None:
    checkout.compiled()
    (checkout.folder / "kernel" / "common" / "x.cpp").write_text("// other\n")
    done = checkout.run("kernel", BROKEN=f"verify_{library}.so")
    assert done.returncode != 0
    assert "it does not compile" in done.stderr
    assert not (checkout.lib / f"libkdtree_verify_{library}.so").exists()
    assert library in checkout.compiled()


@pytest.mark.parametrize(
    ("found", "environment", "takes_it"),
    [
        ({}, {}, True),
        ({"hash": "of other sources"}, {}, False),
        ({"status": 9}, {}, False),
        ({"compiler": "nvcc 1.2.3 with NVCC_APPEND_FLAGS"}, {}, False),
        ({}, {"NVCC_APPEND_FLAGS": "-DX"}, False),
    ],
)
def test_a_library_of_other_sources_or_flags_is_not_taken(
    checkout: Checkout, found: dict[str, object], environment: dict[str, str], takes_it: bool
) -> None:
    build = checkout.folder / "kernel" / "build.sh"
    current = subprocess.run(["sh", build, "hash", "cuda"], capture_output=True, text=True, check=True).stdout.strip()
    package = checkout.folder / "patch" / "src" / "kdtree_verify"
    program(package / "config.py", "class Device:\n    CUDA = 'cuda'\n")
    seen = {"hash": current, "compiler": "nvcc 1.2.3", "status": 0, **found}
    program(package / "native" / "library.py", SEEN_LIBRARY.format(**seen))
    python = program(checkout.folder / "python", GPU_LIBRARY_PYTHON)
    program(checkout.folder / "ci" / "kernel", '#!/bin/sh\necho "compiles for $*"\n')
    done = checkout.run("gpu-library", str(python), **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("" if takes_it else "compiles for 120a 90a\n")
