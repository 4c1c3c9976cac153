/* Elements of tensors as floats and back. */
#ifndef SLOTWISE_ELEMENTS_H
#define SLOTWISE_ELEMENTS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "attention.h"

static inline int element_size(int type) { return type == FLOAT32 ? 4 : type == BFLOAT16 || type == FLOAT16 ? 2 : 1; }

static inline float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline uint32_t to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline uint16_t to_bfloat16(float x) {
    uint32_t bits = to_bits(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Exponent 4 bits with bias 7, mantissa 3 bits, no infinity; 0x7f and 0xff are NaN. Source: Micikevicius et al. 2022, FP8 formats. */
static inline float from_float8(uint8_t code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    float size = exponent ? from_bits((uint32_t)(exponent - 7 + 127) << 23 | (uint32_t)mantissa << 20) : mantissa * 0x1p-9f;
    if ((code & 0x7f) == 0x7f) size = NAN;
    return code & 0x80 ? -size : size;
}

/* To nearest, ties to even, clamped to +-448. */
static inline uint8_t to_float8(float x) {
    uint8_t sign = to_bits(x) >> 24 & 0x80;
    float size = fabsf(x);
    if (size != size) return sign | 0x7f;
    if (size >= 448.0f) return sign | 0x7e;
    if (size < 0x1p-6f) return sign | (uint8_t)rintf(size * 0x1p9f);
    uint32_t bits = to_bits(size);
    bits += 0x7ffff + (bits >> 20 & 1);
    return sign | (uint8_t)((((bits >> 23) - 120) << 3) | (bits >> 20 & 7));
}

static inline int8_t to_int8(float x) {
    float nearest = rintf(x);
    return (int8_t)(nearest > 127.0f ? 127.0f : nearest < -127.0f ? -127.0f : nearest);
}

/* `count` elements as floats; what follows up to `padded` becomes 0. */
static inline void read_elements(const void *from, int type, int count, int padded, float *into) {
    int i;
    switch (type) {
    case FLOAT32:
        memcpy(into, from, (size_t)count * 4);
        break;
    case BFLOAT16:
        for (i = 0; i < count; i++) into[i] = from_bits((uint32_t)((const uint16_t *)from)[i] << 16);
        break;
    case FLOAT16:
        for (i = 0; i < count; i++) into[i] = (float)((const _Float16 *)from)[i];
        break;
    case INT8:
        for (i = 0; i < count; i++) into[i] = (float)((const int8_t *)from)[i];
        break;
    default:
        for (i = 0; i < count; i++) into[i] = from_float8(((const uint8_t *)from)[i]);
    }
    for (i = count; i < padded; i++) into[i] = 0.0f;
}

static inline void write_elements(const float *from, int type, int count, void *into) {
    int i;
    switch (type) {
    case FLOAT32:
        memcpy(into, from, (size_t)count * 4);
        break;
    case BFLOAT16:
        for (i = 0; i < count; i++) ((uint16_t *)into)[i] = to_bfloat16(from[i]);
        break;
    case FLOAT16:
        for (i = 0; i < count; i++) ((_Float16 *)into)[i] = (_Float16)from[i];
        break;
    case INT8:
        for (i = 0; i < count; i++) ((int8_t *)into)[i] = to_int8(from[i]);
        break;
    default:
        for (i = 0; i < count; i++) ((uint8_t *)into)[i] = to_float8(from[i]);
    }
}

#endif
