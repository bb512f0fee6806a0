/* The part of the CUDA driver's binary interface that we call, in our own words.
 *
 * With these the CUDA backend compiles on machines that have no CUDA toolkit, and its tests may
 * include the vendor's header beside this one (tests/server/test_cuda_abi.c compares the two where
 * that header is found). Numbers and layouts are those of CUDA 13. */
#ifndef KVD_CUDA_ABI_H
#define KVD_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

#define KVD_CU_VERSION_MIN 13000 /* major * 1000 + minor * 10, as the driver says it */

typedef uint32_t kvd_cu_result; /* one of enum kvd_cu_results, or one that we do not name */
typedef int kvd_cu_device;      /* ordinal */
typedef unsigned long long kvd_cu_address;
typedef unsigned long long kvd_cu_memory; /* physical memory, of cuMemCreate */
typedef struct kvd_cu_context_tag *kvd_cu_context;
typedef struct kvd_cu_stream_tag *kvd_cu_stream;
typedef struct kvd_cu_event_tag *kvd_cu_event;
typedef struct kvd_cu_library_tag *kvd_cu_library;
typedef struct kvd_cu_kernel_tag *kvd_cu_kernel;
typedef struct kvd_cu_function_tag *kvd_cu_function;
typedef struct kvd_cu_graph_tag *kvd_cu_graph;
typedef struct kvd_cu_graph_exec_tag *kvd_cu_graph_exec;

enum kvd_cu_results {
    KVD_CU_SUCCESS = 0,
    KVD_CU_INVALID_VALUE = 1,
    KVD_CU_OUT_OF_MEMORY = 2,
    KVD_CU_NOT_INITIALIZED = 3,
    KVD_CU_DEINITIALIZED = 4,
    KVD_CU_STUB_LIBRARY = 34,
    KVD_CU_DEVICE_UNAVAILABLE = 46,
    KVD_CU_NO_DEVICE = 100,
    KVD_CU_INVALID_DEVICE = 101,
    KVD_CU_INVALID_IMAGE = 200,
    KVD_CU_INVALID_CONTEXT = 201,
    KVD_CU_NO_BINARY_FOR_GPU = 209,
    KVD_CU_ECC_UNCORRECTABLE = 214,
    KVD_CU_NVLINK_UNCORRECTABLE = 220,
    KVD_CU_CONTAINED = 226,
    KVD_CU_INVALID_HANDLE = 400,
    KVD_CU_NOT_FOUND = 500,
    KVD_CU_NOT_READY = 600,
    KVD_CU_ILLEGAL_ADDRESS = 700,
    KVD_CU_LAUNCH_OUT_OF_RESOURCES = 701,
    KVD_CU_LAUNCH_TIMEOUT = 702,
    KVD_CU_CONTEXT_IS_DESTROYED = 709,
    KVD_CU_ASSERT = 710,
    KVD_CU_HOST_MEMORY_ALREADY_REGISTERED = 712,
    KVD_CU_HOST_MEMORY_NOT_REGISTERED = 713,
    KVD_CU_HARDWARE_STACK_ERROR = 714,
    KVD_CU_ILLEGAL_INSTRUCTION = 715,
    KVD_CU_MISALIGNED_ADDRESS = 716,
    KVD_CU_INVALID_ADDRESS_SPACE = 717,
    KVD_CU_INVALID_PC = 718,
    KVD_CU_LAUNCH_FAILED = 719,
    KVD_CU_NOT_PERMITTED = 800,
    KVD_CU_NOT_SUPPORTED = 801,
    KVD_CU_SYSTEM_NOT_READY = 802,
    KVD_CU_MPS_CLIENT_TERMINATED = 810,
    KVD_CU_UNKNOWN = 999,
};

enum kvd_cu_device_attribute {
    KVD_CU_DEVICE_CLOCK_KHZ = 13,
    KVD_CU_DEVICE_MULTIPROCESSORS = 16,
    KVD_CU_DEVICE_PCI_BUS = 33,
    KVD_CU_DEVICE_PCI_DEVICE = 34,
    KVD_CU_DEVICE_L2_BYTES = 38,
    KVD_CU_DEVICE_PCI_DOMAIN = 50,
    KVD_CU_DEVICE_CAPABILITY_MAJOR = 75,
    KVD_CU_DEVICE_CAPABILITY_MINOR = 76,
    KVD_CU_DEVICE_SHARED_BYTES_MULTIPROCESSOR = 81,
    KVD_CU_DEVICE_SHARED_BYTES_BLOCK = 97, /* the most that a kernel may opt in to */
    KVD_CU_DEVICE_HOST_REGISTER = 99,
    KVD_CU_DEVICE_VIRTUAL_MEMORY = 102,
    KVD_CU_DEVICE_EXPORT_FD = 103,
};

enum kvd_cu_function_attribute {
    KVD_CU_FUNCTION_SHARED_BYTES = 1,
    KVD_CU_FUNCTION_LOCAL_BYTES = 3,
    KVD_CU_FUNCTION_REGISTERS = 4,
    KVD_CU_FUNCTION_DYNAMIC_SHARED_BYTES = 8,
    KVD_CU_FUNCTION_SHARED_CARVEOUT = 9,
};

enum kvd_cu_flags {
    KVD_CU_STREAM_NON_BLOCKING = 1,
    KVD_CU_EVENT_DEFAULT = 0,
    KVD_CU_EVENT_BLOCKING_SYNC = 1,
    KVD_CU_EVENT_DISABLE_TIMING = 2,
    KVD_CU_HOST_REGISTER_PORTABLE = 1,
    KVD_CU_HOST_REGISTER_DEVICE_MAP = 2,
    KVD_CU_CAPTURE_THREAD_LOCAL = 1,
    KVD_CU_GRANULARITY_MINIMUM = 0,
    KVD_CU_GRANULARITY_RECOMMENDED = 1,
    KVD_CU_ALLOCATION_PINNED = 1,
    KVD_CU_HANDLE_FD = 1,
    KVD_CU_LOCATION_DEVICE = 1,
    KVD_CU_ACCESS_READ = 1,
    KVD_CU_ACCESS_READ_WRITE = 3,
    KVD_CU_LAUNCH_COOPERATIVE = 2,
    KVD_CU_LAUNCH_PROGRAMMATIC_SERIALIZATION = 6,
};

struct kvd_cu_uuid {
    uint8_t bytes[16];
};

struct kvd_cu_location {
    uint32_t type; /* KVD_CU_LOCATION_* */
    int id;
};

struct kvd_cu_memory_properties {
    uint32_t type;    /* KVD_CU_ALLOCATION_* */
    uint32_t handles; /* KVD_CU_HANDLE_* */
    struct kvd_cu_location location;
    void *reserved_pointer;
    uint8_t compression, rdma;
    uint16_t usage;
    uint8_t reserved[4];
};

struct kvd_cu_access {
    struct kvd_cu_location location;
    uint32_t flags; /* KVD_CU_ACCESS_* */
};

struct kvd_cu_launch_attribute {
    uint32_t id; /* KVD_CU_LAUNCH_* */
    uint32_t reserved;
    union {
        int on;
        uint64_t size[8];
    } value;
};

struct kvd_cu_launch {
    uint32_t grid[3], block[3];
    uint32_t shared_bytes; /* dynamic */
    kvd_cu_stream stream;
    struct kvd_cu_launch_attribute *attributes;
    uint32_t attribute_count;
};

/* X(name in our table, symbol of the driver, its parameters...); every function gives a
 * kvd_cu_result. memory_export writes an int; memory_import takes the descriptor itself as pointer.
 */
#define KVD_CU_DRIVER_FUNCTIONS(X)                                                                 \
    X(init, cuInit, unsigned flags)                                                                \
    X(driver_version, cuDriverGetVersion, int *version)                                            \
    X(device_count, cuDeviceGetCount, int *count)                                                  \
    X(error_name, cuGetErrorName, kvd_cu_result result, const char **name)                         \
    X(error_string, cuGetErrorString, kvd_cu_result result, const char **text)

#define KVD_CU_DEVICE_FUNCTIONS(X)                                                                 \
    X(device_get, cuDeviceGet, kvd_cu_device *device, int ordinal)                                 \
    X(device_name, cuDeviceGetName, char *name, int bytes, kvd_cu_device device)                   \
    X(device_uuid, cuDeviceGetUuid_v2, struct kvd_cu_uuid *uuid, kvd_cu_device device)             \
    X(device_attribute, cuDeviceGetAttribute, int *value, enum kvd_cu_device_attribute attribute,  \
      kvd_cu_device device)                                                                        \
    X(context_retain, cuDevicePrimaryCtxRetain, kvd_cu_context *context, kvd_cu_device device)     \
    X(context_release, cuDevicePrimaryCtxRelease_v2, kvd_cu_device device)                         \
    X(context_set, cuCtxSetCurrent, kvd_cu_context context)                                        \
    X(context_synchronize, cuCtxSynchronize, void)                                                 \
    X(memory_info, cuMemGetInfo_v2, size_t *free, size_t *total)

#define KVD_CU_MEMORY_FUNCTIONS(X)                                                                 \
    X(memory_granularity, cuMemGetAllocationGranularity, size_t *bytes,                            \
      const struct kvd_cu_memory_properties *properties, uint32_t option)                          \
    X(memory_create, cuMemCreate, kvd_cu_memory *memory, size_t bytes,                             \
      const struct kvd_cu_memory_properties *properties, unsigned long long flags)                 \
    X(memory_release, cuMemRelease, kvd_cu_memory memory)                                          \
    X(memory_export, cuMemExportToShareableHandle, void *fd, kvd_cu_memory memory,                 \
      uint32_t handle_type, unsigned long long flags)                                              \
    X(memory_import, cuMemImportFromShareableHandle, kvd_cu_memory *memory, void *fd,              \
      uint32_t handle_type)                                                                        \
    X(address_reserve, cuMemAddressReserve, kvd_cu_address *address, size_t bytes,                 \
      size_t alignment, kvd_cu_address wanted, unsigned long long flags)                           \
    X(address_free, cuMemAddressFree, kvd_cu_address address, size_t bytes)                        \
    X(memory_map, cuMemMap, kvd_cu_address address, size_t bytes, size_t offset,                   \
      kvd_cu_memory memory, unsigned long long flags)                                              \
    X(memory_unmap, cuMemUnmap, kvd_cu_address address, size_t bytes)                              \
    X(memory_access, cuMemSetAccess, kvd_cu_address address, size_t bytes,                         \
      const struct kvd_cu_access *access, size_t count)                                            \
    X(memory_alloc, cuMemAlloc_v2, kvd_cu_address *address, size_t bytes)                          \
    X(memory_free, cuMemFree_v2, kvd_cu_address address)                                           \
    X(host_alloc, cuMemHostAlloc, void **at, size_t bytes, unsigned flags)                         \
    X(host_free, cuMemFreeHost, void *at)                                                          \
    X(host_register, cuMemHostRegister_v2, void *at, size_t bytes, unsigned flags)                 \
    X(host_unregister, cuMemHostUnregister, void *at)                                              \
    X(host_address, cuMemHostGetDevicePointer_v2, kvd_cu_address *address, void *at, unsigned flags)

#define KVD_CU_STREAM_FUNCTIONS(X)                                                                 \
    X(copy_to_device, cuMemcpyHtoDAsync_v2, kvd_cu_address to, const void *from, size_t bytes,     \
      kvd_cu_stream stream)                                                                        \
    X(copy_to_host, cuMemcpyDtoHAsync_v2, void *to, kvd_cu_address from, size_t bytes,             \
      kvd_cu_stream stream)                                                                        \
    X(copy_on_device, cuMemcpyDtoDAsync_v2, kvd_cu_address to, kvd_cu_address from, size_t bytes,  \
      kvd_cu_stream stream)                                                                        \
    X(set_bytes, cuMemsetD8Async, kvd_cu_address at, unsigned char value, size_t count,            \
      kvd_cu_stream stream)                                                                        \
    X(set_words, cuMemsetD32Async, kvd_cu_address at, unsigned value, size_t count,                \
      kvd_cu_stream stream)                                                                        \
    X(stream_create, cuStreamCreate, kvd_cu_stream *stream, unsigned flags)                        \
    X(stream_destroy, cuStreamDestroy_v2, kvd_cu_stream stream)                                    \
    X(stream_query, cuStreamQuery, kvd_cu_stream stream)                                           \
    X(stream_synchronize, cuStreamSynchronize, kvd_cu_stream stream)                               \
    X(stream_wait, cuStreamWaitEvent, kvd_cu_stream stream, kvd_cu_event event, unsigned flags)    \
    X(event_create, cuEventCreate, kvd_cu_event *event, unsigned flags)                            \
    X(event_destroy, cuEventDestroy_v2, kvd_cu_event event)                                        \
    X(event_record, cuEventRecord, kvd_cu_event event, kvd_cu_stream stream)                       \
    X(event_query, cuEventQuery, kvd_cu_event event)                                               \
    X(event_synchronize, cuEventSynchronize, kvd_cu_event event)                                   \
    X(event_elapsed, cuEventElapsedTime, float *milliseconds, kvd_cu_event begin,                  \
      kvd_cu_event end)                                                                            \
    X(capture_begin, cuStreamBeginCapture_v2, kvd_cu_stream stream, uint32_t mode)                 \
    X(capture_end, cuStreamEndCapture, kvd_cu_stream stream, kvd_cu_graph *graph)                  \
    X(graph_instantiate, cuGraphInstantiateWithFlags, kvd_cu_graph_exec *exec, kvd_cu_graph graph, \
      unsigned long long flags)                                                                    \
    X(graph_launch, cuGraphLaunch, kvd_cu_graph_exec exec, kvd_cu_stream stream)                   \
    X(graph_exec_destroy, cuGraphExecDestroy, kvd_cu_graph_exec exec)                              \
    X(graph_destroy, cuGraphDestroy, kvd_cu_graph graph)

#define KVD_CU_KERNEL_FUNCTIONS(X)                                                                 \
    X(library_load, cuLibraryLoadData, kvd_cu_library *library, const void *image,                 \
      void *jit_options, void **jit_values, unsigned jit_count, void *options, void **values,      \
      unsigned count)                                                                              \
    X(library_unload, cuLibraryUnload, kvd_cu_library library)                                     \
    X(library_kernel, cuLibraryGetKernel, kvd_cu_kernel *kernel, kvd_cu_library library,           \
      const char *name)                                                                            \
    X(kernel_function, cuKernelGetFunction, kvd_cu_function *function, kvd_cu_kernel kernel)       \
    X(kernel_attribute, cuKernelGetAttribute, int *value,                                          \
      enum kvd_cu_function_attribute attribute, kvd_cu_kernel kernel, kvd_cu_device device)        \
    X(kernel_set_attribute, cuKernelSetAttribute, enum kvd_cu_function_attribute attribute,        \
      int value, kvd_cu_kernel kernel, kvd_cu_device device)                                       \
    X(kernel_blocks, cuOccupancyMaxActiveBlocksPerMultiprocessor, int *blocks,                     \
      kvd_cu_function function, int threads, size_t shared_bytes)                                  \
    X(launch, cuLaunchKernelEx, const struct kvd_cu_launch *launch, kvd_cu_function function,      \
      void **arguments, void **extra)

#define KVD_CU_FUNCTIONS(X)                                                                        \
    KVD_CU_DRIVER_FUNCTIONS(X)                                                                     \
    KVD_CU_DEVICE_FUNCTIONS(X)                                                                     \
    KVD_CU_MEMORY_FUNCTIONS(X)                                                                     \
    KVD_CU_STREAM_FUNCTIONS(X)                                                                     \
    KVD_CU_KERNEL_FUNCTIONS(X)

#endif
