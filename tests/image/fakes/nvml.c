/* As much of NVML as the entrypoint asks: one H200, and a driver that is new enough. */
#include <stdio.h>

int nvmlInitWithFlags(unsigned flags) { return (void)flags, 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return (void)code, "an error"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) { return snprintf(text, size, "580.159.04"), 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = 1, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { return (void)index, *device = &nvmlShutdown, 0; }

int nvmlDeviceGetName(void *device, char *text, unsigned size) {
    return (void)device, snprintf(text, size, "NVIDIA H200"), 0;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) { return (void)device, snprintf(text, size, "GPU-cccccccc-0000-0000-0000-000000000000"), 0; }
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    return (void)device, *major = 9, *minor = 0, 0;
}
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *later) {
    return (void)device, *now = *later = 0, 3 /* not supported */;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *bytes) {
    return (void)device, bytes[0] = 140ULL << 30, bytes[1] = bytes[2] = 0, 0;
}
