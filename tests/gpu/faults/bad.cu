/* Kernels that go wrong, for bad_cuda.c. */
extern "C" __global__ void bad_illegal(void)
{
    *(volatile int *)16 = 1;
}

extern "C" __global__ void bad_hang(const volatile int *stop)
{
    while (stop == nullptr || *stop == 0)
        ;
}
