"""Starts CUDA in this process, which is there for nothing else: `python -IS cuda_child.py PARENT`, a process id.

On every GPU that CUDA lists it makes a context, fills some memory and reads it back. A JSON line before and after each
step says how far it came, should the driver never answer. The standard library only, and nothing of this package.
"""

import ctypes
import json
import os
import signal
import sys

FILLED = 1 << 20  # bytes
PATTERN = 0x4B445452
UUID_BYTES = 16
COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76  # CUdevice_attribute
PR_SET_PDEATHSIG = 1


class Driver:
    """libcuda's functions; one that does not return 0 is reported, and ends this process."""

    def __init__(self) -> None:
        say(step="load libcuda.so.1")
        self._library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            say(call=name, error=status, name=self._error_name(status))
            sys.exit(1)

    def _error_name(self, status: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(status, ctypes.byref(text))
        return (text.value or b"unknown").decode()


def say(**document: object) -> None:
    print(json.dumps(document), flush=True)


def start(driver: Driver) -> None:
    say(step="cuInit")
    driver.call("cuInit", 0)
    version, count = ctypes.c_int(), ctypes.c_int()
    driver.call("cuDriverGetVersion", ctypes.byref(version))
    driver.call("cuDeviceGetCount", ctypes.byref(count))
    say(driver=version.value, count=count.value)
    for ordinal in range(count.value):
        try_device(driver, ordinal)


def try_device(driver: Driver, ordinal: int) -> None:
    device, number, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    uuid = (ctypes.c_ubyte * UUID_BYTES)()
    driver.call("cuDeviceGet", ctypes.byref(device), ordinal)
    driver.call("cuDeviceGetName", name, len(name), device)
    driver.call("cuDeviceGetUuid_v2", uuid, device)  # a MIG device's own, where it is one
    capability = []
    for attribute in (COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR):
        driver.call("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
        capability.append(number.value)
    say(step=f"cuda:{ordinal} ({name.value.decode(errors='replace')}): its context")
    context = ctypes.c_void_p()
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver.call("cuCtxSetCurrent", context)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    say(step=f"cuda:{ordinal}: memory written and read back")
    pointer, read = ctypes.c_uint64(), (ctypes.c_uint32 * (FILLED // 4))()
    driver.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(FILLED))
    driver.call("cuMemsetD32_v2", pointer, ctypes.c_uint(PATTERN), ctypes.c_size_t(FILLED // 4))
    driver.call("cuMemcpyDtoH_v2", read, pointer, ctypes.c_size_t(FILLED))
    driver.call("cuMemFree_v2", pointer)
    driver.call("cuDevicePrimaryCtxRelease_v2", device)
    say(
        ordinal=ordinal,
        name=name.value.decode(errors="replace"),
        uuid=bytes(uuid).hex(),
        capability="{}.{}".format(*capability),
        free=free.value,
        total=total.value,
        intact=all(word == PATTERN for word in read),
    )


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # nobody to tell, nothing to do
    if os.getppid() != int(sys.argv[1]):  # it has ended before that was asked for
        return
    try:
        start(Driver())
    except (OSError, AttributeError) as error:  # no library, or one without a function
        say(call="libcuda.so.1", error=-1, name=str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
