/* Sound jobs of every operation, and odd numbers to put into them. */
#ifndef KVARN_TEST_EXEC_BAD_H
#define KVARN_TEST_EXEC_BAD_H

#include <stddef.h>
#include <stdint.h>

#include "server/exec_fixture.h"

/* One entry; its places are blocks that were compressed on the CPU. */
struct kvd_job *exec_some_job(struct exec_fixture *f, uint32_t op);
/* Of the status within the entry. */
size_t exec_status_offset(uint32_t op);
void exec_mutate(struct rng *rng, uint8_t *job, size_t bytes);

#endif
