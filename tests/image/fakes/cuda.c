/* As much of the driver's API as kdtree_verify/doctor/cuda_child.py calls, without a GPU.

FAKE_CUDA: devices, "UUID in hex,major,minor,total MiB,free MiB,name" separated by semicolons; none by default.
FAKE_CUDA_FAIL: function=status.  FAKE_CUDA_HANG, FAKE_CUDA_CRASH: a function.  FAKE_CUDA_DAMAGE: memory forgets.
FAKE_CUDA_VERSION: what cuDriverGetVersion tells. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct { char name[128]; unsigned char uuid[16]; int major, minor; unsigned long long total, free; } devices[16];
static int count, current;
static unsigned *memory;

static int enter(const char *name) {
    const char *hang = getenv("FAKE_CUDA_HANG"), *crash = getenv("FAKE_CUDA_CRASH"), *fail = getenv("FAKE_CUDA_FAIL");
    const size_t length = strlen(name);
    if (crash && !strcmp(crash, name)) abort();
    while (hang && !strcmp(hang, name)) sleep(1000);
    return fail && !strncmp(fail, name, length) && fail[length] == '=' ? atoi(fail + length + 1) : 0;
}

int cuInit(unsigned flags) {
    char text[4096] = "", uuid[33], *rest = text, *one;
    (void)flags;
    if (getenv("FAKE_CUDA")) snprintf(text, sizeof text, "%s", getenv("FAKE_CUDA"));
    while ((one = strsep(&rest, ";")) && *one) {
        sscanf(one, "%32[^,],%d,%d,%llu,%llu,%127[^\n]", uuid, &devices[count].major, &devices[count].minor,
               &devices[count].total, &devices[count].free, devices[count].name);
        for (int i = 0; i < 16; i++) sscanf(uuid + 2 * i, "%2hhx", devices[count].uuid + i);
        count++;
    }
    return enter("cuInit");
}
int cuGetErrorName(int status, const char **name) {
    static char text[32];
    snprintf(text, sizeof text, "CUDA_ERROR_%d", status);
    return *name = text, 0;
}
int cuDriverGetVersion(int *version) {
    const char *told = getenv("FAKE_CUDA_VERSION");
    return *version = told ? atoi(told) : 13000, enter("cuDriverGetVersion");
}
int cuDeviceGetCount(int *number) { return *number = count, enter("cuDeviceGetCount"); }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, enter("cuDeviceGet"); }
int cuDeviceGetName(char *text, int size, int device) {
    return snprintf(text, size, "%s", devices[device].name), enter("cuDeviceGetName");
}
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    return memcpy(uuid, devices[device].uuid, 16), enter("cuDeviceGetUuid_v2");
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    return *value = attribute == 75 ? devices[device].major : devices[device].minor, enter("cuDeviceGetAttribute");
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    return *context = devices, current = device, enter("cuDevicePrimaryCtxRetain");
}
int cuDevicePrimaryCtxRelease_v2(int device) { return (void)device, enter("cuDevicePrimaryCtxRelease_v2"); }
int cuCtxSetCurrent(void *context) { return (void)context, enter("cuCtxSetCurrent"); }
int cuMemGetInfo_v2(size_t *free, size_t *total) {
    return *free = devices[current].free << 20, *total = devices[current].total << 20, enter("cuMemGetInfo_v2");
}
int cuMemAlloc_v2(void **pointer, size_t size) { return *pointer = memory = malloc(size), enter("cuMemAlloc_v2"); }
int cuMemsetD32_v2(void *pointer, unsigned value, size_t words) {
    for (size_t i = 0; i < words; i++) ((unsigned *)pointer)[i] = value;
    if (getenv("FAKE_CUDA_DAMAGE")) ((unsigned *)pointer)[words / 2] ^= 1;
    return enter("cuMemsetD32_v2");
}
int cuMemcpyDtoH_v2(void *host, void *pointer, size_t size) {
    return memcpy(host, pointer, size), enter("cuMemcpyDtoH_v2");
}
int cuMemFree_v2(void *pointer) { return free(pointer), enter("cuMemFree_v2"); }
