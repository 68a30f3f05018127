"""The checks in their order, and what each needs of those before it."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from .. import config
from ..config import Device, Mode
from ..errors import KdtreeError, UsageError
from . import cuda, folders, gpus, host, model, nvml, peers, selection, software
from .arguments import Plan
from .finding import Finding, Status, failed, ok, skipped, warning

_ON_CPU = "KDTREE_DEVICE=cpu"


@dataclass
class Subject:
    """What is examined, and what the checks have learned of it.

    Attributes:
        mode: The mode for which it has to hold.
        device: What the server computes on.
        plan: What of the server's arguments is known.
        env: The environment.
        allowed: Compute capabilities that the kernel may meet.
        survey: What NVML told, once it has.
        devices: What CUDA listed, once it has started.
    """

    mode: Mode
    device: Device
    plan: Plan
    env: Mapping[str, str]
    allowed: tuple[str, ...]
    survey: nvml.Survey | None = None
    devices: tuple[cuda.Device, ...] = ()

    @property
    def ranks(self) -> int:
        """Ranks on this host: as the arguments say, else one on each device."""
        return self.plan.ranks if self.plan.known else max(len(self.devices), 1)


@dataclass(frozen=True)
class Check:
    """One concern.

    Attributes:
        name: For people and for JSON.
        ask: Its findings; raises KdtreeError for a failure.
        needs: Checks without which it cannot be asked.
        gpu: Whether it is asked only where the server computes on GPUs.
        kernel: Whether it is asked only for validate and on: what the kernel alone needs.
        binding: Whether its failure stops a server with KDTREE_VERIFY=off, too.
    """

    name: str
    ask: Callable[[Subject], Finding | list[Finding]]
    needs: tuple[str, ...] = ()
    gpu: bool = True
    kernel: bool = False
    binding: bool = False


def subject(mode: Mode, plan: Plan, env: Mapping[str, str]) -> Subject:
    """Raises UsageError where a variable holds what it may not."""
    return Subject(mode, config.from_environment(env).device, plan, env, config.allowed_capabilities(env))


def examine(about: Subject, checks: Iterable[Check]) -> Iterator[Finding]:
    """Asks the checks in their order. One that needs what has failed or was skipped is skipped.

    With KDTREE_VERIFY=off a failure is a warning, unless the check is binding: off is the way back, and nothing of the
    kernel's needs may stand in it.
    """
    missing: dict[str, str] = {}
    for check in checks:
        began = time.monotonic()
        findings = _ask(check, about, missing)
        if any(each.status is Status.FAILED for each in findings):
            missing[check.name] = f"{check.name} failed"
        elif all(each.status is Status.SKIPPED for each in findings):
            missing[check.name] = f"{check.name} was skipped"
        for each in findings:
            if each.status is Status.FAILED and about.mode is Mode.OFF and not check.binding:
                each = warning(f"{each.text} (KDTREE_VERIFY=off: going on)", each.fix)
            yield replace(each, check=check.name, seconds=time.monotonic() - began)


def _ask(check: Check, about: Subject, missing: Mapping[str, str]) -> list[Finding]:
    if check.gpu and about.device is Device.CPU:
        return [skipped(_ON_CPU)]
    if check.kernel and about.mode is Mode.OFF:
        return [skipped("KDTREE_VERIFY=off: nothing of the kernel is used")]
    reason = next((missing[name] for name in check.needs if name in missing), None)
    if reason:
        return [skipped(reason)]
    try:
        found = check.ask(about)
    except KdtreeError as error:
        return [failed(error)]
    except OSError as error:  # no process to be had, no temporary folder
        fix = "give the container what is missing (--tmpfs /tmp, a higher --pids-limit)"
        return [failed(UsageError("the check cannot be made", str(error), fix))]
    return found if isinstance(found, list) else [found]


# ---- the checks


def _device(about: Subject) -> Finding:
    """KDTREE_DEVICE=cpu is for machines without a GPU; on any other it would hide one."""
    if about.device is not Device.CPU:
        return ok("the server computes on GPUs")
    if about.plan.given and not about.plan.on_cpu:
        fix = "add --device cpu to the server's arguments, or unset KDTREE_DEVICE"
        raise UsageError("KDTREE_DEVICE=cpu needs a server on the CPU", "no --device cpu", fix)
    nodes = sorted(glob.glob("/dev/nvidia[0-9]*")) + (["/dev/dxg"] if os.path.exists("/dev/dxg") else [])
    if nodes:
        fix = "unset KDTREE_DEVICE to use the GPU, or start the container without one"
        raise UsageError("KDTREE_DEVICE=cpu on a machine with a GPU", f"{', '.join(nodes)} in this container", fix)
    fix = "for serving, unset it on a machine with a GPU"
    return warning(f"{_ON_CPU}: the host library, for tests and demonstrations, not for serving", fix)


def _nvml(about: Subject) -> list[Finding]:
    about.survey = nvml.survey(selection.why_none(about.env))
    return [ok(f"{gpu}, driver {about.survey.driver}") for gpu in about.survey.gpus] or [ok("NVML answers")]


def _driver(about: Subject) -> Finding:
    version = _survey(about).driver
    nvml.check_driver(version)
    return ok(f"driver {version}, {nvml.DRIVER_FLOOR} or newer")


def _cuda(about: Subject) -> list[Finding]:
    survey = _survey(about)
    about.devices = cuda.start(survey)
    listed = gpus.check_devices(about.devices, about.mode, about.allowed if about.mode is not Mode.OFF else None)
    return [*gpus.check_missing(about.devices, survey, about.env), *listed]


def _survey(about: Subject) -> nvml.Survey:
    assert about.survey is not None, "asked before NVML was"
    return about.survey


def _peers(about: Subject) -> Finding | list[Finding]:
    return peers.check(len(about.devices)) if len(about.devices) > 1 else skipped("one GPU has no peer")


def _library(about: Subject) -> Finding:
    return software.check_library(config.from_environment(about.env).library_dir, about.device)


def _contract(about: Subject) -> Finding:
    return software.check_contract(about.env.get("SGLANG_PLUGINS", ""))


def _selftest(about: Subject) -> Finding | list[Finding]:
    if about.device is Device.CUDA and not about.devices:
        return skipped("no GPU on which CUDA starts")
    return software.check_selftest(about.device)


_SEEN = (
    Check("device", _device, gpu=False, binding=True),
    Check("nvml", _nvml),
    Check("driver", _driver, needs=("nvml",), binding=True),
    Check("gpus", lambda about: gpus.check_selected(_survey(about), about.env), needs=("nvml",)),
)
_CARDS = Check(
    "cards",
    lambda about: gpus.check_cards(_survey(about), about.env, about.mode, about.allowed),
    needs=("gpus",),
    kernel=True,
)
_STARTED = (
    Check("cuda", _cuda, needs=("nvml", "driver", "gpus")),
    Check("ranks", lambda about: gpus.check_count(about.devices, about.plan), needs=("cuda",)),
    Check(
        "memory",
        lambda about: gpus.check_memory(about.devices, about.plan, model.weights(about.plan, about.env)),
        needs=("cuda",),
    ),
)
_HOST = (
    Check("shm", lambda about: host.check_shm(about.ranks, about.env)),
    Check("memlock", lambda about: host.check_memlock(about.ranks, about.plan.nodes)),
)

_FOLDERS = (
    Check("model", lambda about: folders.check_model(about.plan, about.env), gpu=False, binding=True),
    Check("caches", lambda about: folders.check_caches(about.env), gpu=False),
)

BEFORE_OFF = (*_SEEN, *_FOLDERS, *_HOST)
"""What the entrypoint asks before a server with off: it has nothing started, and only a binding check stops it."""

BEFORE_KERNEL = (*_SEEN, _CARDS, *_FOLDERS, *_STARTED, *_HOST)
"""What the entrypoint asks before a server with validate or on; without torch or SGLang, in seconds."""

INSTALLATION = (
    Check("versions", lambda _: software.check_versions(), gpu=False),
    Check("contract", _contract, gpu=False, kernel=True),
    Check("library", _library, gpu=False, kernel=True),
    Check("selftest", _selftest, needs=("library",), gpu=False, kernel=True),
)
"""What the launcher and the ranks prove themselves, after the entrypoint: the doctor asks it, too."""

PEERS = Check("p2p", _peers, needs=("cuda",))
NO_PEERS = Check("p2p", lambda _: skipped("not asked for: --p2p"))
