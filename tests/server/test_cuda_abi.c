/* device/cuda_abi.h says what the vendor's header says, where that header is found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/device/cuda_abi.h"

#ifdef HAVE_CUDA_H
#include <cuda.h>

#define SAME_NUMBER(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)
#define SAME_SIZE(ours, theirs)   _Static_assert(sizeof(ours) == sizeof(theirs), #theirs)
#define SAME_FIELD(ours, our_field, theirs, their_field)                                           \
    _Static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field) &&                   \
                       sizeof(((ours *)0)->our_field) == sizeof(((theirs *)0)->their_field),       \
                   #theirs "." #their_field)

#define SAME_RESULT(name) SAME_NUMBER(KVD_CU_##name, CUDA_ERROR_##name);
SAME_NUMBER(KVD_CU_SUCCESS, CUDA_SUCCESS);
SAME_RESULT(INVALID_VALUE)
SAME_RESULT(OUT_OF_MEMORY)
SAME_RESULT(NOT_INITIALIZED)
SAME_RESULT(DEINITIALIZED)
SAME_RESULT(STUB_LIBRARY)
SAME_RESULT(DEVICE_UNAVAILABLE)
SAME_RESULT(NO_DEVICE)
SAME_RESULT(INVALID_DEVICE)
SAME_RESULT(INVALID_IMAGE)
SAME_RESULT(INVALID_CONTEXT)
SAME_RESULT(NO_BINARY_FOR_GPU)
SAME_RESULT(ECC_UNCORRECTABLE)
SAME_RESULT(NVLINK_UNCORRECTABLE)
SAME_RESULT(CONTAINED)
SAME_RESULT(INVALID_HANDLE)
SAME_RESULT(NOT_FOUND)
SAME_RESULT(NOT_READY)
SAME_RESULT(ILLEGAL_ADDRESS)
SAME_RESULT(LAUNCH_OUT_OF_RESOURCES)
SAME_RESULT(LAUNCH_TIMEOUT)
SAME_RESULT(CONTEXT_IS_DESTROYED)
SAME_RESULT(ASSERT)
SAME_RESULT(HOST_MEMORY_ALREADY_REGISTERED)
SAME_RESULT(HOST_MEMORY_NOT_REGISTERED)
SAME_RESULT(HARDWARE_STACK_ERROR)
SAME_RESULT(ILLEGAL_INSTRUCTION)
SAME_RESULT(MISALIGNED_ADDRESS)
SAME_RESULT(INVALID_ADDRESS_SPACE)
SAME_RESULT(INVALID_PC)
SAME_RESULT(LAUNCH_FAILED)
SAME_RESULT(NOT_PERMITTED)
SAME_RESULT(NOT_SUPPORTED)
SAME_RESULT(SYSTEM_NOT_READY)
SAME_RESULT(MPS_CLIENT_TERMINATED)
SAME_RESULT(UNKNOWN)

#define SAME_DEVICE(ours, theirs) SAME_NUMBER(KVD_CU_DEVICE_##ours, CU_DEVICE_ATTRIBUTE_##theirs);
SAME_DEVICE(CLOCK_KHZ, CLOCK_RATE)
SAME_DEVICE(MULTIPROCESSORS, MULTIPROCESSOR_COUNT)
SAME_DEVICE(PCI_BUS, PCI_BUS_ID)
SAME_DEVICE(PCI_DEVICE, PCI_DEVICE_ID)
SAME_DEVICE(L2_BYTES, L2_CACHE_SIZE)
SAME_DEVICE(PCI_DOMAIN, PCI_DOMAIN_ID)
SAME_DEVICE(CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MAJOR)
SAME_DEVICE(CAPABILITY_MINOR, COMPUTE_CAPABILITY_MINOR)
SAME_DEVICE(SHARED_BYTES_MULTIPROCESSOR, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)
SAME_DEVICE(SHARED_BYTES_BLOCK, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
SAME_DEVICE(HOST_REGISTER, HOST_REGISTER_SUPPORTED)
SAME_DEVICE(VIRTUAL_MEMORY, VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
SAME_DEVICE(EXPORT_FD, HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)

#define SAME_FUNCTION(ours, theirs) SAME_NUMBER(KVD_CU_FUNCTION_##ours, CU_FUNC_ATTRIBUTE_##theirs);
SAME_FUNCTION(SHARED_BYTES, SHARED_SIZE_BYTES)
SAME_FUNCTION(LOCAL_BYTES, LOCAL_SIZE_BYTES)
SAME_FUNCTION(REGISTERS, NUM_REGS)
SAME_FUNCTION(DYNAMIC_SHARED_BYTES, MAX_DYNAMIC_SHARED_SIZE_BYTES)
SAME_FUNCTION(SHARED_CARVEOUT, PREFERRED_SHARED_MEMORY_CARVEOUT)

SAME_NUMBER(KVD_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME_NUMBER(KVD_CU_EVENT_DEFAULT, CU_EVENT_DEFAULT);
SAME_NUMBER(KVD_CU_EVENT_BLOCKING_SYNC, CU_EVENT_BLOCKING_SYNC);
SAME_NUMBER(KVD_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
SAME_NUMBER(KVD_CU_HOST_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME_NUMBER(KVD_CU_HOST_REGISTER_DEVICE_MAP, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME_NUMBER(KVD_CU_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME_NUMBER(KVD_CU_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME_NUMBER(KVD_CU_GRANULARITY_RECOMMENDED, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
SAME_NUMBER(KVD_CU_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME_NUMBER(KVD_CU_HANDLE_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME_NUMBER(KVD_CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME_NUMBER(KVD_CU_ACCESS_READ, CU_MEM_ACCESS_FLAGS_PROT_READ);
SAME_NUMBER(KVD_CU_ACCESS_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME_NUMBER(KVD_CU_LAUNCH_COOPERATIVE, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
SAME_NUMBER(KVD_CU_LAUNCH_PROGRAMMATIC_SERIALIZATION,
            CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);

SAME_SIZE(kvd_cu_result, CUresult);
SAME_SIZE(kvd_cu_device, CUdevice);
SAME_SIZE(kvd_cu_address, CUdeviceptr);
SAME_SIZE(kvd_cu_memory, CUmemGenericAllocationHandle);
SAME_SIZE(struct kvd_cu_uuid, CUuuid);
SAME_SIZE(uint32_t, CUstreamCaptureMode);
SAME_SIZE(uint32_t, CUmemAllocationGranularity_flags);
SAME_SIZE(enum kvd_cu_device_attribute, CUdevice_attribute);
SAME_SIZE(enum kvd_cu_function_attribute, CUfunction_attribute);

SAME_SIZE(struct kvd_cu_location, CUmemLocation);
SAME_FIELD(struct kvd_cu_location, type, CUmemLocation, type);
SAME_FIELD(struct kvd_cu_location, id, CUmemLocation, id);

#define SAME_PROPERTY(ours, theirs)                                                                \
    SAME_FIELD(struct kvd_cu_memory_properties, ours, CUmemAllocationProp, theirs);
SAME_SIZE(struct kvd_cu_memory_properties, CUmemAllocationProp);
SAME_PROPERTY(type, type)
SAME_PROPERTY(handles, requestedHandleTypes)
SAME_PROPERTY(location, location)
SAME_PROPERTY(reserved_pointer, win32HandleMetaData)
SAME_PROPERTY(compression, allocFlags.compressionType)
SAME_PROPERTY(rdma, allocFlags.gpuDirectRDMACapable)
SAME_PROPERTY(usage, allocFlags.usage)
SAME_PROPERTY(reserved, allocFlags.reserved)

SAME_SIZE(struct kvd_cu_access, CUmemAccessDesc);
SAME_FIELD(struct kvd_cu_access, location, CUmemAccessDesc, location);
SAME_FIELD(struct kvd_cu_access, flags, CUmemAccessDesc, flags);

SAME_SIZE(struct kvd_cu_launch_attribute, CUlaunchAttribute);
SAME_FIELD(struct kvd_cu_launch_attribute, id, CUlaunchAttribute, id);
SAME_FIELD(struct kvd_cu_launch_attribute, value, CUlaunchAttribute, value);
SAME_FIELD(struct kvd_cu_launch_attribute, value.on, CUlaunchAttribute, value.cooperative);
SAME_FIELD(struct kvd_cu_launch_attribute, value.on, CUlaunchAttribute,
           value.programmaticStreamSerializationAllowed);

SAME_SIZE(struct kvd_cu_launch, CUlaunchConfig);
SAME_FIELD(struct kvd_cu_launch, grid[0], CUlaunchConfig, gridDimX);
SAME_FIELD(struct kvd_cu_launch, grid[2], CUlaunchConfig, gridDimZ);
SAME_FIELD(struct kvd_cu_launch, block[0], CUlaunchConfig, blockDimX);
SAME_FIELD(struct kvd_cu_launch, block[2], CUlaunchConfig, blockDimZ);
SAME_FIELD(struct kvd_cu_launch, shared_bytes, CUlaunchConfig, sharedMemBytes);
SAME_FIELD(struct kvd_cu_launch, stream, CUlaunchConfig, hStream);
SAME_FIELD(struct kvd_cu_launch, attributes, CUlaunchConfig, attrs);
SAME_FIELD(struct kvd_cu_launch, attribute_count, CUlaunchConfig, numAttrs);

/* What the header's macros make of the names without version: the symbol that we ask for. One is an
 * older version on purpose: cuEventElapsedTime, which every driver has, for the timings we take. */
#define TEXT(symbol)            #symbol
#define SAME_SYMBOL(name, ours) assert_string_equal(TEXT(name), ours)

static void symbols(void **state)
{
    (void)state;
    SAME_SYMBOL(cuDeviceGetUuid, "cuDeviceGetUuid_v2");
    SAME_SYMBOL(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2");
    SAME_SYMBOL(cuMemGetInfo, "cuMemGetInfo_v2");
    SAME_SYMBOL(cuMemAlloc, "cuMemAlloc_v2");
    SAME_SYMBOL(cuMemFree, "cuMemFree_v2");
    SAME_SYMBOL(cuMemHostRegister, "cuMemHostRegister_v2");
    SAME_SYMBOL(cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2");
    SAME_SYMBOL(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2");
    SAME_SYMBOL(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2");
    SAME_SYMBOL(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2");
    SAME_SYMBOL(cuStreamDestroy, "cuStreamDestroy_v2");
    SAME_SYMBOL(cuEventDestroy, "cuEventDestroy_v2");
    SAME_SYMBOL(cuStreamBeginCapture, "cuStreamBeginCapture_v2");
}
#else
static void symbols(void **state)
{
    (void)state;
    skip();
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(symbols)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
