/* A kvarnd whose GPUs are those of the stand-in driver (tests/support/fake_cuda). */
#ifndef E2E_GPU_RIG_H
#define E2E_GPU_RIG_H

#include "tests/e2e/model.h"
#include "tests/support/daemon.h"
#include "support/fake_cuda/fake_cuda.h"

enum { GPU_RIG_DEADLINE_S = 60 };

struct gpu_rig {
    struct fake_cuda_control *control;
    char path[64];
    struct test_daemon daemon;
};

/* A file of its own with one device, and the environment for kvarnd. */
void gpu_rig_open(struct gpu_rig *rig);
void gpu_rig_close(struct gpu_rig *rig);

/* A figure of STATS, "kvarn_worker_restarts_total"; fails the test when there is none. */
double gpu_rig_figure(kvarn_client *client, const char *name);
/* Asks until the figure is that; fails the test after GPU_RIG_DEADLINE_S. */
void gpu_rig_wait(kvarn_client *client, const char *name, double value);

/* The space of model_open(), on the device of this name. */
uint64_t gpu_rig_space(kvarn_client *client, const char *model, const char *device);

#endif
