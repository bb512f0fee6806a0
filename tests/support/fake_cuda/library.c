/* Images, kernels and launches. Images are not looked at: kernels are known by name. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/fake_cuda/stream.h"

enum { KERNELS = 512, SHARED_PLAIN = 48 << 10, SHARED_MOST = 227 << 10, THREADS_MOST = 1024 };

struct kvd_cu_library_tag {
    const void *image;
};

/* What the caller holds as a kernel and as a function. */
struct fake_kernel {
    char name[FAKE_NAME_BYTES];
    fake_kernel_body *body;
    uint32_t argument_bytes, shared_most;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_kernel kernels[KERNELS];

const char *fake_kernel_name(const struct fake_kernel *kernel)
{
    return kernel->name;
}

kvd_cu_result fake_kernel_run(const struct fake_kernel *kernel, const void *arguments,
                              uint32_t grid)
{
    return kernel->body(kernel->name, arguments, grid);
}

/* NULL: nobody makes such a kernel. */
static struct fake_kernel *find(const char *name)
{
    struct fake_kernel *kernel = kernels;
    uint32_t bytes;
    fake_kernel_body *body = fake_kernel_body_of(name, &bytes);

    if (body == NULL || strlen(name) >= FAKE_NAME_BYTES)
        return NULL;
    pthread_mutex_lock(&lock);
    while (kernel < kernels + KERNELS && kernel->body != NULL && strcmp(kernel->name, name) != 0)
        kernel++;
    if (kernel < kernels + KERNELS && kernel->body == NULL) {
        *kernel = (struct fake_kernel){
            .body = body, .argument_bytes = bytes, .shared_most = SHARED_PLAIN};
        strcpy(kernel->name, name);
    }
    pthread_mutex_unlock(&lock);
    return kernel < kernels + KERNELS ? kernel : NULL;
}

kvd_cu_result cuLibraryLoadData(kvd_cu_library *library, const void *image, void *jit_options,
                                void **jit_values, unsigned jit_count, void *options, void **values,
                                unsigned count)
{
    kvd_cu_result result = fake_enter_allocation(__func__);

    (void)jit_options;
    (void)jit_values;
    (void)options;
    (void)values;
    if (result != KVD_CU_SUCCESS)
        return result;
    if (image == NULL || jit_count != 0 || count != 0)
        return KVD_CU_INVALID_VALUE;
    *library = malloc(sizeof(**library));
    if (*library == NULL)
        return KVD_CU_OUT_OF_MEMORY;
    (*library)->image = image;
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuLibraryUnload(kvd_cu_library library)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_INIT);

    if (result == KVD_CU_SUCCESS)
        free(library);
    return result;
}

kvd_cu_result cuLibraryGetKernel(kvd_cu_kernel *kernel, kvd_cu_library library, const char *name)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_INIT);

    if (result != KVD_CU_SUCCESS)
        return result;
    if (library == NULL || library->image == NULL)
        return KVD_CU_INVALID_HANDLE;
    *kernel = (kvd_cu_kernel)(void *)find(name);
    return *kernel != NULL ? KVD_CU_SUCCESS : KVD_CU_NOT_FOUND;
}

kvd_cu_result cuKernelGetFunction(kvd_cu_function *function, kvd_cu_kernel kernel)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);

    *function = (kvd_cu_function)(void *)kernel;
    return result;
}

kvd_cu_result cuKernelGetAttribute(int *value, enum kvd_cu_function_attribute attribute,
                                   kvd_cu_kernel kernel, kvd_cu_device device)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_INIT);
    const struct fake_kernel *known = (const void *)kernel;

    (void)device;
    if (result != KVD_CU_SUCCESS)
        return result;
    *value = attribute == KVD_CU_FUNCTION_REGISTERS              ? 64
             : attribute == KVD_CU_FUNCTION_DYNAMIC_SHARED_BYTES ? (int)known->shared_most
                                                                 : 0;
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuKernelSetAttribute(enum kvd_cu_function_attribute attribute, int value,
                                   kvd_cu_kernel kernel, kvd_cu_device device)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);
    struct fake_kernel *known = (void *)kernel;

    (void)device;
    if (result != KVD_CU_SUCCESS)
        return result;
    if (attribute == KVD_CU_FUNCTION_SHARED_CARVEOUT)
        return KVD_CU_SUCCESS;
    if (attribute != KVD_CU_FUNCTION_DYNAMIC_SHARED_BYTES || value < 0 || value > SHARED_MOST)
        return KVD_CU_INVALID_VALUE;
    known->shared_most = (uint32_t)value;
    return KVD_CU_SUCCESS;
}

kvd_cu_result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, kvd_cu_function function,
                                                          int threads, size_t shared_bytes)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);

    if (result != KVD_CU_SUCCESS)
        return result;
    if (function == NULL || threads < 1 || threads > THREADS_MOST)
        return KVD_CU_INVALID_VALUE;
    *blocks = shared_bytes > SHARED_MOST ? 0 : 1;
    return KVD_CU_SUCCESS;
}

static bool is_launchable(const struct kvd_cu_launch *launch, const struct fake_kernel *kernel)
{
    uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];

    return threads > 0 && threads <= THREADS_MOST && launch->grid[0] > 0 && launch->grid[1] > 0 &&
           launch->grid[2] > 0 && launch->grid[1] <= UINT16_MAX && launch->grid[2] <= UINT16_MAX &&
           launch->grid[0] <= INT32_MAX && launch->shared_bytes <= kernel->shared_most;
}

kvd_cu_result cuLaunchKernelEx(const struct kvd_cu_launch *launch, kvd_cu_function function,
                               void **arguments, void **extra)
{
    kvd_cu_result result = fake_enter(__func__, FAKE_NEEDS_CONTEXT);
    const struct fake_kernel *kernel = (const void *)function;
    struct fake_op op = {.kind = FAKE_OP_KERNEL, .kernel = kernel};

    if (result != KVD_CU_SUCCESS)
        return result;
    if (kernel == NULL || arguments == NULL || extra != NULL || !is_launchable(launch, kernel))
        return KVD_CU_INVALID_VALUE;
    op.grid = launch->grid[0];
    memcpy(&op.arguments, arguments[0], kernel->argument_bytes);
    return fake_stream_queue(launch->stream, &op);
}
