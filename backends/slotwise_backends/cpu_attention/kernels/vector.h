/* As many floats at a time as the instruction set holds in one register, in the compiler's own vector type: 16 on AVX-512, 8 on AVX2,
   4 on SSE and NEON. (A wider type would be cut up through memory.) */
#ifndef SLOTWISE_VECTOR_H
#define SLOTWISE_VECTOR_H

#include <stdint.h>
#include <string.h>

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
static inline __attribute__((always_inline)) vec choose(ivec mask, vec yes, vec no) { return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask)); }
static inline __attribute__((always_inline)) vec largest(vec a, vec b) { return choose(a > b, a, b); }

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

/* The sums of four vectors, side by side. */
static inline __attribute__((always_inline)) vec4 sums(vec a, vec b, vec c, vec d) {
    vec4 w = fold(a), x = fold(b), y = fold(c), z = fold(d);
    vec4 wx = __builtin_shufflevector(w, x, 0, 4, 1, 5) + __builtin_shufflevector(w, x, 2, 6, 3, 7); /* w02 x02 w13 x13 */
    vec4 yz = __builtin_shufflevector(y, z, 0, 4, 1, 5) + __builtin_shufflevector(y, z, 2, 6, 3, 7);
    return __builtin_shufflevector(wx, yz, 0, 1, 4, 5) + __builtin_shufflevector(wx, yz, 2, 3, 6, 7);
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
