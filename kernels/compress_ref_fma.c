/* compress_ref.c once more, with fused multiply-add as an instruction.
 *
 * Without -mfma the compiler calls fmaf(), which C requires to round once, so both builds give the
 * same bits; the call only costs time. dispatch.c takes this build where the CPU allows it. */
#define kvk_compress_ref kvk_compress_ref_fma
#include "compress_ref.c" // NOLINT(bugprone-suspicious-include)
