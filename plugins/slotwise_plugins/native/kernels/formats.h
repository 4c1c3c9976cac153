/* Elements of 16 bits. */
#ifndef SLOTWISE_FORMATS_H
#define SLOTWISE_FORMATS_H

#include <stdint.h>
#include <string.h>

#include "dense.h"

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

static inline void read_row(const void *row, int type, int64_t size, float *out) {
    if (type == ELEMENT_F32) memcpy(out, row, (size_t)size * 4);
    else if (type == ELEMENT_BF16)
        for (int64_t i = 0; i < size; i++) out[i] = float_of_bf16(((const uint16_t *)row)[i]);
    else
        for (int64_t i = 0; i < size; i++) out[i] = (float)((const _Float16 *)row)[i];
}

static inline void write_row(const float *row, int type, int64_t size, void *out) {
    if (type == ELEMENT_F32) {
        if (out != row) memcpy(out, row, (size_t)size * 4);
    } else if (type == ELEMENT_BF16)
        for (int64_t i = 0; i < size; i++) ((uint16_t *)out)[i] = bf16_of_float(row[i]);
    else
        for (int64_t i = 0; i < size; i++) ((_Float16 *)out)[i] = (_Float16)row[i];
}

static inline int element_bytes(int type) { return type == ELEMENT_F32 ? 4 : 2; }

#endif
