/* Inside the stand-in driver. */
#ifndef FAKE_CUDA_INSIDE_H
#define FAKE_CUDA_INSIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/args.h"
#include "server/device/cuda_abi.h"
#include "support/fake_cuda/fake_cuda.h"

/* The functions that the real one exports, as our table declares them. */
#define FAKE_EXPORT(name, symbol, ...)                                                             \
    __attribute__((visibility("default"))) kvd_cu_result symbol(__VA_ARGS__);
KVD_CU_FUNCTIONS(FAKE_EXPORT)
#undef FAKE_EXPORT

enum { FAKE_GRANULE_BYTES = 2 << 20, FAKE_NAME_BYTES = 64, FAKE_MULTIPROCESSORS = 132 };

/* ---- driver.c ---- */

extern struct fake_cuda_control *fake_control;

enum fake_need {
    FAKE_NEEDS_NOTHING,
    FAKE_NEEDS_INIT,
    FAKE_NEEDS_CONTEXT, /* current in this thread */
};

/* At the head of every exported function: counts the visit; gives what the function must return at
 * once, or SUCCESS. FAKE_ALLOCATES counts as "allocation" too. */
kvd_cu_result fake_enter(const char *function, enum fake_need need);
kvd_cu_result fake_enter_allocation(const char *function);
/* The fault that is due at this kernel, or SUCCESS. */
kvd_cu_result fake_kernel_fault(const char *kernel);
/* The context is broken from now on; the first result stays. */
void fake_break(kvd_cu_result result);
kvd_cu_result fake_broken(void); /* SUCCESS: no */
/* A line on standard error, and the end of the process. */
_Noreturn void fake_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- memory.c, physical.c, host.c ---- */

struct fake_physical {
    int fd;
    uint64_t bytes, granules; /* granules: mapped */
    bool released;
};

/* Device memory, out of what the device has. */
bool fake_bytes_take(uint64_t bytes);
void fake_bytes_give(uint64_t bytes);
bool fake_is_granular(uint64_t bytes);
/* Frees it when it is released and nowhere mapped. */
void fake_physical_drop(struct fake_physical *memory);

/* Where bytes [address, address + bytes) of device memory, or of host memory that the device maps,
 * stand in this process. NULL: not all of them are accessible. */
uint8_t *fake_at(uint64_t address, uint64_t bytes);

/* Says what device addresses [base, base + bytes) mean. False: no room for more areas. */
bool fake_area_add(uint64_t base, uint8_t *at, uint64_t bytes, uint32_t kind);
/* Takes the area that begins at base and is of this kind; its bytes, 0: none. */
uint64_t fake_area_take(uint64_t base, uint32_t kind, uint8_t **at);
enum fake_area_kind { FAKE_RESERVED = 1, FAKE_ALLOCATED, FAKE_HOST, FAKE_REGISTERED };

/* ---- stream.c ---- */

/* Whoever waits looks again. Without any lock held. */
void fake_streams_wake(void);

/* ---- library.c, kernel_*.c ---- */

struct fake_kernel;
const char *fake_kernel_name(const struct fake_kernel *kernel);
/* SUCCESS, or what the kernel ends with. arguments: the kernel's struct of kernels/cuda/args.h. */
kvd_cu_result fake_kernel_run(const struct fake_kernel *kernel, const void *arguments,
                              uint32_t grid);

typedef kvd_cu_result fake_kernel_body(const char *name, const void *arguments, uint32_t grid);
/* What a kernel of this name does, and the size of its arguments; NULL: there is none. */
fake_kernel_body *fake_kernel_body_of(const char *name, uint32_t *argument_bytes);
fake_kernel_body fake_attend;

/* What every kernel asks first: whether `shape` is the one that its name says, if it says one. */
bool fake_name_fits(const char *name, const struct kvk_shape *shape);
/* Memory of one launch; ends the process when there is none. 64-byte aligned. */
void *fake_memory(size_t bytes);
/* Keeps the smaller one of the fault and this. False: not accessible. */
bool fake_fault_keep(uint64_t faults, uint32_t index, uint64_t fault);

#endif
