"""The checks of the GPUs: are some here, are they the kernel's, are they enough, does the model fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..errors import CapabilityError, DeviceError, GpuMemoryError
from . import nvml, selection
from .arguments import Plan
from .cuda import Device
from .finding import Finding, ok, skipped, warning
from .model import Weights

NOT_LOADED = 0.05
"""Share of a checkpoint that a server may leave on disk: a layer for speculation is 2% of DeepSeek-V3."""

LITTLE = 0.9
"""Share of a GPU's memory that is free where nothing else runs on it."""

_HAND_OVER = "correct it, or unset it and choose the GPUs where they are handed over (--gpus '\"device=UUID\"')"


def check_selected(survey: nvml.Survey, env: Mapping[str, str]) -> list[Finding]:
    """Whether there are GPUs, and some that CUDA_VISIBLE_DEVICES leaves.

    Raises:
        DeviceError: There are none.
    """
    if not survey.gpus:
        raise DeviceError("no GPU can be used", f"NVML lists none; {selection.why_none(env)}", nvml.GIVE_GPUS)
    chosen = selection.by_cuda(survey, env)
    value = env.get(selection.CUDA)
    if not chosen.gpus:
        found = f"{selection.CUDA}={value} names none of the {len(survey.gpus)} here: {chosen.problem}"
        raise DeviceError("no GPU can be used", found, f"unset {selection.CUDA} or correct it")
    findings = []
    if chosen.problem:
        findings.append(warning(f"{selection.CUDA}={value}: {chosen.problem}", f"unset {selection.CUDA} or correct it"))
    if problem := selection.by_toolkit(survey, env):
        findings.append(warning(f"{selection.TOOLKIT}={env[selection.TOOLKIT]}: {problem}", _HAND_OVER))
    told = f"{len(chosen.gpus)} of {len(survey.gpus)} GPUs" if chosen.known else "GPUs, which ones only CUDA can tell"
    named = f" by {selection.CUDA}={value}" if value is not None else ""
    return [*findings, ok(f"CUDA is left {told}{named}")]


def check_cards(survey: nvml.Survey, env: Mapping[str, str], mode: str, allowed: Sequence[str]) -> list[Finding]:
    """Whether the kernel was made for the cards that NVML and CUDA_VISIBLE_DEVICES leave.

    Raises:
        CapabilityError: For one of them it was not. Where only CUDA can tell which they are: for all.
    """
    chosen = selection.by_cuda(survey, env)
    other = [gpu for gpu in chosen.gpus if gpu.capability not in allowed]
    if other and (chosen.known or all(gpu.capability not in allowed for gpu in survey.gpus)):
        raise _other(mode, allowed, other)
    findings = []
    if sliced := [gpu for gpu in chosen.gpus if gpu.mig]:
        text = f"MIG is on, of which a process sees one device: {'; '.join(map(str, sliced))}"
        findings.append(warning(text, "serve with --tp-size 1 on it, or switch MIG off: nvidia-smi -mig 0"))
    kinds = Counter(gpu.name for gpu in chosen.gpus)
    if len(kinds) > 1:
        text = f"cards of several kinds: {', '.join(f'{count} {name}' for name, count in kinds.items())}"
        findings.append(warning(f"{text}; the smallest and slowest sets the pace", _HAND_OVER))
    return [*findings, ok(f"compute capability {', '.join(sorted({gpu.capability for gpu in chosen.gpus}))}")]


def check_devices(devices: Sequence[Device], mode: str, allowed: Sequence[str] | None) -> list[Finding]:
    """The same of the devices that CUDA itself lists, each of which is named with its place in CUDA's order.

    `allowed` is None where any will do.

    Raises:
        DeviceError: It lists none.
        CapabilityError: It lists one that the kernel was not made for.
    """
    if not devices:
        raise DeviceError(
            "no GPU can be used", "CUDA lists none", "with MIG on, hand a MIG device over or switch it off"
        )
    if allowed is not None and (other := [device for device in devices if device.capability not in allowed]):
        raise _other(mode, allowed, other)
    return [ok(str(device)) for device in devices]


def check_missing(devices: Sequence[Device], survey: nvml.Survey, env: Mapping[str, str]) -> list[Finding]:
    """A warning for GPUs that CUDA should list and does not; MIG's devices are not held against it."""
    chosen = selection.by_cuda(survey, env)
    listed = {device.uuid for device in devices}
    lost = [gpu for gpu in chosen.gpus if gpu.uuid not in listed]
    if not lost or not chosen.known or any(gpu.mig for gpu in survey.gpus):
        return []
    text = f"CUDA lists {len(devices)} of {len(chosen.gpus)} GPUs and not {'; '.join(map(str, lost))}"
    return [warning(text, "look at the host's kernel log (dmesg | grep -i nvrm), reset the GPU or restart the host")]


def check_count(devices: Sequence[Device], plan: Plan) -> Finding:
    """Whether every rank has a device. SGLang says it, too, in its own words and late: so this only warns."""
    if not plan.known:
        return skipped("the server's arguments are not known: give them after --")
    last = plan.first_gpu + (plan.ranks - 1) * plan.gpu_step
    if last >= len(devices):
        text = f"{plan.ranks} ranks take GPUs up to cuda:{last}, CUDA lists {len(devices)}"
        return warning(text, "make more GPUs visible, or lower --tp-size")
    return ok(f"{plan.ranks} rank{'s' if plan.ranks > 1 else ''} on {len(devices)} GPUs")


def check_memory(devices: Sequence[Device], plan: Plan, weights: Weights) -> list[Finding]:
    """The weights of one rank against what is free.

    Raises:
        GpuMemoryError: They do not fit, whatever is done for the cache.
    """
    used = devices[plan.first_gpu :: plan.gpu_step][: plan.ranks] or tuple(devices)
    busy = [device for device in used if device.free < LITTLE * device.total]
    findings = [
        warning(
            f"something else has memory of cuda:{device.ordinal}: {_gib(device.free)} of {_gib(device.total)} are free",
            "end it (nvidia-smi on the host); after a server has ended, wait a minute",
        )
        for device in busy
    ]
    if weights.size is None:
        if not plan.known or plan.model is None:
            return [*findings, skipped(f"the model's size is not known: {weights.reason or 'no server arguments'}")]
        fix = "if it does not fit, use more GPUs or a smaller model"
        return [*findings, warning(f"the model's size is not known: {weights.reason}", fix)]
    share = weights.size // (plan.tensor * plan.pipeline)
    # Pipeline stages may differ in size: only the largest GPU can then be held against their mean.
    free, on = (max if plan.pipeline > 1 else min)((device.free, device.ordinal) for device in used)
    room = free * (plan.fraction or 1.0)
    of = f" (--mem-fraction-static {plan.fraction:g} of them)" if plan.fraction else ""
    found = f"{_gib(share)} of weights for each of {plan.tensor * plan.pipeline} ranks, {_gib(free)} free on cuda:{on}"
    if share <= room:
        return [*findings, ok(found + of)]
    fix = "use more GPUs (--tp-size), a smaller or quantized model, or free the memory"
    if not plan.as_stored:
        return [*findings, warning(f"the model as stored does not fit the GPUs: {found}{of}", fix)]
    if share * (1 - NOT_LOADED) <= room:
        return [*findings, warning(f"the model hardly fits the GPUs: {found}{of}", fix)]
    raise GpuMemoryError("the model does not fit the GPUs", found + of, fix)


def _other(mode: str, allowed: Sequence[str], other: Sequence[object]) -> CapabilityError:
    what = f"KDTREE_VERIFY={mode} needs compute capability {' or '.join(allowed)} on every GPU"
    fix = "make only RTX PRO 6000 / RTX 50 GPUs visible (--gpus '\"device=UUID\"'), or set KDTREE_VERIFY=off"
    return CapabilityError(what, "; ".join(map(str, other)), fix)


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.1f} GiB"
