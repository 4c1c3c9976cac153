/* Elements of 16 bits. */
#ifndef SLOTWISE_FORMATS_H
#define SLOTWISE_FORMATS_H

#include <stdint.h>
#include <string.h>

#include "dense.h"
#include "vector.h"

static inline float float_of_bf16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

/* To the nearest, ties to even; NaN stays NaN. */
static inline uint16_t bf16_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* The same for many: the rounded value's upper half in each lane. */
static inline __attribute__((always_inline)) ivec bf16_bits(vec x) {
    ivec bits = (ivec)x, upper = (bits >> 16) & 0xffff, rounded = ((bits + 0x7fff + (upper & 1)) >> 16) & 0xffff;
    ivec is_nan = (ivec)(x != x);
    return (is_nan & (upper | 0x40)) | (~is_nan & rounded);
}

static inline void read_row(const void *row, int type, int64_t size, float *out) {
    int64_t i = 0;
    if (type == ELEMENT_F32) {
        memcpy(out, row, (size_t)size * 4);
    } else if (type == ELEMENT_BF16) {
        for (; i + WIDTH <= size; i += WIDTH)
            store(out + i, (vec)(load_shorts((const uint16_t *)row + i) << 16));
        for (; i < size; i++) out[i] = float_of_bf16(((const uint16_t *)row)[i]);
    } else {
        for (; i < size; i++) out[i] = (float)((const _Float16 *)row)[i];
    }
}

static inline void write_row(const float *row, int type, int64_t size, void *out) {
    int64_t i = 0;
    if (type == ELEMENT_F32) {
        if (out != row) memcpy(out, row, (size_t)size * 4);
    } else if (type == ELEMENT_BF16) {
        for (; i + WIDTH <= size; i += WIDTH) store_shorts((uint16_t *)out + i, bf16_bits(load(row + i)));
        for (; i < size; i++) ((uint16_t *)out)[i] = bf16_of_float(row[i]);
    } else {
        for (; i < size; i++) ((_Float16 *)out)[i] = (_Float16)row[i];
    }
}

/* To the nearest bfloat16, kept as floats. */
static inline void round_row(const float *row, int64_t size, float *out) {
    int64_t i = 0;
    for (; i + WIDTH <= size; i += WIDTH) store(out + i, (vec)(bf16_bits(load(row + i)) << 16));
    for (; i < size; i++) out[i] = float_of_bf16(bf16_of_float(row[i]));
}

static inline int element_bytes(int type) { return type == ELEMENT_F32 ? 4 : 2; }

#endif
