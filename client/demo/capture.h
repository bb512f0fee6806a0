/* A capture of a real model: post-RoPE keys and values of some layers, and the queries of the last
 * positions.
 *
 * Tensors of the file (see tests/data/README.md): layer.{i}.k and .v F16 [tokens, kv_heads, dim],
 * layer.{i}.q F16 [positions, q_heads, dim], tokens I32 [tokens]. */
#ifndef DEMO_CAPTURE_H
#define DEMO_CAPTURE_H

#include <stddef.h>
#include <stdint.h>

struct demo_st_file;

struct demo_capture {
    struct demo_st_file *file;
    char model[128];
    uint32_t layers, kv_heads, q_heads, dim;
    size_t tokens, positions; /* positions: of the queries, the last ones of `tokens` */
    uint32_t *token_ids;      /* [tokens] */
    uint16_t *k, *v;          /* f16 [layer][token][kv head][dim], one allocation each */
    uint16_t *q;              /* f16 [layer][position][q head][dim] */
};

/* 0, or -1 with a sentence in why [why_bytes]. */
int demo_capture_open(struct demo_capture *capture, const char *path, char *why, size_t why_bytes);
void demo_capture_close(struct demo_capture *capture);

float demo_half(uint16_t half);     /* f16 -> f32, exact */
uint16_t demo_to_half(float value); /* f32 -> f16, nearest even */

#endif
