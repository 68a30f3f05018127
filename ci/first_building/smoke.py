"""A small random-weight MLA model served in all modes: trees, answers, `kdtree status` and `report`."""

from __future__ import annotations

from demo import report, verdict
from demo.modes import TREE, make_model, serve_all
from demo.progress import Progress
from demo.stack import ON_CPU, ON_GPUS, ON_GPUS_BY_CDI, Stack, StackError

from .site import ROOT, Site
from .step import Found, NotSo

ON_A_GPU = f"{TREE} --context-length 4096 --max-total-tokens 65536 --mem-fraction-static 0.6 --max-running-requests 8"
HEALTHY_SECONDS = 900.0
"""The first start compiles what the base's caches lack, and captures CUDA graphs."""


def smoke(site: Site) -> Found:
    """All three modes under Compose, as a user starts them."""
    models = ROOT / "build" / "demo" / "models"
    files: tuple[str, ...]
    if site.stand_in:
        files, arguments = ON_CPU, f"{TREE} --sleep-on-idle"
    elif site.data["toolkit"]["way"] == "cdi":
        files, arguments = ON_GPUS_BY_CDI, ON_A_GPU
    else:
        files, arguments = ON_GPUS, ON_A_GPU
    try:
        model = make_model(site.tag, models, wide=not site.stand_in)
        stack = Stack(ROOT, site.tag, models, model, arguments, files, HEALTHY_SECONDS)
        runs = serve_all(stack, Progress("smoke"))
    except (StackError, OSError) as error:
        raise NotSo("the server does not do as it should", str(error), "its log's end, above") from None
    detail = f"{report.table(runs)}\n\nkdtree status, on:\n\n{runs['on'].status}\n{runs['validate'].report}"
    data = {"modes": {mode: vars(run.figures) for mode, run in runs.items()}}
    if wrong := verdict.failures(runs):
        raise NotSo("the modes do not answer as they must", "; ".join(wrong), "report it", detail, data)
    return Found("off, validate and on answered as they must", detail, data)
