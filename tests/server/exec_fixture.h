/* An executor over two plain buffers, and helpers that lay out rows, slots and jobs in them. */
#ifndef KVARN_TEST_EXEC_FIXTURE_H
#define KVARN_TEST_EXEC_FIXTURE_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "kernels/tile.h"
#include "server/device/executor.h"
#include "server/device/job.h"
#include "support/rng.h"

enum { EXEC_STAGING_BYTES = 48 << 20, EXEC_POOL_BYTES = 48 << 20 };

struct exec_fixture {
    const struct kvk_table *table;
    struct kvd_executor *executor;
    uint8_t *staging, *pool;
    uint64_t staging_used, pool_used;
    struct kvk_shape shape;
    uint32_t layers, heads;
    struct rng rng;
};

/* Same seed, same rows, whatever the number of threads. */
struct exec_fixture *exec_open(uint32_t threads, uint64_t seed);
void exec_close(struct exec_fixture *f);

uint8_t *exec_staging(struct exec_fixture *f, size_t bytes); /* 64-byte aligned, zeroed */
uint8_t *exec_pool(struct exec_fixture *f, size_t bytes);
struct kvd_place exec_place(const struct exec_fixture *f, const void *at);

/* [layers][tokens][heads][dim] random fp16 of about unit size. */
uint8_t *exec_rows(struct exec_fixture *f, uint32_t layers, uint32_t tokens);
struct kvd_strides exec_strides(const struct exec_fixture *f, uint32_t tokens);
size_t exec_cell_bytes(const struct exec_fixture *f, uint32_t kind);
size_t exec_slot_bytes(const struct exec_fixture *f, uint32_t kind);

struct kvd_job *exec_job(struct exec_fixture *f, uint32_t op, uint32_t count, size_t entry_bytes,
                         size_t tail_bytes);
/* Runs it alone; fails the test when the executor refuses it. */
void exec_run(struct exec_fixture *f, struct kvd_job *job);
/* A new slot with a compressed block of random rows. */
uint8_t *exec_block(struct exec_fixture *f, uint32_t kind);

#endif
