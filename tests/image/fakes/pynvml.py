"""NVML without a GPU, for tests of the entrypoint: the real module with what needs a driver replaced.

FAKE_NVML, JSON: {"driver": "580.95.05", "init", "shutdown": error code or 0, "gpus": [{"name", "uuid", "cc": [12, 0],
"mib", "mig": bool, "error": error code that asking this GPU raises}], "mig": {"MIG-...": index of its GPU}}.
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


def nvmlDeviceGetHandleByUUID(uuid):
    if uuid not in _FAKE.get("mig", {}):
        raise _real.NVMLError(_real.NVML_ERROR_NOT_FOUND)
    return _FAKE["mig"][uuid]


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device):
    return _GPUS[device]


def nvmlDeviceGetCudaComputeCapability(gpu):
    return tuple(gpu["cc"])


def nvmlDeviceGetMigMode(gpu):
    if "mig" not in gpu:
        raise _real.NVMLError(_real.NVML_ERROR_NOT_SUPPORTED)
    return [int(gpu["mig"])] * 2


def nvmlDeviceGetMemoryInfo(gpu):
    return SimpleNamespace(total=gpu["mib"] << 20)


def nvmlDeviceGetName(gpu):
    return gpu["name"]


def nvmlDeviceGetUUID(gpu):
    return gpu["uuid"]
