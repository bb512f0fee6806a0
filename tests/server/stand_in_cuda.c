/* A library in the place of libcuda.so.1 that only starts, or does not, as the environment says:
 * STAND_IN_VERSION (13000), STAND_IN_INIT (0, what cuInit gives) and STAND_IN_DEVICES (1). Built a
 * second time with STAND_IN_SHORT, which leaves the functions of kernels out. */
#include <stdlib.h>

#include "server/device/cuda_abi.h"

#define EXPORT __attribute__((visibility("default")))

static int from_environment(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text != NULL ? atoi(text) : otherwise;
}

#define DECLARE(name, symbol, ...) EXPORT kvd_cu_result symbol(__VA_ARGS__);
KVD_CU_FUNCTIONS(DECLARE)

kvd_cu_result cuInit(unsigned flags)
{
    return flags == 0 ? (kvd_cu_result)from_environment("STAND_IN_INIT", 0) : KVD_CU_INVALID_VALUE;
}

kvd_cu_result cuDriverGetVersion(int *version)
{
    *version = from_environment("STAND_IN_VERSION", KVD_CU_VERSION_MIN);
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuDeviceGetCount(int *count)
{
    *count = from_environment("STAND_IN_DEVICES", 1);
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuGetErrorName(kvd_cu_result result, const char **name)
{
    *name = result == KVD_CU_SYSTEM_NOT_READY ? "CUDA_ERROR_SYSTEM_NOT_READY" : NULL;
    return *name != NULL ? KVD_CU_SUCCESS : KVD_CU_INVALID_VALUE;
}

kvd_cu_result cuGetErrorString(kvd_cu_result result, const char **text)
{
    *text = result == KVD_CU_SYSTEM_NOT_READY ? "system not yet initialized" : NULL;
    return *text != NULL ? KVD_CU_SUCCESS : KVD_CU_INVALID_VALUE;
}

#pragma GCC diagnostic ignored "-Wunused-parameter"
#define REFUSE(name, symbol, ...)                                                                  \
    kvd_cu_result symbol(__VA_ARGS__)                                                              \
    {                                                                                              \
        return KVD_CU_NOT_SUPPORTED;                                                               \
    }
KVD_CU_DEVICE_FUNCTIONS(REFUSE)
KVD_CU_MEMORY_FUNCTIONS(REFUSE)
KVD_CU_STREAM_FUNCTIONS(REFUSE)
#ifndef STAND_IN_SHORT
KVD_CU_KERNEL_FUNCTIONS(REFUSE)
#endif
