"""Child processes of the doctor: real ones that hang, crash, and talk to each other."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from kdtree_verify.config import Mode
from kdtree_verify.doctor import host, peers, peers_child, process, run
from kdtree_verify.doctor.arguments import Plan
from kdtree_verify.doctor.finding import Finding, Status
from kdtree_verify.errors import LockedMemoryError, PeersError, SharedMemoryError

PYTHON = sys.executable
MIB = 1 << 20


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def test_what_hangs_is_ended_with_all_that_it_started() -> None:
    script = (
        "import os, signal, subprocess, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "child = subprocess.Popen(['sleep', '60']); print(os.getpid(), child.pid, flush=True); time.sleep(60)"
    )
    began = time.monotonic()
    ended = process.run([PYTHON, "-c", script], 3.0)
    assert time.monotonic() - began < 9.0
    assert ended.code is None
    assert ended.how(3.0) == "no end within 3 s"
    pids = [int(pid) for pid in ended.output.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 5
    while not all(map(gone, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_how_it_ended() -> None:
    assert process.run(["true"], 9.0) == process.Ended(0, "", "")
    assert process.run(["sh", "-c", "echo out; echo a >&2; echo b >&2; exit 3"], 9.0).how(9.0) == "exit code 3: b"
    ended = process.run([PYTHON, "-c", "import os; os.abort()"], 9.0)
    assert ended.code == -signal.SIGABRT
    assert ended.how(9.0).startswith("killed by SIGABRT")


def test_much_output_is_no_hang() -> None:
    assert len(process.run([PYTHON, "-c", "print('x' * 10_000_000)"], 20.0).output) == 10_000_001


def test_one_that_fails_ends_the_wait_for_the_others() -> None:
    began = time.monotonic()
    ended = process.run_all([["sleep", "60"], ["false"]], 30.0)
    assert time.monotonic() - began < 5.0
    assert [each.code for each in ended] == [None, 1]


def test_nothing_is_left_open() -> None:
    # In a process of its own: other tests' threads open files, too.
    code = (
        "import os; from kdtree_verify.doctor import process\n"
        "before = os.listdir('/proc/self/fd')\n"
        "for _ in range(3): process.run(['true'], 9.0)\n"
        "try: process.run(['/nowhere'], 9.0)\n"
        "except FileNotFoundError: print(os.listdir('/proc/self/fd') == before)"
    )
    assert subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"


def test_ranks_add_up() -> None:
    copied, added = peers.check(2, "gloo")
    assert copied.text == "copies between 2 GPUs arrive as sent; 0 of 2 pairs directly (P2P)"
    assert added.text.startswith("gloo adds up over 2 ranks: 16 MiB in ")


def test_a_rank_that_waits_for_another_is_ended(tmp_path: Path) -> None:
    rank = ["reduce", "gloo", "0", "2", str(tmp_path / "store")]
    (ended,) = process.run_all([[PYTHON, "-m", "kdtree_verify.doctor.peers_child", *rank]], 15.0)
    assert ended.code is None
    assert (tmp_path / "store").exists()  # it had come as far as waiting


def test_what_takes_too_long_or_fails_is_refused() -> None:
    began = time.monotonic()
    with pytest.raises(PeersError, match=r"no end within 0\.2 s") as refused:
        peers.check(2, "gloo", limit=0.2)
    assert time.monotonic() - began < 5.0
    assert refused.value.code == 74
    with pytest.raises(PeersError, match=r"does not add up over 2 GPUs: rank [01]: exit code 1: .*no-such-backend"):
        peers.check(2, "no-such-backend")


def test_what_cannot_be_asked_is_a_failure_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(_: run.Subject) -> list[Finding]:
        return peers.check(1, "gloo")

    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")  # of a container that is read-only throughout
    about = run.subject(Mode.ON, Plan(), {})
    (found,) = run.examine(about, [run.Check("p2p", ask)])
    assert (found.status, found.code) == (Status.FAILED, 64)
    assert "the check cannot be made: [Errno 2]" in found.line()


def test_what_arrives_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def damaged(tensor: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        arrived = tensor.clone()
        arrived[-1] += 1
        return arrived

    monkeypatch.setattr(torch.Tensor, "to", damaged)
    with pytest.raises(SystemExit, match="what cpu sent is not what cpu has"):
        peers_child.copies("cpu", 2)


@pytest.mark.parametrize(("ranks", "mib"), [(1, 0), (2, 98), (4, 171), (8, 318)])
def test_the_floor_of_shared_memory_is_the_documented_one(ranks: int, mib: int) -> None:
    assert round(host.needed(ranks, {}) / MIB) == mib
    assert host.needed(8, {"NCCL_SHM_DISABLE": "1"}) == 24 * MIB
    text = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    assert "98 MiB for 2, 171 for 4, 318 for 8" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_small_shared_memory(tmp_path: Path) -> None:
    def mounted(size: int) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", tmp_path], check=True)

    try:
        mounted(64 * MIB)
    except subprocess.CalledProcessError:
        pytest.skip("this root may not mount")
    try:
        with pytest.raises(SharedMemoryError, match="needs 98 MiB: 64 MiB free of 64 MiB") as refused:
            host.check_shm(2, {}, tmp_path)
        assert refused.value.code == 72
        assert host.check_shm(1, {}, tmp_path).status is Status.OK
        assert host.check_shm(2, {"NCCL_SHM_DISABLE": "1"}, tmp_path).status is Status.WARNING
        subprocess.run(["mount", "-o", f"remount,size={128 * MIB}", tmp_path], check=True)
        assert host.check_shm(2, {}, tmp_path).status is Status.WARNING
        (tmp_path / "left").write_bytes(bytes(64 * MIB))  # by somebody else
        with pytest.raises(SharedMemoryError, match="64 MiB free of 128 MiB"):
            host.check_shm(2, {}, tmp_path)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_no_shared_memory_at_all(tmp_path: Path) -> None:
    assert host.check_shm(1, {}, tmp_path / "none").status is Status.OK
    with pytest.raises(SharedMemoryError, match="No such file"):
        host.check_shm(2, {}, tmp_path / "none")


def test_a_limit_of_locked_memory(tmp_path: Path) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))\n"
        "from kdtree_verify.doctor import host; from kdtree_verify.errors import KdtreeError\n"
        "try: print(host.check_memlock(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]).line())\n"
        "except KdtreeError as error: print(error); sys.exit(error.code)"
    )

    def asked(ranks: int, nodes: int) -> subprocess.CompletedProcess[str]:
        command = [PYTHON, "-c", code, str(ranks), str(nodes), f"{tmp_path}/uverbs*"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert asked(1, 1).stdout == "kdtree: memlock: 64 KiB; one rank needs no more\n"
    assert asked(2, 1).stdout.startswith("kdtree: warning: memlock is limited")
    assert asked(2, 2).returncode == 0
    (tmp_path / "uverbs0").touch()
    refused = asked(2, 2)
    assert refused.returncode == LockedMemoryError.code == 75
    assert "64 KiB. Fix: run with --ulimit memlock=-1" in refused.stdout


def test_no_limit_of_locked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)  # raising it takes a capability
    assert host.check_memlock(8, 2, "/dev/null").status is Status.OK
