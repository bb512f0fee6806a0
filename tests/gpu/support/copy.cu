/* A plain copy at full width, to know what the device can move: 16 bytes a thread and step, several
 * in flight, read and written once and so kept out of the way of the caches. */
#include <stdint.h>

struct gpu_copy {
    uint64_t to, from; /* both aligned to 16 */
    uint64_t count;    /* of 16-byte words */
};

/* Thread blocks take turns over the array, DEPTH * blockDim.x words a turn. */
template <int DEPTH> static __device__ void copy(const struct gpu_copy &args)
{
    const int4 *from = (const int4 *)args.from;
    int4 *to = (int4 *)args.to;
    const uint64_t turn = (uint64_t)DEPTH * blockDim.x;

    for (uint64_t at = blockIdx.x * turn + threadIdx.x; at < args.count; at += gridDim.x * turn) {
        int4 word[DEPTH];

#pragma unroll
        for (int i = 0; i < DEPTH; i++)
            if (at + i * (uint64_t)blockDim.x < args.count)
                word[i] = __ldcs(from + at + i * (uint64_t)blockDim.x);
#pragma unroll
        for (int i = 0; i < DEPTH; i++)
            if (at + i * (uint64_t)blockDim.x < args.count)
                __stcs(to + at + i * (uint64_t)blockDim.x, word[i]);
    }
}

extern "C" __global__ void gpu_copy_4(const __grid_constant__ struct gpu_copy args)
{
    copy<4>(args);
}

extern "C" __global__ void gpu_copy_8(const __grid_constant__ struct gpu_copy args)
{
    copy<8>(args);
}
