"""CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES: which GPUs they leave, and what of them takes no effect.

CUDA_VISIBLE_DEVICES is CUDA's own: NVIDIA, CUDA Programming Guide, "CUDA Environment Variables"; what the guide leaves
open (numbers are read as strtoul does, a repeated entry leaves nothing) is as torch.cuda's own reading of it.
NVIDIA_VISIBLE_DEVICES is the container toolkit's, and had its effect before this process began.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .nvml import Gpu, Mig, Survey

CUDA = "CUDA_VISIBLE_DEVICES"
TOOLKIT = "NVIDIA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"


@dataclass(frozen=True)
class Selection:
    """What CUDA_VISIBLE_DEVICES leaves.

    Attributes:
        gpus: The GPUs, in the order of the list; of a MIG device, its GPU.
        known: Whether those are certain: an index counts in CUDA's order, which NVML does not tell.
        problem: Why entries take no effect; empty where all do.
    """

    gpus: tuple[Gpu, ...]
    known: bool = True
    problem: str = ""


def by_cuda(survey: Survey, env: Mapping[str, str]) -> Selection:
    """Reads CUDA_VISIBLE_DEVICES as CUDA does: up to the first entry that names no device."""
    value = env.get(CUDA)
    if value is None:
        return Selection(survey.gpus)
    entries = [entry.strip() for entry in value.split(",")]
    if value.startswith(("GPU-", "MIG-")):
        chosen, problem = _by_uuid(survey, entries, value[:4])
        return Selection(chosen, problem=problem)
    chosen, problem = _by_index(survey, entries)
    same_kind = len({gpu.capability for gpu in survey.gpus}) <= 1
    return Selection(chosen, known=same_kind or env.get(ORDER) == "PCI_BUS_ID", problem=problem)


def _by_index(survey: Survey, entries: list[str]) -> tuple[tuple[Gpu, ...], str]:
    chosen: list[Gpu] = []
    for place, entry in enumerate(entries):
        number = re.match(r"[+-]?[0-9]{1,18}(?![0-9])", entry, re.ASCII)  # a longer one is beyond any GPU
        index = int(number[0]) if number else -1
        if not 0 <= index < len(survey.gpus):
            return tuple(chosen), _stops(entries, place, f"names none of {len(survey.gpus)} GPUs")
        gpu = survey.gpus[index]
        if gpu in chosen:
            return (), f"'{entry}' is there twice, which leaves no GPU"
        chosen.append(gpu)
    return tuple(chosen), ""


def _by_uuid(survey: Survey, entries: list[str], prefix: str) -> tuple[tuple[Gpu, ...], str]:
    chosen: list[str] = []
    for place, entry in enumerate(entries):
        if not entry.startswith(prefix):
            return _parents(survey, chosen), _stops(entries, place, f"is no {prefix}UUID as those before it")
        found = _mig_matches(survey.mig, entry) if prefix == "MIG-" else _gpu_matches(survey.gpus, entry)
        if len(found) != 1:
            why = f"names {'none' if not found else len(found)} of the devices here"
            return _parents(survey, chosen), _stops(entries, place, why)
        if found[0] in chosen:
            return (), f"'{entry}' is there twice, which leaves no GPU"
        chosen += found
    return _parents(survey, chosen), ""


def _gpu_matches(gpus: tuple[Gpu, ...], entry: str) -> list[str]:
    return [gpu.uuid for gpu in gpus if gpu.uuid.startswith(entry)]


def _mig_matches(devices: tuple[Mig, ...], entry: str) -> list[str]:
    # MIG-UUID, or the older MIG-GPU-UUID/GPU instance/compute instance.
    older = re.fullmatch(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)", entry, re.ASCII)
    if older:
        wanted = older[1], int(older[2]), int(older[3])
        return [d.uuid for d in devices if (d.parent, d.gpu_instance, d.compute_instance) == wanted]
    return [device.uuid for device in devices if device.uuid.startswith(entry)]


def _parents(survey: Survey, uuids: list[str]) -> tuple[Gpu, ...]:
    parents = {device.uuid: device.parent for device in survey.mig}
    wanted = dict.fromkeys(parents.get(uuid, uuid) for uuid in uuids)
    of_uuid = {gpu.uuid: gpu for gpu in survey.gpus}
    return tuple(of_uuid[uuid] for uuid in wanted)


def _stops(entries: list[str], place: int, why: str) -> str:
    if entries == [""]:
        return "it is empty, which hides every GPU"
    after = len(entries) - place - 1
    rest = f"; nor does what stands after it ({', '.join(entries[place + 1 :])})" if after else ""
    return f"'{entries[place]}' {why}, and takes no effect{rest}"


def by_toolkit(survey: Survey, env: Mapping[str, str]) -> str:
    """What NVIDIA_VISIBLE_DEVICES asked for and this container does not see; empty where nothing is amiss."""
    value = env.get(TOOLKIT)
    count = len(survey.gpus)
    if value in (None, "", "void", "all"):  # void: another way hands the GPUs over, CDI for one
        return ""
    if value == "none":
        return f"none asks for the driver without a GPU, yet {count} are here: others were handed over" if count else ""
    entries = [entry.strip() for entry in str(value).split(",") if entry.strip()]
    unknown = [entry for entry in entries if not _toolkit_form(entry)]
    if unknown:
        return f"'{unknown[0]}' is no index, UUID, all, none or void"
    uuids = [gpu.uuid for gpu in survey.gpus] + [device.uuid for device in survey.mig]
    named = [entry for entry in entries if entry.startswith(("GPU-", "MIG-")) and "/" not in entry]
    lost = [entry for entry in named if not any(uuid.lower().startswith(entry.lower()) for uuid in uuids)]
    if lost:
        return f"{', '.join(lost)} asked for, but not here"
    of_whole = [entry for entry in entries if entry.isdecimal() or entry.startswith("GPU-")]
    if len(of_whole) == len(entries) != count:
        return f"{len(entries)} asked for, {count} here"
    return ""


def _toolkit_form(entry: str) -> bool:
    return re.fullmatch(r"\d+(:\d+)?|(GPU|MIG)-[0-9A-Za-z/-]+", entry, re.ASCII) is not None


def why_none(env: Mapping[str, str]) -> str:
    """What the variables have to do with no GPU being here; empty where nothing."""
    value = env.get(TOOLKIT)
    if value is None:
        return f"{TOOLKIT} is not set"
    if value in ("", "void", "none"):
        return f"{TOOLKIT}='{value}' hands over none"
    return f"{TOOLKIT}={value} took no effect: without NVIDIA's runtime, the variable is only a word"
