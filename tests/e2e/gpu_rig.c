/* See gpu_rig.h. */
#include "tests/e2e/gpu_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void gpu_rig_open(struct gpu_rig *rig)
{
    strcpy(rig->path, "/tmp/kvarn-gpus.XXXXXX");
    int fd = mkstemp(rig->path);
    assert_true(fd >= 0);
    close(fd);
    rig->control = fake_cuda_open(rig->path, UINT64_C(1) << 30);
    assert_non_null(rig->control);
    setenv("KVARN_FAKE_CUDA", rig->path, 1);
    setenv("KVARN_CUDA_DRIVER", FAKE_CUDA_LIBRARY, 1);
}

void gpu_rig_close(struct gpu_rig *rig)
{
    fake_cuda_close(&rig->control);
    unlink(rig->path);
}

double gpu_rig_figure(kvarn_client *client, const char *name)
{
    kvarn_metric metrics[512];
    kvarn_stats_args args = KVARN_STATS_INIT;

    args.metrics = metrics;
    args.capacity = sizeof metrics / sizeof metrics[0];
    model_expect(client, kvarn_stats(client, &args), KVARN_OK, "stats");
    assert_true(args.count <= args.capacity);
    for (size_t i = 0; i < args.count; i++)
        if (strcmp(metrics[i].name, name) == 0)
            return metrics[i].value;
    fail_msg("no figure %s", name);
    return 0.0;
}

void gpu_rig_wait(kvarn_client *client, const char *name, double value)
{
    time_t limit = time(NULL) + GPU_RIG_DEADLINE_S;

    while (gpu_rig_figure(client, name) != value)
        if (time(NULL) > limit)
            fail_msg("%s does not become %g but is %g", name, value, gpu_rig_figure(client, name));
}

uint64_t gpu_rig_space(kvarn_client *client, const char *model, const char *device)
{
    kvarn_space_options space = model_space(model);

    space.device = device;
    model_expect(client, kvarn_open_space(client, &space), KVARN_OK, device);
    return space.space;
}
