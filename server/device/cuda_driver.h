/* The CUDA driver, found at run time: a table of its functions, filled by dlopen.
 *
 * Nothing of ours is linked against CUDA. Without a driver the daemon runs as it is, and whoever
 * wanted a GPU gets one line that says what is missing. The environment variable KVARN_CUDA_DRIVER
 * names another library in place of libcuda.so.1; it is meant for tests. */
#ifndef KVD_CUDA_DRIVER_H
#define KVD_CUDA_DRIVER_H

#include <stddef.h>

#include "server/device/cuda_abi.h"

struct kvd_cuda_driver {
    void *library;
    int version; /* major * 1000 + minor * 10 */
    int devices; /* at least 1 */
#define KVD_CUDA_FIELD(name, symbol, ...) kvd_cu_result (*name)(__VA_ARGS__);
    KVD_CU_FUNCTIONS(KVD_CUDA_FIELD)
#undef KVD_CUDA_FIELD
};

enum kvd_cuda_found {
    KVD_CUDA_FOUND,
    KVD_CUDA_NO_LIBRARY,  /* no driver is installed */
    KVD_CUDA_NO_SYMBOL,   /* a function is missing: no CUDA driver, or a very old one */
    KVD_CUDA_OLD_DRIVER,  /* before KVD_CU_VERSION_MIN */
    KVD_CUDA_INIT_FAILED, /* there, but it does not start */
    KVD_CUDA_NO_DEVICE,   /* starts, but has no device to offer */
};

enum { KVD_CUDA_TEXT_BYTES = 256 }; /* enough for any line written here; longer ones are cut */

/* Loads and initialises the driver. Unless FOUND: *driver is zero and why is one line for people,
 * without a line end. */
enum kvd_cuda_found kvd_cuda_driver_open(struct kvd_cuda_driver *driver,
                                         char why[KVD_CUDA_TEXT_BYTES]);
/* Fine on a zeroed struct. Contexts and memory taken through it are the caller's to give back. */
void kvd_cuda_driver_close(struct kvd_cuda_driver *driver);

/* "WHAT: CUDA_ERROR_OUT_OF_MEMORY (2), out of memory"; gives text. */
const char *kvd_cuda_explain(const struct kvd_cuda_driver *driver, const char *what,
                             kvd_cu_result result, char text[KVD_CUDA_TEXT_BYTES]);

#endif
