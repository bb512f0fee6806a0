/* Compress, decompress, rows, copies: against the kernels called one by one, faults by name, waves
 * larger than the item table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "server/exec_fixture.h"

static const uint16_t NAN_BITS = 0x7e00, INF_BITS = 0xfc00;

static void put_of(struct exec_fixture *f, struct kvd_put *put, const uint8_t *k, const uint8_t *v,
                   const uint8_t *slot, uint32_t kind)
{
    *put = (struct kvd_put){.k = exec_place(f, k),
                            .v = exec_place(f, v),
                            .strides = exec_strides(f, f->shape.group),
                            .slot = exec_place(f, slot),
                            .kind = kind,
                            .status = 99,
                            .digest = 99};
}

/* One record by one call of the kernel. */
static void expect_record(struct exec_fixture *f, const uint8_t *k, const uint8_t *v,
                          uint32_t layer, uint32_t head, uint8_t *record)
{
    struct kvd_strides s = exec_strides(f, f->shape.group);
    uint64_t at = layer * s.layer + head * s.head;
    struct kvk_compress op = {.shape = f->shape,
                              .k = k + at,
                              .v = v + at,
                              .k_token_stride_bytes = s.token,
                              .v_token_stride_bytes = s.token,
                              .record = record,
                              .scratch = exec_staging(f, kvk_scratch_bytes(&f->shape))};
    assert_int_equal(f->table->compress(&op), KVARN_OK);
}

static void compress_writes_the_kernels_bytes(void **state)
{
    (void)state;
    enum { BLOCKS = 5 };
    for (uint32_t threads = 1; threads <= 4; threads += 3) {
        struct exec_fixture *f = exec_open(threads, 11);
        size_t cell = exec_cell_bytes(f, KVARN_BLOCK_TILE);
        struct kvd_job *job = exec_job(f, KVD_JOB_COMPRESS, BLOCKS, sizeof(struct kvd_put), 0);
        struct kvd_put *put = (struct kvd_put *)(job + 1);
        uint8_t *k[BLOCKS], *v[BLOCKS], *slot[BLOCKS], *record = exec_staging(f, cell);
        for (int b = 0; b < BLOCKS; b++) {
            k[b] = exec_rows(f, f->layers, f->shape.group);
            v[b] = exec_rows(f, f->layers, f->shape.group);
            slot[b] = exec_pool(f, exec_slot_bytes(f, KVARN_BLOCK_TILE));
            put_of(f, &put[b], k[b], v[b], slot[b], KVARN_BLOCK_TILE);
        }
        exec_run(f, job);
        for (int b = 0; b < BLOCKS; b++) {
            assert_int_equal(put[b].status, KVARN_OK);
            assert_int_equal(put[b].fault.tensor, 0);
            assert_int_equal(put[b].digest,
                             kvk_digest(0, slot[b], exec_slot_bytes(f, KVARN_BLOCK_TILE)));
            for (uint32_t unit = 0; unit < f->layers * f->heads; unit++) {
                expect_record(f, k[b], v[b], unit / f->heads, unit % f->heads, record);
                assert_memory_equal(slot[b] + unit * cell, record, cell);
            }
        }
        exec_close(f);
    }
}

static void exact_slot_is_k_then_v_and_seals_to_the_same_tile(void **state)
{
    (void)state;
    struct exec_fixture *f = exec_open(2, 12);
    uint64_t row = f->shape.dim * 2u, cell = exec_cell_bytes(f, KVARN_BLOCK_EXACT);
    uint8_t *k = exec_rows(f, f->layers, f->shape.group);
    uint8_t *v = exec_rows(f, f->layers, f->shape.group);
    uint8_t *exact = exec_pool(f, exec_slot_bytes(f, KVARN_BLOCK_EXACT));
    uint8_t *tile = exec_pool(f, exec_slot_bytes(f, KVARN_BLOCK_TILE));
    uint8_t *sealed = exec_pool(f, exec_slot_bytes(f, KVARN_BLOCK_TILE));
    struct kvd_strides s = exec_strides(f, f->shape.group);
    struct kvd_job *job = exec_job(f, KVD_JOB_COMPRESS, 2, sizeof(struct kvd_put), 0);
    struct kvd_put *put = (struct kvd_put *)(job + 1);
    put_of(f, &put[0], k, v, exact, KVARN_BLOCK_EXACT);
    put_of(f, &put[1], k, v, tile, KVARN_BLOCK_TILE);
    exec_run(f, job);
    assert_int_equal(put[0].digest, kvk_digest(0, exact, exec_slot_bytes(f, KVARN_BLOCK_EXACT)));
    for (uint32_t l = 0; l < f->layers; l++)
        for (uint32_t h = 0; h < f->heads; h++)
            for (uint32_t t = 0; t < f->shape.group; t++) {
                const uint8_t *at = exact + (l * f->heads + h) * cell + t * row;
                uint64_t from = l * s.layer + t * s.token + h * s.head;
                assert_memory_equal(at, k + from, row);
                assert_memory_equal(at + f->shape.group * row, v + from, row);
            }

    job = exec_job(f, KVD_JOB_COMPRESS, 1, sizeof(struct kvd_put), 0);
    put = (struct kvd_put *)(job + 1);
    put_of(f, put, exact, exact + f->shape.group * row, sealed, KVARN_BLOCK_TILE);
    put->strides = (struct kvd_strides){.layer = f->heads * cell, .token = row, .head = cell};
    exec_run(f, job);
    assert_int_equal(put->status, KVARN_OK);
    assert_memory_equal(sealed, tile, exec_slot_bytes(f, KVARN_BLOCK_TILE));
    exec_close(f);
}

static void plant(struct exec_fixture *f, uint8_t *rows, uint32_t l, uint32_t t, uint32_t h,
                  uint32_t c, uint16_t bits)
{
    struct kvd_strides s = exec_strides(f, f->shape.group);
    memcpy(rows + l * s.layer + t * s.token + h * s.head + c * 2, &bits, 2);
}

static void assert_fault(const struct kvd_fault *fault, char tensor, uint32_t l, uint32_t h,
                         uint32_t t, uint32_t c)
{
    assert_int_equal(fault->tensor, tensor);
    assert_int_equal(fault->layer, l);
    assert_int_equal(fault->head, h);
    assert_int_equal(fault->token, t);
    assert_int_equal(fault->channel, c);
}

static void non_finite_input_is_named(void **state)
{
    (void)state;
    for (uint32_t kind = KVARN_BLOCK_TILE; kind <= KVARN_BLOCK_EXACT; kind++) {
        struct exec_fixture *f = exec_open(4, 13);
        uint8_t *k = exec_rows(f, f->layers, f->shape.group);
        uint8_t *v = exec_rows(f, f->layers, f->shape.group);
        uint8_t *clean = exec_rows(f, f->layers, f->shape.group);
        plant(f, v, 1, 7, 1, 33, NAN_BITS);
        plant(f, v, 2, 3, 0, 1, INF_BITS); /* a later one: not the one told */
        struct kvd_job *job = exec_job(f, KVD_JOB_COMPRESS, 3, sizeof(struct kvd_put), 0);
        struct kvd_put *put = (struct kvd_put *)(job + 1);
        uint8_t *slots = exec_pool(f, 3 * exec_slot_bytes(f, kind));
        for (size_t i = 0; i < 3; i++)
            put_of(f, &put[i], k, i == 1 ? v : clean, slots + i * exec_slot_bytes(f, kind), kind);
        exec_run(f, job);
        assert_int_equal(put[0].status, KVARN_OK);
        assert_int_equal(put[2].status, KVARN_OK);
        assert_int_equal(put[1].status, KVARN_NON_FINITE);
        assert_fault(&put[1].fault, 'v', 1, 1, 7, 33);
        assert_int_equal(put[1].digest, 0);
        exec_close(f);
    }
}

static void decompress_gives_layers_at_any_stride(void **state)
{
    (void)state;
    struct exec_fixture *f = exec_open(3, 14);
    uint64_t row = f->shape.dim * 2u;
    uint32_t group = f->shape.group;
    size_t cell = exec_cell_bytes(f, KVARN_BLOCK_TILE);
    uint8_t *slot = exec_block(f, KVARN_BLOCK_TILE);
    uint8_t *k1 = exec_staging(f, group * row), *v1 = exec_staging(f, group * row);
    /* layers 1 and 2, [token][layer][head] with a gap */
    struct kvd_strides s = {.layer = 2 * row, .token = 5 * row, .head = row};
    uint8_t *k = exec_staging(f, group * s.token), *v = exec_staging(f, group * s.token);
    struct kvd_job *job = exec_job(f, KVD_JOB_DECOMPRESS, 1, sizeof(struct kvd_get), 0);
    struct kvd_get *get = (struct kvd_get *)(job + 1);
    job->layer_begin = 1;
    job->layer_count = 2;
    *get = (struct kvd_get){.slot = exec_place(f, slot),
                            .kind = KVARN_BLOCK_TILE,
                            .k = exec_place(f, k),
                            .v = exec_place(f, v),
                            .strides = s};
    exec_run(f, job);
    assert_int_equal(get->status, KVARN_OK);
    for (uint32_t l = 0; l < 2; l++)
        for (uint32_t h = 0; h < f->heads; h++) {
            struct kvk_decompress op = {.shape = f->shape,
                                        .record = slot + ((l + 1) * f->heads + h) * cell,
                                        .k = k1,
                                        .v = v1,
                                        .k_token_stride_bytes = row,
                                        .v_token_stride_bytes = row,
                                        .scratch = exec_staging(f, kvk_scratch_bytes(&f->shape))};
            assert_int_equal(f->table->decompress(&op), KVARN_OK);
            for (uint32_t t = 0; t < group; t++) {
                uint64_t at = t * s.token + l * s.layer + h * s.head;
                assert_memory_equal(k + at, k1 + t * row, row);
                assert_memory_equal(v + at, v1 + t * row, row);
            }
        }
    for (uint32_t t = 0; t + 1 < group; t++) /* the gap is not written */
        for (uint64_t i = 0; i < row; i++)
            assert_int_equal(k[t * s.token + 4 * row + i], 0);
    exec_close(f);
}

static void rows_land_in_their_place(void **state)
{
    (void)state;
    struct exec_fixture *f = exec_open(2, 15);
    uint64_t row = f->shape.dim * 2u, cell = exec_cell_bytes(f, KVARN_BLOCK_EXACT);
    uint32_t group = f->shape.group, first = group - 5;
    uint8_t *slot = exec_pool(f, exec_slot_bytes(f, KVARN_BLOCK_EXACT));
    uint8_t *k = exec_rows(f, 2, 5), *v = exec_rows(f, 2, 5);
    struct kvd_strides s = exec_strides(f, 5);
    struct kvd_job *job = exec_job(f, KVD_JOB_WRITE_ROWS, 1, sizeof(struct kvd_write), 0);
    struct kvd_write *write = (struct kvd_write *)(job + 1);
    job->layer_begin = 1;
    job->layer_count = 2;
    *write = (struct kvd_write){.k = exec_place(f, k),
                                .v = exec_place(f, v),
                                .strides = s,
                                .slot = exec_place(f, slot),
                                .first_token = first,
                                .tokens = 5};
    exec_run(f, job);
    assert_int_equal(write->status, KVARN_OK);
    uint64_t written = 0;
    for (uint64_t i = 0; i < exec_slot_bytes(f, KVARN_BLOCK_EXACT); i += row)
        for (uint64_t j = 0; j < row; j++)
            if (slot[i + j] != 0) {
                written += row;
                break;
            }
    assert_int_equal(written, 2 * 5 * f->heads * 2 * row);
    for (uint32_t l = 0; l < 2; l++)
        for (uint32_t h = 0; h < f->heads; h++)
            for (uint32_t t = 0; t < 5; t++) {
                const uint8_t *at = slot + ((l + 1) * f->heads + h) * cell + (first + t) * row;
                uint64_t from = l * s.layer + t * s.token + h * s.head;
                assert_memory_equal(at, k + from, row);
                assert_memory_equal(at + group * row, v + from, row);
            }

    memcpy(k + s.layer + 3 * s.token + s.head + 10, &NAN_BITS, 2);
    exec_run(f, job);
    assert_int_equal(write->status, KVARN_NON_FINITE);
    assert_fault(&write->fault, 'k', 2, 1, 3, 5);
    write->tokens = 6; /* past the end of the slot */
    exec_run(f, job);
    assert_int_equal(write->status, KVARN_INTERNAL);
    exec_close(f);
}

static void copy_digests_and_checks(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {0, 1, 1000, (1 << 20) - 1, 1 << 20, (5 << 20) + 77};
    struct exec_fixture *f = exec_open(3, 16);
    uint8_t *src = exec_staging(f, 6 << 20), *dst = exec_pool(f, 6 << 20);
    for (size_t i = 0; i < 6 << 20; i++)
        src[i] = (uint8_t)rng_next(&f->rng);
    struct kvd_job *job = exec_job(f, KVD_JOB_COPY, 1, sizeof(struct kvd_copy), 0);
    struct kvd_copy *copy = (struct kvd_copy *)(job + 1);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        memset(dst, 0xee, 6 << 20);
        *copy = (struct kvd_copy){
            .dst = exec_place(f, dst), .src = exec_place(f, src), .bytes = sizes[i]};
        exec_run(f, job);
        assert_int_equal(copy->status, KVARN_OK);
        assert_int_equal(copy->digest, kvk_digest(0, src, sizes[i]));
        assert_memory_equal(dst, src, sizes[i]);
        assert_int_equal(dst[sizes[i]], 0xee);
        copy->check = KVD_CHECK_DIGEST;
        exec_run(f, job);
        assert_int_equal(copy->status, KVARN_OK);
        copy->digest ^= 1;
        exec_run(f, job);
        assert_int_equal(copy->status, KVARN_CORRUPT);
        assert_int_equal(copy->digest, kvk_digest(0, src, sizes[i]));
    }
    *copy =
        (struct kvd_copy){.dst = exec_place(f, src + 100), .src = exec_place(f, src), .bytes = 101};
    exec_run(f, job);
    assert_int_equal(copy->status, KVARN_INTERNAL);
    exec_close(f);
}

static void more_entries_than_items(void **state)
{
    (void)state;
    enum { ENTRIES = 20000 };
    struct exec_fixture *f = exec_open(2, 17);
    uint8_t *src = exec_staging(f, ENTRIES * 64), *dst = exec_pool(f, ENTRIES * 64);
    struct kvd_job *job = exec_job(f, KVD_JOB_COPY, ENTRIES, sizeof(struct kvd_copy), 0);
    struct kvd_copy *copy = (struct kvd_copy *)(job + 1);
    for (uint64_t i = 0; i < ENTRIES; i++) {
        memset(src + i * 64, (int)(i % 251), 64);
        copy[i] = (struct kvd_copy){.dst = exec_place(f, dst + (ENTRIES - 1 - i) * 64),
                                    .src = exec_place(f, src + i * 64),
                                    .bytes = i % 65};
        if (i % 1000 == 999)
            copy[i].src.region = 7; /* refused in the middle of a wave */
    }
    exec_run(f, job);
    for (uint64_t i = 0; i < ENTRIES; i++) {
        bool bad = i % 1000 == 999;
        assert_int_equal(copy[i].status, bad ? KVARN_INTERNAL : KVARN_OK);
        assert_memory_equal(dst + (ENTRIES - 1 - i) * 64, src + i * 64, bad ? 0 : i % 65);
    }
    exec_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compress_writes_the_kernels_bytes),
        cmocka_unit_test(exact_slot_is_k_then_v_and_seals_to_the_same_tile),
        cmocka_unit_test(non_finite_input_is_named),
        cmocka_unit_test(decompress_gives_layers_at_any_stride),
        cmocka_unit_test(rows_land_in_their_place),
        cmocka_unit_test(copy_digests_and_checks),
        cmocka_unit_test(more_entries_than_items),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
