/* Inner functions of the vector kernels are copied into each caller, so that counts and shifts are
 * constants there; loops over a few registers are unrolled, so that the registers stay registers.
 */
#ifndef KVK_INLINE_H
#define KVK_INLINE_H

#define KVK_INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define KVK_UNROLL _Pragma("unroll")
#else
#define KVK_UNROLL _Pragma("GCC unroll 16")
#endif

#endif
