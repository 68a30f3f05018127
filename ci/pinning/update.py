"""Moves the pin to a newer nightly: looks for one, tries it, and writes the change down as one diff.

Nothing of the checkout is changed: what is written is the diff, in one step, when everything has passed.
"""

from __future__ import annotations

import os
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from . import change, layers, nightlies, patch_tests, releases, upstream, verify
from .files import replace
from .lockfile import ROOT, PinsError
from .nightlies import Nightly

DIFF = ROOT / "build" / "pins-update.diff"


class Refused(PinsError):
    """The newer SGLang is not one that the patch can be used with."""

    code = os.EX_CONFIG


def choices(pins: dict[str, Any]) -> list[Nightly]:
    """The newer nightlies that the registry has, newest first. Raises RegistryError."""
    image = pins["images"]["sglang"]
    return nightlies.newer(upstream.client(image["name"]).tags(), image["tag"])


def update(pins: dict[str, Any], tag: str | None, *, tests: bool) -> Path | None:
    """Writes the diff to the nightly of that tag, the newest by default; its path, None where nothing is newer.

    Raises:
        RegistryError: The registry does not answer, or with something else than what was asked for.
        PinsError: No such newer nightly; the contract or a test does not hold (Refused).
    """
    image = pins["images"]["sglang"]
    found = choices(pins)
    if tag is not None:
        found = [nightly for nightly in found if nightly.tag == tag]
        if not found:
            raise PinsError(f"{tag} is no newer nightly that the registry has. Fix: one of `ci/pins newer`")
    if not found:
        return None
    nightly, repository = found[0], upstream.client(image["name"])
    candidate = upstream.find_tag(repository, nightly.tag, image["platform"])
    verify.check_commit(candidate.labels, nightly.commit)
    with tempfile.TemporaryDirectory(prefix="kdtree-pins-") as scratch:
        sources = Path(scratch) / "sources"
        assumed = tomllib.loads((ROOT / "docker" / "base-assumptions.toml").read_text(encoding="utf-8"))
        layers.unpack(repository, candidate, assumed["sglang"]["source"], sources)
        results = _try(sources, nightly, tests)
        about = [
            f"SGLang: {nightly.tag}, after {image['tag']}",
            "",
            f"Image: {image['name']}@{candidate.digest}",
            f"{image['platform']}: {candidate.manifest.digest}",
            *results,
        ]
        text = change.diff(pins, nightly, candidate, about, Path(scratch) / "checkout")
    replace(DIFF, text)
    return DIFF


def _try(sources: Path, nightly: Nightly, tests: bool) -> list[str]:
    """What the contract check and the tests say of the image's own SGLang. Raises Refused."""
    verdict = releases.check(sources / "sglang", nightly.tag)
    if verdict.reason:
        raise Refused(f"{nightly.tag}: {verdict.reason}. Fix: adapt the patch (patch/README.md), or an older nightly")
    results = ["Contract (signatures, the attention call, what the decline list reads, the KV pool): as expected"]
    if not tests:
        return [*results, "Tests of the patch on its sources: not run (--no-tests)"]
    patch_tests.prepare()
    passed, said = patch_tests.run(sources)
    last = said.strip().splitlines()[-1] if said.strip() else "pytest said nothing"
    if not passed:
        log = ROOT / "build" / "pins-update.log"
        replace(log, said)
        raise Refused(f"{nightly.tag}: the patch's tests do not pass: {last}. Fix: {log.relative_to(ROOT)} says why")
    return [*results, f"Tests of the patch on its sources: {last}"]
