"""The steps of the job, each of an image by its digest that is here; each raises JobError where it fails."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from .engine import EXIT_UNAVAILABLE, OUT, ROOT, Device, JobError, output, run_in, writable
from .image import with_tests

_ALONE = "--network=none"


def doctor(image: str, device: Device) -> None:
    """Whether a server of the image would start on this machine's GPUs."""
    if device is Device.CPU:
        print("gpu-job: doctor: not run: it looks at a GPU", file=sys.stderr)
        return
    if code := run_in("doctor", image, "kdtree", "doctor", options=(_ALONE, *device.options)):
        raise JobError(f"no server would start here: kdtree doctor ends with {code}. Fix: its lines, docs/doctor.md")


def gpu_test(image: str, device: Device) -> None:
    """`make gpu-test`'s command inside the image, as its own user; on a CPU its tests say why they are skipped."""
    tests = with_tests(image)
    quiet = ("-q",) if device is Device.CPU else ()  # with an argument it is pytest alone
    if code := run_in("gpu-test", tests, "ci/gpu-test", *quiet, options=(_ALONE, *device.options)):
        raise JobError(f"make gpu-test fails in {image}: exit code {code}. Fix: what its last lines say")


def bench(image: str, device: Device) -> None:
    """`make bench`'s command inside the image: build/gpu-job/bench.json. On a CPU the cells are listed."""
    tests = with_tests(image)
    (OUT / "bench.json").unlink(missing_ok=True)
    label = '{{index .Config.Labels "org.opencontainers.image.revision"}}'
    revision = output("image", "inspect", f"--format={label}", image)
    command = ["ci/bench", "table", "--results=/out/bench.json", f"--commit={revision}"]
    if device is Device.CPU:
        command.append("--dry-run")
    mount = f"--volume={writable(OUT)}:/out"
    if code := run_in("bench", tests, *command, options=(_ALONE, mount, *device.options)):
        raise JobError(f"make bench fails in {image}: exit code {code}. Fix: what its last lines say")


def compare(device: Device) -> None:
    """The results beside those that the repository records for the same card (bench/compare.py has the thresholds)."""
    results = OUT / "bench.json"
    if device is Device.CPU and not results.exists():
        print("gpu-job: compare: not run: nothing was timed", file=sys.stderr)
        return
    done = subprocess.run([ROOT / "ci" / "bench", "compare", results], check=False)
    if done.returncode != 0:
        raise JobError(f"the benchmark's comparison ends with {done.returncode}: the lines above. Fix: what they say")


def summary(path: Path) -> None:
    """Adds what the job found to a Markdown file, GitHub's summary of a job."""
    lines = ["## GPU job", ""]
    bench_json, smoke_json = OUT / "bench.json", OUT / "smoke.json"
    if smoke_json.exists():
        smoke = json.loads(smoke_json.read_text())
        lines += [f"off, validate and on with {smoke['model']}:", "", "```", smoke["table"], "```", ""]
    if bench_json.exists():
        command = [str(ROOT / "ci" / "bench"), "compare", str(bench_json)]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        lines += ["```", told.stdout.strip(), told.stderr.strip(), "```", ""]
    with path.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def nvidia_memory() -> int:
    """MiB of the smallest GPU. Raises JobError where none answers."""
    if shutil.which("nvidia-smi") is None:
        raise JobError("no NVIDIA driver: nvidia-smi is not there. Fix: ci/runner-setup", EXIT_UNAVAILABLE)
    asked = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"], capture_output=True, text=True
    )
    try:
        return min(int(line) for line in asked.stdout.split())
    except ValueError:
        said = (asked.stderr or asked.stdout).strip()
        raise JobError(f"the driver tells of no GPU: {said}. Fix: ci/runner-setup", EXIT_UNAVAILABLE) from None
