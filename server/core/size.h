/* Sizes as people write them: "64MiB", "16GiB", "30gb", "80%" of the memory of this machine or
 * container. */
#ifndef KVD_SIZE_H
#define KVD_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KVD_SIZE_TEXT_MAX = 32 };

/* A whole number and a unit: B, kB, MB, GB, TB (powers of ten), KiB, MiB, GiB, TiB, in any case, or
 * % (1 to 100) of `memory_bytes`. False, with *why set (static text), for anything else, also for
 * what does not fit in 64 bits. */
bool kvd_size_parse(const char *text, uint64_t memory_bytes, uint64_t *bytes, const char **why);

/* "1GiB", "1500MB", "1234B": the shortest form that is exact. */
void kvd_size_format(uint64_t bytes, char out[KVD_SIZE_TEXT_MAX]);

/* Memory that this process may use: the machine's, or less when a container says so. */
uint64_t kvd_memory_bytes(void);

#endif
