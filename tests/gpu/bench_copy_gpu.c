/* The copy ceiling of the device: what every other row is a share of. */
#include "bench/row.h"
#include "gpu/support/bench.h"

int main(int argc, char **argv)
{
    struct gpu_bench bench;

    gpu_bench_open(&bench, argc, argv);
    bench_row_print(&(struct bench_row){
        .name = "copy on the device, read + write", .unit = "GB/s", .value = bench.copy_gbs});
    return gpu_bench_close(&bench);
}
