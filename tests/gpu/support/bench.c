/* Options, peers and rows of GPU benchmarks; see bench.h. */
#include "gpu/support/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/row.h"

/* Microseconds of a row of $KVARN_PEERS (one JSON object a line, as bench_row_print writes them),
 * or 0: peers are there only where what they need is installed. */
static double peer_us(const char *name)
{
    const char *path = getenv("KVARN_PEERS");
    FILE *file = path != NULL && name != NULL ? fopen(path, "r") : NULL;
    char line[1024], wanted[256];
    double value = 0;

    if (file == NULL)
        return 0;
    snprintf(wanted, sizeof(wanted), "{\"name\":\"%s\",\"value\":", name);
    while (value == 0 && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, wanted, strlen(wanted)) == 0)
            value = strtod(line + strlen(wanted), NULL);
    fclose(file);
    return value;
}

void gpu_bench_open(struct gpu_bench *bench, int argc, char **argv)
{
    const char *copy = getenv("KVARN_COPY_GBS");

    *bench = (struct gpu_bench){.quick = argc == 2 && strcmp(argv[1], "--quick") == 0};
    if (argc > 1 && !bench->quick)
        gpu_fail("usage: %s [--quick]", argv[0]);
    bench->replays = bench->quick ? 15 : 51;
    gpu_open(&bench->gpu);
    bench->copy_gbs = copy != NULL ? strtod(copy, NULL) : 0;
    if (bench->copy_gbs <= 0)
        bench->copy_gbs = gpu_copy_gbs(&bench->gpu);
    bench_row_machine(bench->gpu.name);
}

void gpu_bench_row(struct gpu_bench *bench, const struct gpu_result *result)
{
    bool rate = result->counted > 0;
    double peer = peer_us(result->peer);
    struct bench_row row = {.name = result->name,
                            .unit = rate ? "GB/s" : "us",
                            .value = rate ? 1e-3 * result->counted / result->us : result->us,
                            .baseline = rate && peer > 0 ? 1e-3 * result->counted / peer : peer,
                            .direction = rate ? '>' : '<',
                            .reach = result->reach};

    if (result->reach <= 0)
        row.direction = 0;
    double share = 1e-3 * result->bytes / result->us / bench->copy_gbs;

    bench_row_print_share(&row, share);
}

int gpu_bench_close(struct gpu_bench *bench)
{
    gpu_close(&bench->gpu);
    return 0;
}
