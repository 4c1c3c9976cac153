/* As many floats at a time as the instruction set holds in one register, in the compiler's own vector type: 16 on AVX-512, 8 on AVX2,
   4 on SSE and NEON. (A wider type would be cut up through memory.) */
#ifndef SLOTWISE_VECTOR_H
#define SLOTWISE_VECTOR_H

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define WIDTH 16
#elif defined(__AVX__)
#define WIDTH 8
#else
#define WIDTH 4
#endif
typedef float vec __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef float vec4 __attribute__((vector_size(16)));
typedef float vec8 __attribute__((vector_size(32)));

static inline __attribute__((always_inline)) vec splat(float x) { return x - (vec){0}; }
static inline __attribute__((always_inline)) vec load(const float *p) { return *(const vec *)p; }
static inline __attribute__((always_inline)) void store(float *p, vec x) { *(vec *)p = x; }
/* The numbers of 16 bits at an address, widened. (The compiler's own conversion goes through halves.) */
static inline __attribute__((always_inline)) ivec load_shorts(const void *p) {
#if defined(__AVX512F__)
    return (ivec)_mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
#elif defined(__AVX2__)
    return (ivec)_mm256_cvtepu16_epi32(_mm_loadu_si128(p));
#else
    typedef uint16_t shorts __attribute__((vector_size(2 * WIDTH), aligned(2), may_alias));
    return __builtin_convertvector(*(const shorts *)p, ivec);
#endif
}

/* Their lower 16 bits. */
static inline __attribute__((always_inline)) void store_shorts(void *p, ivec x) {
#if defined(__AVX512F__)
    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16((__m512i)x));
#else
    typedef uint16_t shorts __attribute__((vector_size(2 * WIDTH), aligned(2), may_alias));
    *(shorts *)p = __builtin_convertvector(x, shorts);
#endif
}

static inline __attribute__((always_inline)) vec load_halves(const void *p) {
#if defined(__AVX512F__)
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256(p));
#else
    typedef _Float16 halves __attribute__((vector_size(2 * WIDTH), aligned(2), may_alias));
    return __builtin_convertvector(*(const halves *)p, vec);
#endif
}

static inline __attribute__((always_inline)) vec choose(ivec mask, vec yes, vec no) { return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask)); }
static inline __attribute__((always_inline)) vec largest(vec a, vec b) { return choose(a > b, a, b); }

/* a * b + c with one rounding where the instruction set can. Spelled out, because the compiler fuses now in one place and now in another, and
   results would depend on which copy of the code ran. */
static inline __attribute__((always_inline)) vec multiply_add(vec a, vec b, vec c) {
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

#if WIDTH == 16
#define LOWER_HALVES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define UPPER_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif WIDTH == 8
#define LOWER_HALVES 0, 8, 1, 9, 2, 10, 3, 11
#define UPPER_HALVES 4, 12, 5, 13, 6, 14, 7, 15
#else
#define LOWER_HALVES 0, 4, 1, 5
#define UPPER_HALVES 2, 6, 3, 7
#endif

/* Rows become columns. Each pass interleaves row i with row i + WIDTH / 2, like the two halves of a pack of cards; log2(WIDTH) passes do. */
static inline __attribute__((always_inline)) void transpose(vec rows[WIDTH]) {
    for (int pass = 1; pass < WIDTH; pass *= 2) {
        vec next[WIDTH];
        for (int i = 0; i < WIDTH / 2; i++) {
            next[2 * i] = __builtin_shufflevector(rows[i], rows[i + WIDTH / 2], LOWER_HALVES);
            next[2 * i + 1] = __builtin_shufflevector(rows[i], rows[i + WIDTH / 2], UPPER_HALVES);
        }
        for (int i = 0; i < WIDTH; i++) rows[i] = next[i];
    }
}

static inline __attribute__((always_inline)) vec4 fold(vec x) {
#if WIDTH == 16
    vec8 half = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
    return __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
#elif WIDTH == 8
    return __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
#else
    return x;
#endif
}

static inline __attribute__((always_inline)) float sum(vec x) {
    vec4 four = fold(x);
    return (four[0] + four[1]) + (four[2] + four[3]);
}

static inline __attribute__((always_inline)) float peak(vec x) {
    float found = x[0];
    for (int i = 1; i < WIDTH; i++) found = x[i] > found ? x[i] : found;
    return found;
}

/* e^x to 2 units in the last place. x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor series, whose ninth term is below 6e-9; 2^n by
   exponent bits. Below -87 the result is 0, so that -inf gives 0; NaN stays NaN. Not for x above 88. */
static inline __attribute__((always_inline)) vec exponential(vec x) {
    const vec magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    vec clamped = largest(x, splat(-87.0f));
    vec shifted = clamped * splat(1.44269504f) + magic;
    vec n = shifted - magic;
    vec r = clamped - n * splat(0.693359375f) - n * splat(-2.12194440e-4f);
    vec p = splat(1.0f / 5040);
    p = p * r + splat(1.0f / 720);
    p = p * r + splat(1.0f / 120);
    p = p * r + splat(1.0f / 24);
    p = p * r + splat(1.0f / 6);
    p = p * r + splat(0.5f);
    p = p * r + splat(1.0f);
    p = p * r + splat(1.0f);
    ivec bits = ((ivec)shifted - (ivec)magic) << 23;
    vec result = (vec)((ivec)p + bits);
    result = choose(x < splat(-87.0f), splat(0.0f), result);
    return choose(x == x, result, x);
}

/* tanh by its series near 0, where 1 - 2 / (1 + e^2x) would cancel. */
static inline __attribute__((always_inline)) vec hyperbolic_tangent(vec x) {
    vec s = x * x;
    vec near = splat(-1382.0f / 155925);
    near = near * s + splat(62.0f / 2835);
    near = near * s + splat(-17.0f / 315);
    near = near * s + splat(2.0f / 15);
    near = near * s + splat(-1.0f / 3);
    near = x + x * s * near;
    vec size = choose(x < splat(0.0f), -x, x);
    vec e = exponential(splat(-2.0f) * size);
    vec far = (splat(1.0f) - e) / (splat(1.0f) + e);
    far = choose(x < splat(0.0f), -far, far);
    return choose(size < splat(0.3f), near, far);
}

#endif
