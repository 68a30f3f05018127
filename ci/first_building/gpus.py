"""The image on this host's cards: the doctor, and the kernel against float64 on each."""

from __future__ import annotations

import json

from .running import Ran, run
from .site import Site
from .step import Found, NotSo

SECONDS = 900.0
"""The doctor's own limits are below it."""


def by_toolkit(site: Site) -> list[str]:
    """docker run's options that hand over all GPUs, as this host does it."""
    return ["--device=nvidia.com/gpu=all"] if site.data["toolkit"]["way"] == "cdi" else ["--gpus=all"]


def _kdtree(site: Site, *words: str) -> Ran:
    limits = ("--ulimit=memlock=-1", "--ulimit=stack=67108864", "--shm-size=32g")
    return run(
        *("docker", "run", "--rm", "--network=none", *by_toolkit(site), *limits, site.tag, "kdtree", *words),
        timeout=SECONDS,
    )


def doctor(site: Site) -> Found:
    """Whether a server would start here; with more than one card, whether they exchange data, too."""
    several = len(site.data["driver"]["gpus"]) > 1
    asked = _kdtree(site, "doctor", *(["--p2p"] if several else []))
    if asked.code != 0:
        failed = [line for line in asked.output.splitlines() if "Fix: " in line] or [asked.last]
        raise NotSo(f"kdtree doctor ends with {asked.code}", failed[0], "docs/doctor.md", asked.output + asked.error)
    return Found("a server would start", asked.output)


def selftest(site: Site) -> Found:
    """`kdtree selftest` on every card."""
    asked = _kdtree(site, "selftest", "--json")
    try:
        reports = json.loads(asked.output)["reports"]
    except (ValueError, KeyError):
        raise NotSo("kdtree selftest ends without a report", asked.last, "report it", asked.error) from None
    told = "\n".join(f"{each['device']}: {'passed' if each['passed'] else each.get('error')}" for each in reports)
    if asked.code != 0:
        fix = "leave KDTREE_VERIFY=off, and report it"
        raise NotSo("the kernel fails its self-test", asked.last, fix, f"{told}\n{asked.error}", {"reports": reports})
    return Found(f"passed on {len(reports)}", told, {"reports": reports})
