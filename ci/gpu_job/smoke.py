"""The image serving a small public MLA model, off, validate and on: same answers, trees verified, the kernel ran."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from demo import report, verdict
from demo.modes import TREE, make_model, serve_all
from demo.progress import Progress
from demo.stack import ON_CPU, ON_GPUS, Stack, StackError
from first_building.smoke import HEALTHY_SECONDS, ON_A_GPU
from pinning import lockfile

from .engine import OUT, ROOT, Device, JobError, run_in, writable
from .steps import nvidia_memory

MODELS_VARIABLE = "KDTREE_JOB_MODELS"
"""Where models are kept from one job to the next; ci/runner-setup sets it."""
_FETCH = """
import sys
from huggingface_hub import snapshot_download
snapshot_download(sys.argv[1], revision=sys.argv[2], local_dir=sys.argv[3])
"""


def smoke(image: str, device: Device) -> None:
    """Serves with it in each mode. Writes build/gpu-job/smoke.json. Raises JobError."""
    models = Path(os.environ.get(MODELS_VARIABLE) or OUT / "models").absolute()
    try:
        model = _model(image, device, models)
        files, arguments = (ON_GPUS, ON_A_GPU) if device is Device.GPUS else (ON_CPU, f"{TREE} --sleep-on-idle")
        runs = serve_all(Stack(ROOT, image, models, model, arguments, files, HEALTHY_SECONDS), Progress("gpu-job"))
    except (StackError, OSError) as error:
        raise JobError(f"the server does not do as it should: {error}. Fix: its log's end, above") from error
    table = report.table(runs)
    print(f"{model}\n{table}", file=sys.stderr)
    OUT.mkdir(parents=True, exist_ok=True)
    found = {"image": image, "device": device, "model": model, "table": table}
    (OUT / "smoke.json").write_text(json.dumps(found, indent=1) + "\n")
    if wrong := verdict.failures(runs):
        raise JobError(f"the modes do not answer as they must: {'; '.join(wrong)}. Fix: do not promote {image}")


def _model(image: str, device: Device, models: Path) -> str:
    """The model's folder in `models`: the pinned public one, or one of random weights where no GPU could hold that."""
    pins = lockfile.load()
    needed = int(lockfile.get(pins, "smoke-model.gpu-memory-gib"))
    if device is Device.CPU or nvidia_memory() < needed << 10:
        print(f"gpu-job: smoke: random weights: the public model wants a GPU of {needed} GiB", file=sys.stderr)
        return make_model(image, models, wide=device is Device.GPUS)
    repository, revision = (lockfile.get(pins, f"smoke-model.{key}") for key in ("name", "revision"))
    name = f"{repository.replace('/', '--')}-{revision[:12]}"
    if not (models / name).exists():
        # As root of nothing but this folder: what it downloads is put in place when all of it is there.
        mount = f"--volume={writable(models)}:/models"
        who = f"--user={os.getuid()}:{os.getgid()}"
        fetch = ("python3", "-c", _FETCH, repository, revision, f"/models/{name}.part")
        if run_in("model", image, *fetch, options=(mount, who)):
            raise JobError(f"{repository} at {revision[:12]} was not fetched: the lines above. Fix: the network")
        (models / f"{name}.part").rename(models / name)
    return name
