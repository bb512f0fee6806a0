/* A CUDA driver that goes wrong on demand: stands before the real one through KVARN_CUDA_DRIVER.
 *
 * Linked to libcuda.so.1 and defines one of its functions: a symbol looked up here is found there
 * unless it is the launch. When the file that KVARN_BAD_CUDA names appears, the next launch takes
 * it away and puts a kernel before the real one on the same stream: "illegal", which writes where
 * nothing is mapped, or "hang", which never ends. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/images.h"
#include "server/device/cuda_abi.h"

#define DECLARE(name, symbol, ...) typedef kvd_cu_result symbol##_type(__VA_ARGS__);
KVD_CU_FUNCTIONS(DECLARE)
#undef DECLARE

__attribute__((visibility("default"))) cuLaunchKernelEx_type cuLaunchKernelEx;

static void *driver(const char *symbol)
{
    static void *library;

    if (library == NULL)
        library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *at = library != NULL ? dlsym(library, symbol) : NULL;
    if (at == NULL) {
        fprintf(stderr, "bad_cuda: no %s: %s\n", symbol, dlerror());
        abort();
    }
    return at;
}

/* dlsym gives functions as object pointers; their bytes are what POSIX says to take over */
#define REAL(symbol)                                                                               \
    symbol##_type *real_##symbol;                                                                  \
    do {                                                                                           \
        void *at_ = driver(#symbol);                                                               \
        memcpy(&real_##symbol, &at_, sizeof(at_));                                                 \
    } while (0)

/* What the file asks for, once; NULL: nothing. */
static const char *asked(void)
{
    static char text[16], taken[4096];
    const char *path = getenv("KVARN_BAD_CUDA");

    if (path == NULL || access(path, F_OK) != 0)
        return NULL;
    snprintf(taken, sizeof(taken), "%s.taken", path);
    FILE *file = rename(path, taken) == 0 ? fopen(taken, "r") : NULL;
    if (file == NULL)
        return NULL;
    const char *line = fgets(text, sizeof(text), file);
    fclose(file);
    return line;
}

static void launch_bad(const char *kind, kvd_cu_stream stream)
{
    kvd_cu_library library;
    kvd_cu_kernel kernel;
    kvd_cu_function function;
    kvd_cu_address never = 0;
    void *arguments[] = {&never};
    const struct kvd_cu_launch how = {.grid = {1, 1, 1}, .block = {1, 1, 1}, .stream = stream};

    REAL(cuLibraryLoadData);
    REAL(cuLibraryGetKernel);
    REAL(cuKernelGetFunction);
    REAL(cuLaunchKernelEx);
    kvd_cu_result result =
        real_cuLibraryLoadData(&library, kvk_cuda_images[0].begin, NULL, NULL, 0, NULL, NULL, 0);
    if (result == KVD_CU_SUCCESS)
        result = real_cuLibraryGetKernel(&kernel, library,
                                         strcmp(kind, "hang") == 0 ? "bad_hang" : "bad_illegal");
    if (result == KVD_CU_SUCCESS)
        result = real_cuKernelGetFunction(&function, kernel);
    if (result == KVD_CU_SUCCESS)
        result = real_cuLaunchKernelEx(&how, function, arguments, NULL);
    if (result != KVD_CU_SUCCESS) {
        fprintf(stderr, "bad_cuda: the bad kernel cannot be launched: %u\n", result);
        abort();
    }
}

kvd_cu_result cuLaunchKernelEx(const struct kvd_cu_launch *launch, kvd_cu_function function,
                               void **arguments, void **extra)
{
    const char *kind = asked();

    REAL(cuLaunchKernelEx);
    if (kind != NULL)
        launch_bad(kind, launch->stream);
    return real_cuLaunchKernelEx(launch, function, arguments, extra);
}
