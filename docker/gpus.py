"""The GPUs that this container sees, by NVML; and whether they are the image's.

NVML is the driver's management library: asking it starts no CUDA in this process and takes no memory on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from refusal import EXIT_DEVICE, Refusal

# The first driver branch that runs CUDA 13, which the image is built on.
DRIVER_FLOOR = 580
GIVE_GPUS = "run with --gpus all (compose.yaml asks for all), on a host with NVIDIA's driver and container toolkit"


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML describes it. `index` is NVML's, which is PCI order; memory in MiB."""

    index: int
    name: str
    uuid: str
    capability: str
    memory: int
    mig: bool

    def __str__(self) -> str:
        mig = ", MIG on" if self.mig else ""
        return (
            f"GPU {self.index}: {self.name}, {self.uuid}, compute capability {self.capability}, {self.memory} MiB{mig}"
        )


@dataclass(frozen=True)
class Survey:
    """What NVML tells: the driver's version, every GPU, and those that CUDA_VISIBLE_DEVICES leaves to CUDA."""

    driver: str
    gpus: list[Gpu]
    selection: str | None
    used: list[Gpu]


def survey(env: Mapping[str, str]) -> Survey:
    """Asks NVML. Raises Refusal where it cannot answer."""
    selection = env.get("CUDA_VISIBLE_DEVICES")
    with nvml() as pynvml:
        driver = driver_version(text(pynvml.nvmlSystemGetDriverVersion()))
        gpus = list_gpus(pynvml)
        parents = mig_parents(pynvml, selection)
    used = visible_to_cuda(gpus, selection, env.get("CUDA_DEVICE_ORDER", ""), parents)
    return Survey(driver, gpus, selection, used)


def driver_version(told: str) -> str:
    """What NVML told, without a suffix: "580.65.06". Raises Refusal where that is no version."""
    found = re.match(r"[0-9]+(\.[0-9]+)*", told)
    if found is None:
        fix = "run nvidia-smi on the host: reinstall the driver if it names no version there either"
        raise Refusal(EXIT_DEVICE, "the driver's version is unknown", f"'{told}'", fix)
    return found[0]


def check_driver(version: str) -> None:
    """Raises Refusal for a driver that cannot run the image's CUDA, in whatever mode."""
    if int(version.split(".")[0]) < DRIVER_FLOOR:
        fix = f"install driver {DRIVER_FLOOR} or newer on the host"
        raise Refusal(EXIT_DEVICE, f"the driver is too old for CUDA 13, which needs {DRIVER_FLOOR}", version, fix)


def check_used(found: Survey, mode: str, allowed: tuple[str, ...]) -> None:
    """Raises Refusal where CUDA would have no GPU, or one of another compute capability than those allowed."""
    if not found.gpus:
        raise Refusal(EXIT_DEVICE, "no GPU can be used", "NVML lists none", GIVE_GPUS)
    if not found.used:
        named = f"CUDA_VISIBLE_DEVICES={found.selection} names none of the {len(found.gpus)} here"
        raise Refusal(EXIT_DEVICE, "no GPU can be used", named, "unset CUDA_VISIBLE_DEVICES or correct it")
    wrong = [gpu for gpu in found.used if gpu.capability not in allowed]
    if wrong:
        what = f"KDTREE_VERIFY={mode} needs compute capability {' or '.join(allowed)} on every GPU"
        fix = "make only RTX PRO 6000 / RTX 50 GPUs visible (--gpus '\"device=UUID\"'), or set KDTREE_VERIFY=off"
        raise Refusal(EXIT_DEVICE, what, "; ".join(map(str, wrong)), fix)


@contextmanager
def nvml() -> Iterator[Any]:
    """NVML, initialized. Raises Refusal in words that say what a person can do."""
    try:
        import pynvml
    except ImportError as error:
        raise Refusal(EXIT_DEVICE, "NVML's Python module is missing", str(error), "rebuild the image") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise Refusal(EXIT_DEVICE, "no GPU can be seen", f"NVML: {error}", nvml_fix(error.value, pynvml)) from None
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        fix = "look at the host's kernel log (dmesg | grep -i nvrm), reset the GPU or restart the host"
        raise Refusal(EXIT_DEVICE, "a GPU does not answer", f"NVML: {error}", fix) from None
    finally:
        with suppress(pynvml.NVMLError):  # what was asked is answered
            pynvml.nvmlShutdown()


def nvml_fix(code: int, pynvml: Any) -> str:
    if code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "the driver was updated under way: restart the host, or reload its NVIDIA kernel modules"
    if code == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return "load the NVIDIA driver on the host (nvidia-smi must work there), then start the container again"
    if code == pynvml.NVML_ERROR_NO_PERMISSION:
        return "let this container's user open /dev/nvidia* (CDI: nvidia-ctk cdi generate)"
    return GIVE_GPUS


def list_gpus(pynvml: Any) -> list[Gpu]:
    """Every GPU that the container sees."""
    gpus = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        try:
            mig = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        except pynvml.NVMLError_NotSupported:
            mig = False
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total >> 20
        name, uuid = (text(get(handle)) for get in (pynvml.nvmlDeviceGetName, pynvml.nvmlDeviceGetUUID))
        gpus.append(Gpu(index, name, uuid, f"{major}.{minor}", memory, mig))
    return gpus


def text(value: str | bytes) -> str:
    # Older releases of the module return bytes.
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def visible_to_cuda(gpus: list[Gpu], selection: str | None, order: str, mig_parents: Mapping[str, str]) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, as CUDA reads it: up to the first entry that names none.

    Indices count in CUDA's order, which is PCI's only with CUDA_DEVICE_ORDER=PCI_BUS_ID. Where it is not, and the
    cards differ, an index may mean any of them: then all are returned. `mig_parents` gives the UUID of the GPU for
    that of a MIG device.
    """
    if selection is None:
        return gpus
    ambiguous = order != "PCI_BUS_ID" and len({gpu.capability for gpu in gpus}) > 1
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in selection.split(",")):
        if entry.isdecimal() and entry.isascii() and int(entry) < len(gpus):
            found = gpus if ambiguous else [gpus[int(entry)]]
        else:
            uuid = mig_parents.get(entry, entry)
            found = [gpu for gpu in gpus if uuid.startswith("GPU-") and gpu.uuid.startswith(uuid)]
        if not found:
            break
        chosen += [gpu for gpu in found if gpu not in chosen]
    return chosen


def mig_parents(pynvml: Any, selection: str | None) -> dict[str, str]:
    """UUID of the GPU that each MIG device of the selection is part of."""
    parents = {}
    for entry in (part.strip() for part in (selection or "").split(",")):
        if not entry.startswith("MIG-"):
            continue
        try:
            device = pynvml.nvmlDeviceGetHandleByUUID(entry)
            parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
        except pynvml.NVMLError:
            continue  # it names no device here
        parents[entry] = text(pynvml.nvmlDeviceGetUUID(parent))
    return parents
