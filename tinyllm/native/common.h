/* Vectors of 16 floats through GCC/Clang vector extensions, and bfloat16, shared by the kernels. */
#ifndef TINYLLM_COMMON_H
#define TINYLLM_COMMON_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 16 };

typedef float vec __attribute__((vector_size(64)));
typedef int32_t ivec __attribute__((vector_size(64)));
typedef uint32_t wvec __attribute__((vector_size(64)));
typedef uint16_t hvec __attribute__((vector_size(32)));
typedef float uvec __attribute__((vector_size(64), aligned(4)));
typedef uint32_t uwvec __attribute__((vector_size(64), aligned(4)));
typedef uint16_t uhvec __attribute__((vector_size(32), aligned(2)));

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

INLINE vec splat(float x) { return x - (vec){0}; }

INLINE float from_bf16(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

INLINE uint16_t to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40); /* NaN stays NaN */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);                  /* nearest, ties to even */
}

/* Element `index` of an array of float or bfloat16. */
INLINE float get(const void *base, int64_t index, int bf16) {
    return bf16 ? from_bf16(((const uint16_t *)base)[index]) : ((const float *)base)[index];
}

INLINE void set(void *base, int64_t index, float x, int bf16) {
    if (bf16) ((uint16_t *)base)[index] = to_bf16(x);
    else ((float *)base)[index] = x;
}

/* 16-bit to 32-bit and back. GCC 12 takes vectors of this size apart unless told the instruction. */
INLINE wvec widened(hvec x) {
#ifdef __AVX512F__
    return (wvec)_mm512_cvtepu16_epi32((__m256i)x);
#else
    return __builtin_convertvector(x, wvec);
#endif
}

INLINE hvec narrowed(wvec x) {
#ifdef __AVX512F__
    return (hvec)_mm512_cvtepi32_epi16((__m512i)x);
#else
    return __builtin_convertvector(x, hvec);
#endif
}

/* 16 elements from `index` on. */
INLINE vec load(const void *base, int64_t index, int bf16) {
    if (!bf16) return *(const uvec *)((const float *)base + index);
    hvec half = *(const uhvec *)((const uint16_t *)base + index);
    return (vec)(widened(half) << 16);
}

INLINE hvec round_to_bf16(vec x) {
    wvec u = (wvec)x;
    wvec nan = (wvec)((u & 0x7fffffffu) > 0x7f800000u);
    wvec rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
    return narrowed((rounded & ~nan) | (((u >> 16) | 0x40) & nan));
}

INLINE void store(void *base, int64_t index, vec x, int bf16) {
    if (bf16) *(uhvec *)((uint16_t *)base + index) = round_to_bf16(x);
    else *(uvec *)((float *)base + index) = x;
}

/* Store 16 bfloat16 numbers that are 0 or not as small as to have lost digits. */
INLINE void store_normal(void *base, int64_t index, vec x) {
#ifdef __AVX512BF16__
    *(uhvec *)((uint16_t *)base + index) = (hvec)_mm512_cvtneps_pbh((__m512)x);
#else
    store(base, index, x, 1);
#endif
}

/* x as it would be after a trip through memory in its own type. */
INLINE vec rounded(vec x, int bf16) {
    return bf16 ? (vec)(widened(round_to_bf16(x)) << 16) : x;
}

INLINE float rounded_scalar(float x, int bf16) { return bf16 ? from_bf16(to_bf16(x)) : x; }

/* Of 16 pairs of bfloat16: the first ones, and the second ones, as floats. */
INLINE vec low_half(wvec pairs) { return (vec)(pairs << 16); }

INLINE vec high_half(wvec pairs) { return (vec)(pairs & 0xffff0000u); }

/* sum + the dot product of each pair with one and the same pair of bfloat16. */
INLINE vec dot_pairs(vec sum, uint32_t pair, wvec pairs) {
    wvec all = pair - (wvec){0};
#ifdef __AVX512BF16__
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)all, (__m512bh)pairs);
#else
    return sum + low_half(all) * low_half(pairs) + high_half(all) * high_half(pairs);
#endif
}

/* The larger of each two, b where they cannot be compared. */
INLINE vec max_of(vec a, vec b) {
#ifdef __AVX512F__
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#else
    ivec first = a > b;
    return (vec)(((ivec)a & first) | ((ivec)b & ~first));
#endif
}

INLINE vec min_of(vec a, vec b) { return -max_of(-a, -b); }

INLINE float horizontal_max(vec v) {
#ifdef __AVX512F__
    return _mm512_reduce_max_ps((__m512)v);
#else
    float best = v[0];
    for (int i = 1; i < LANES; i++) best = v[i] > best ? v[i] : best;
    return best;
#endif
}

/* Pairwise, always in this order. */
INLINE float horizontal_sum(vec v) {
    float s[LANES];
    memcpy(s, &v, sizeof s);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) s[i] += s[i + width];
    return s[0];
}

/* e^x within 2 ulp for x in [-87, 88]. Cody-Waite reduction and a polynomial of degree 6. */
INLINE vec exp_within(vec x) {
    vec n = x * 1.44269504f + 12582912.0f; /* adding 1.5 * 2^23 rounds to the nearest whole number */
    ivec k = (ivec)n - (ivec)splat(12582912.0f);
    n -= 12582912.0f;
    vec r = x - n * 0.693359375f;
    r -= n * -2.12194440e-4f;
    vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return (vec)((ivec)p + (k << 23));
}

/* The same, clamped outside. */
INLINE vec exp_of(vec x) { return exp_within(min_of(max_of(x, splat(-87.0f)), splat(88.0f))); }

/* e^x for x <= 0; exactly 0 far below. */
INLINE vec exp_nonpositive(vec x) {
    return (vec)((ivec)exp_within(max_of(x, splat(-87.0f))) & (x > splat(-87.0f)));
}

#endif
