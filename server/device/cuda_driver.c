/* Symbols are asked for by their versioned names, so a driver newer than this file changes nothing
 * under us. */
#include "server/device/cuda_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *library_name(void)
{
    const char *name = getenv("KVARN_CUDA_DRIVER");

    return name != NULL && name[0] != '\0' ? name : "libcuda.so.1";
}

/* The name of the first function that the library lacks, or NULL. */
static const char *fill(struct kvd_cuda_driver *driver)
{
    void *at;

    /* dlsym gives functions as object pointers; their bytes are what POSIX says to take over */
#define FILL(name, symbol, ...)                                                                    \
    at = dlsym(driver->library, #symbol);                                                          \
    if (at == NULL)                                                                                \
        return #symbol;                                                                            \
    memcpy(&driver->name, &at, sizeof(at));
    KVD_CU_FUNCTIONS(FILL)
#undef FILL
    return NULL;
}

static enum kvd_cuda_found start(struct kvd_cuda_driver *driver, char *why)
{
    kvd_cu_result result = driver->driver_version(&driver->version);

    if (result != KVD_CU_SUCCESS) {
        kvd_cuda_explain(driver, "the CUDA driver does not tell its version", result, why);
        return KVD_CUDA_INIT_FAILED;
    }
    if (driver->version < KVD_CU_VERSION_MIN) {
        snprintf(why, KVD_CUDA_TEXT_BYTES,
                 "the NVIDIA driver supports CUDA %d.%d; kvarnd needs one for CUDA %d.%d or later",
                 driver->version / 1000, driver->version % 1000 / 10, KVD_CU_VERSION_MIN / 1000,
                 KVD_CU_VERSION_MIN % 1000 / 10);
        return KVD_CUDA_OLD_DRIVER;
    }
    result = driver->init(0);
    if (result == KVD_CU_SUCCESS)
        result = driver->device_count(&driver->devices);
    if (result == KVD_CU_NO_DEVICE || (result == KVD_CU_SUCCESS && driver->devices < 1)) {
        snprintf(why, KVD_CUDA_TEXT_BYTES,
                 "the NVIDIA driver is there, but offers no GPU (none fitted, none passed to this "
                 "container, or CUDA_VISIBLE_DEVICES hides it)");
        return KVD_CUDA_NO_DEVICE;
    }
    if (result != KVD_CU_SUCCESS) {
        kvd_cuda_explain(driver, "the CUDA driver does not start", result, why);
        return KVD_CUDA_INIT_FAILED;
    }
    return KVD_CUDA_FOUND;
}

enum kvd_cuda_found kvd_cuda_driver_open(struct kvd_cuda_driver *driver,
                                         char why[KVD_CUDA_TEXT_BYTES])
{
    const char *name = library_name();
    enum kvd_cuda_found found;

    *driver = (struct kvd_cuda_driver){.library = dlopen(name, RTLD_NOW | RTLD_LOCAL)};
    if (driver->library == NULL) {
        const char *error = dlerror();
        snprintf(why, KVD_CUDA_TEXT_BYTES, "no CUDA driver: %s", error != NULL ? error : name);
        return KVD_CUDA_NO_LIBRARY;
    }
    const char *missing = fill(driver);
    if (missing != NULL) {
        snprintf(why, KVD_CUDA_TEXT_BYTES, "%s has no %s; kvarnd needs a driver for CUDA %d.%d",
                 name, missing, KVD_CU_VERSION_MIN / 1000, KVD_CU_VERSION_MIN % 1000 / 10);
        found = KVD_CUDA_NO_SYMBOL;
    } else {
        found = start(driver, why);
    }
    if (found != KVD_CUDA_FOUND)
        kvd_cuda_driver_close(driver);
    return found;
}

void kvd_cuda_driver_close(struct kvd_cuda_driver *driver)
{
    if (driver->library != NULL)
        dlclose(driver->library);
    *driver = (struct kvd_cuda_driver){.library = NULL};
}

const char *kvd_cuda_explain(const struct kvd_cuda_driver *driver, const char *what,
                             kvd_cu_result result, char text[KVD_CUDA_TEXT_BYTES])
{
    const char *name = NULL, *words = NULL;

    if (driver->error_name(result, &name) != KVD_CU_SUCCESS || name == NULL)
        name = "unknown CUDA error";
    if (driver->error_string(result, &words) != KVD_CU_SUCCESS || words == NULL)
        words = "the driver has no words for it";
    snprintf(text, KVD_CUDA_TEXT_BYTES, "%s: %s (%u), %s", what, name, result, words);
    return text;
}
