"""The bases' assumption list, the build on them, and what the built image says it was made by."""

from __future__ import annotations

import json
import tomllib
from typing import Any

from pinning import lockfile

from .running import run, watch
from .site import ROOT, Site
from .step import Found, NotSo

LIST = ROOT / "docker" / "base-assumptions.toml"


def assumptions(site: Site) -> Found:
    """Every assumption of docker/base-assumptions.toml in the base itself, what holds too."""
    python = tomllib.loads(LIST.read_text(encoding="utf-8"))["python"]["executable"]
    asked = run(
        *("docker", "run", "--rm", "--network=none", f"--entrypoint={python}"),
        *(f"--volume={ROOT / 'docker'}:/mnt/docker:ro", base(site, "sglang")),
        *("/mnt/docker/check_base.py", "--json", "/mnt/docker/base-assumptions.toml"),
        lockfile.get(lockfile.load(), "sglang.commit"),
        timeout=600,
    )
    try:
        told: list[dict[str, Any]] = json.loads(asked.output)
    except ValueError:
        raise NotSo("the base cannot be asked", asked.last, "adapt docker/base-assumptions.toml to this base") from None
    lines = [f"{'ok    ' if each['holds'] else 'not so'}  {each['what']}: {each['found']}" for each in told]
    wrong = [each for each in told if not each["holds"]]
    if wrong:
        what = f"{len(wrong)} of {len(told)} assumptions about the base do not hold"
        raise NotSo(what, "; ".join(each["what"] for each in wrong), wrong[0]["fix"], "\n".join(lines))
    return Found(f"{len(told)} of {len(told)} hold", "\n".join(lines))


def base(site: Site, key: str) -> str:
    """A base to run: the pulled one; in a stand-in run the one that the stand-in build is on, built where missing."""
    if not site.stand_in:
        return next(image for image in site.bases() if image.key == key).by_digest
    made = watch("ci/standin.py")
    pinned = lockfile.get(lockfile.load(), f"images.{key}")
    for line in made.output.splitlines():
        name, _, context = line.partition("=docker-image://")
        if name == pinned:
            return context
    raise NotSo("the stand-in base was not built", made.last, "what that line says")


def build(site: Site) -> Found:
    """The image, by the product's own command."""
    built = watch("ci/image", f"--tag={site.tag}", *(["--stand-in"] if site.stand_in else []))
    if built.code != 0:
        raise NotSo("the image was not built", built.last.removeprefix("kdtree: "), "what that says", built.output)
    report: dict[str, Any] = json.loads((ROOT / "build" / "image.json").read_text(encoding="utf-8"))
    added = "\n".join(f"{each['bytes']:>12,}  {each['step']}" for each in report["added"])
    summary = f"{site.tag}: {report['added_bytes']:,} bytes on a base of {report['base_bytes']:,}"
    return Found(summary, added, report)


def library(site: Site) -> Found:
    """What both libraries in the image say of themselves: sources, compiler, machine code, sha256."""
    asked = run("docker", "run", "--rm", "--network=none", site.tag, "kdtree", "version", "--json", timeout=300)
    if asked.code != 0:
        raise NotSo("kdtree version ends with an error", asked.last, "report it", asked.output + asked.error)
    told = json.loads(asked.output)
    cuda = told["libraries"]["cuda"]
    if "error" in cuda:
        raise NotSo("the CUDA library cannot be read", cuda["error"], "report it", asked.output)
    summary = f"{', '.join(cuda['archs'])} by {cuda['compiler']}, sha256 {cuda['sha256'][:12]}"
    return Found(summary, asked.output, told)
