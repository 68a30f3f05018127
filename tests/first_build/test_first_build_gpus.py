"""The steps that need a card, by what a docker that is a script answers; the kernel itself: test_first_build_run.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from first_building import gpus
from first_building.site import Site
from first_building.step import NotSo

Program = Callable[[str, str], None]
REFUSAL = "kdtree: the driver is too old: 570.1. Fix: install 580 or newer"


@pytest.fixture(params=["runtime", "cdi"])
def with_gpus(request: pytest.FixtureRequest, site: Site) -> Site:
    return replace(site, data={"toolkit": {"way": request.param}, "driver": {"gpus": [{}, {}]}})


def test_a_host_that_would_serve(program: Program, with_gpus: Site) -> None:
    program("docker", 'echo "$@"')
    said = gpus.doctor(with_gpus).detail
    cdi = with_gpus.data["toolkit"]["way"] == "cdi"
    assert ("--device=nvidia.com/gpu=all" in said, "--gpus=all" in said) == (cdi, not cdi)
    assert said.endswith("kdtree:local kdtree doctor --p2p\n")


def test_one_card_exchanges_nothing(program: Program, with_gpus: Site) -> None:
    program("docker", 'echo "$@"')
    alone = replace(with_gpus, data=with_gpus.data | {"driver": {"gpus": [{}]}})
    assert "--p2p" not in gpus.doctor(alone).detail


def test_a_host_that_would_not(program: Program, with_gpus: Site) -> None:
    program("docker", f"echo 'ok nvml'; echo '{REFUSAL}'; exit 69")
    with pytest.raises(NotSo, match=r"kdtree doctor ends with 69: .*570\.1.* Fix: ") as error:
        gpus.doctor(with_gpus)
    assert "ok nvml" in error.value.detail


def test_a_kernel_that_is_wrong_on_one_card(program: Program, with_gpus: Site) -> None:
    reports = [{"device": "cuda:0", "passed": True}, {"device": "cuda:1", "passed": False, "error": "off by 0.3"}]
    program("docker", f"echo '{json.dumps({'passed': False, 'reports': reports})}'; echo off by 0.3 >&2; exit 70")
    with pytest.raises(
        NotSo, match=r"the kernel fails its self-test: off by 0.3. Fix: leave KDTREE_VERIFY=off"
    ) as error:
        gpus.selftest(with_gpus)
    assert "cuda:0: passed\ncuda:1: off by 0.3" in error.value.detail


def test_a_docker_that_has_no_gpus(program: Program, with_gpus: Site) -> None:
    program("docker", "echo 'could not select device driver \"\" with capabilities: [[gpu]]' >&2; exit 125")
    with pytest.raises(NotSo, match="ends without a report: could not select device driver"):
        gpus.selftest(with_gpus)
    with pytest.raises(NotSo, match="kdtree doctor ends with 125: could not select device driver"):
        gpus.doctor(with_gpus)
