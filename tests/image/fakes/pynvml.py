"""NVML without a GPU, for tests of the entrypoint: the real module with what needs a driver replaced.

FAKE_NVML, JSON: {"driver": "580.95.05", "init", "shutdown": error code or 0, "gpus": [{"name", "uuid", "cc": [12, 0],
"mib", "mig": bool, "error": error code that asking this GPU raises, "fault": {function: error code}}],
"mig": {"MIG-...": index of its GPU}}.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

_HERE = Path(__file__).resolve().parent
_REAL = next(
    Path(folder, "pynvml.py")
    for folder in sys.path
    if Path(folder, "pynvml.py").exists() and Path(folder).resolve() != _HERE
)
_spec = importlib.util.spec_from_file_location("_real_pynvml", _REAL)
_real = importlib.util.module_from_spec(_spec)
sys.modules["_real_pynvml"] = _real
_spec.loader.exec_module(_real)
globals().update({name: value for name, value in vars(_real).items() if not name.startswith("__")})

_FAKE = json.loads(os.environ["FAKE_NVML"])
_GPUS = _FAKE.get("gpus", [])


def nvmlInit():
    if _FAKE.get("init"):
        raise _real.NVMLError(_FAKE["init"])


def nvmlShutdown():
    if _FAKE.get("shutdown"):
        raise _real.NVMLError(_FAKE["shutdown"])


def nvmlSystemGetDriverVersion():
    return _FAKE.get("driver", "580.95.05")


def nvmlDeviceGetCount():
    return len(_GPUS)


def nvmlDeviceGetHandleByIndex(index):
    if _GPUS[index].get("error"):
        raise _real.NVMLError(_GPUS[index]["error"])
    return _GPUS[index]


def _fault(gpu, function):
    if code := gpu.get("fault", {}).get(function):
        raise _real.NVMLError(code)


def _mig(gpu):
    index = _GPUS.index(gpu)
    return [uuid for uuid, parent in _FAKE.get("mig", {}).items() if parent == index]


def nvmlDeviceGetMaxMigDeviceCount(gpu):
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(gpu, index):
    if index >= len(_mig(gpu)):
        raise _real.NVMLError(_real.NVML_ERROR_NOT_FOUND)
    return {"uuid": _mig(gpu)[index], "instance": index + 1}


def nvmlDeviceGetGpuInstanceId(device):
    return device["instance"]


def nvmlDeviceGetComputeInstanceId(device):
    return 0


def nvmlDeviceGetCudaComputeCapability(gpu):
    return tuple(gpu["cc"])


def nvmlDeviceGetMigMode(gpu):
    if "mig" not in gpu:
        raise _real.NVMLError(_real.NVML_ERROR_NOT_SUPPORTED)
    return [int(gpu["mig"])] * 2


def nvmlDeviceGetMemoryInfo(gpu):
    _fault(gpu, "nvmlDeviceGetMemoryInfo")
    return SimpleNamespace(total=gpu["mib"] << 20, free=gpu["mib"] << 20)


def nvmlDeviceGetName(gpu):
    return gpu["name"]


def nvmlDeviceGetUUID(gpu):
    return gpu["uuid"]
