/* From rows of a matrix, as files have them, to panels, and from panels back to rows. Compiled once for each instruction set.

   Formats of blocks are those of the ggml project (Q8_0, Q4_0, Q4_1: 32 inputs; Q4_K, Q6_K: 256 inputs). */
#include <math.h>

#include "formats.h"
#include "vector.h"

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define NAME(stem) JOIN(stem, VARIANT)
#define SPAN 256 /* inputs that are worked on together: whole blocks of every format */
#define ZERO_U8 128
#define LARGEST_U8 127.0f
#define LARGEST_U4 15.0f

static float half_at(const uint8_t *p) {
    _Float16 value;
    memcpy(&value, p, 2);
    return (float)value;
}

/* -- rows of files -- */

/* 6 bits each of the scale and the minimum of group `j` of 8. */
static void scale_and_minimum(const uint8_t *packed, int j, int *scale, int *minimum) {
    if (j < 4) {
        *scale = packed[j] & 63, *minimum = packed[j + 4] & 63;
    } else {
        *scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
        *minimum = packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
    }
}

static int is_affine(int source) { return source == SOURCE_Q8_0 || source == SOURCE_Q4_0 || source == SOURCE_Q4_1 || source == SOURCE_Q4_K; }

/* Group `group` of a row in an affine format: value = scale * code + offset. */
static void read_group(int source, const uint8_t *row, int64_t group, uint8_t *codes, float *scale, float *offset) {
    const uint8_t *low = 0;
    if (source == SOURCE_Q8_0) {
        const uint8_t *block = row + group * 34;
        *scale = half_at(block), *offset = -ZERO_U8 * *scale;
        for (int i = 0; i < GROUP; i++) codes[i] = (uint8_t)((int8_t)block[2 + i] + ZERO_U8);
        return;
    }
    if (source == SOURCE_Q4_K) {
        const uint8_t *block = row + group / 8 * 144;
        int j = (int)(group % 8), factor, minimum;
        scale_and_minimum(block + 4, j, &factor, &minimum);
        *scale = half_at(block) * (float)factor, *offset = -half_at(block + 2) * (float)minimum;
        low = block + 16 + j / 2 * 32;
        for (int i = 0; i < GROUP; i++) codes[i] = j % 2 ? low[i] >> 4 : low[i] & 15;
        return;
    }
    const uint8_t *block = row + group * (source == SOURCE_Q4_0 ? 18 : 20);
    *scale = half_at(block), *offset = source == SOURCE_Q4_0 ? -8.0f * *scale : half_at(block + 2);
    low = block + (source == SOURCE_Q4_0 ? 2 : 4);
    for (int i = 0; i < GROUP / 2; i++) codes[i] = low[i] & 15, codes[i + GROUP / 2] = low[i] >> 4;
}

static void read_q6_k(const uint8_t *block, float *out) {
    const uint8_t *low = block, *high = block + 128;
    const int8_t *scales = (const int8_t *)block + 192;
    float d = half_at(block + 208);
    for (int half = 0; half < 2; half++, low += 64, high += 32, scales += 8, out += 128)
        for (int i = 0; i < 32; i++)
            for (int quarter = 0; quarter < 4; quarter++) {
                int four = quarter < 2 ? low[i + quarter % 2 * 32] & 15 : low[i + quarter % 2 * 32] >> 4;
                int code = (four | (high[i] >> 2 * quarter & 3) << 4) - 32;
                out[quarter * 32 + i] = d * (float)scales[i / 16 + 2 * quarter] * (float)code;
            }
}

/* Inputs first .. first + count - 1 of a row; first is a multiple of SPAN. */
static void read_span(int source, const uint8_t *row, int64_t first, int64_t count, float *out) {
    if (source <= SOURCE_F16) {
        read_row(row + first * element_bytes(source), source, count, out);
    } else if (source == SOURCE_Q6_K) {
        read_q6_k(row + first / SPAN * 210, out);
    } else {
        for (int64_t i = 0; i < count; i += GROUP) {
            uint8_t codes[GROUP];
            float scale, offset;
            read_group(source, row, (first + i) / GROUP, codes, &scale, &offset);
            for (int j = 0; j < GROUP; j++) out[i + j] = scale * (float)codes[j] + offset;
        }
    }
}

/* -- quantisation: scales and offsets are rounded to float16 before codes are taken by them -- */

static float nearest_half(float x) { return (float)(_Float16)x; }

static void quantise_u8(const float *x, uint8_t *codes, float *scale, float *offset) {
    float high = 0.0f;
    for (int i = 0; i < GROUP; i++) high = fabsf(x[i]) > high ? fabsf(x[i]) : high;
    *scale = nearest_half(high / LARGEST_U8), *offset = -ZERO_U8 * *scale;
    float factor = *scale > 0.0f ? 1.0f / *scale : 0.0f;
    for (int i = 0; i < GROUP; i++) {
        float code = rintf(x[i] * factor);
        codes[i] = (uint8_t)((code > LARGEST_U8 ? LARGEST_U8 : code < -LARGEST_U8 ? -LARGEST_U8 : code) + ZERO_U8);
    }
}

static void quantise_u4(const float *x, uint8_t *codes, float *scale, float *offset) {
    float high = x[0], low = x[0];
    for (int i = 1; i < GROUP; i++) high = x[i] > high ? x[i] : high, low = x[i] < low ? x[i] : low;
    *offset = nearest_half(low);
    *scale = nearest_half(high > *offset ? (high - *offset) / LARGEST_U4 : 0.0f);
    float factor = *scale > 0.0f ? 1.0f / *scale : 0.0f;
    for (int i = 0; i < GROUP; i++) {
        float code = rintf((x[i] - *offset) * factor);
        codes[i] = (uint8_t)(code > LARGEST_U4 ? LARGEST_U4 : code < 0.0f ? 0.0f : code);
    }
}

/* -- panels -- */

static int64_t padded_inputs(int64_t inputs, int kind) {
    int unit = kind == KIND_F32 ? 1 : kind == KIND_BF16 ? 2 : GROUP;
    return (inputs + unit - 1) / unit * unit;
}

/* 8 codes of one output, in the places of a panel's U4 codes. */
static void put_u4(uint8_t *at, const uint8_t *codes) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(codes[i] | codes[i + 4] << 4);
}

static void put_group(const struct pack_args *args, int64_t panel, int64_t group, int place, const uint8_t *codes, float scale, float offset) {
    int64_t k = padded_inputs(args->num_inputs, args->kind), at = (panel * (k / GROUP) + group) * PANEL + place;
    ((_Float16 *)args->scales)[at] = (_Float16)scale;
    if (args->offsets) ((_Float16 *)args->offsets)[at] = (_Float16)offset;
    if (args->kind == KIND_U8) {
        uint8_t *out = (uint8_t *)args->codes + (panel * k + group * GROUP) * PANEL + place * 4;
        for (int i = 0; i < GROUP; i += 4) memcpy(out + i * PANEL, codes + i, 4);
    } else {
        uint8_t *out = (uint8_t *)args->codes + (panel * k + group * GROUP) / 2 * PANEL + place * 4;
        for (int i = 0; i < GROUP; i += 8) put_u4(out + i / 2 * PANEL, codes + i);
    }
}

/* One output's inputs first .. first + count - 1, which follow each other in `x`; what is beyond the last input is 0. */
static void put_span(const struct pack_args *args, int64_t panel, int place, int64_t first, int64_t count, float *x) {
    int64_t k = padded_inputs(args->num_inputs, args->kind);
    if (args->kind == KIND_F32) {
        float *out = (float *)args->codes + (panel * k + first) * PANEL + place;
        for (int64_t i = 0; i < count; i++) out[i * PANEL] = x[i];
    } else if (args->kind == KIND_BF16) {
        uint16_t *out = (uint16_t *)args->codes + (panel * k + first) * PANEL + place * 2;
        for (int64_t i = 0; i < (count + 1) / 2; i++) {
            out[i * 2 * PANEL] = bf16_of_float(x[2 * i]);
            out[i * 2 * PANEL + 1] = 2 * i + 1 < count ? bf16_of_float(x[2 * i + 1]) : 0;
        }
    } else {
        for (int64_t i = count; i % GROUP; i++) x[i] = 0.0f;
        for (int64_t i = 0; i < count; i += GROUP) {
            uint8_t codes[GROUP];
            float scale, offset;
            if (args->kind == KIND_U8) quantise_u8(x + i, codes, &scale, &offset);
            else quantise_u4(x + i, codes, &scale, &offset);
            put_group(args, panel, (first + i) / GROUP, place, codes, scale, offset);
        }
    }
}

void NAME(slotwise_pack_)(const struct pack_args *args, int64_t first, int64_t end) {
    float x[SPAN];
    for (int64_t panel = first; panel < end; panel++)
        for (int place = 0; place < PANEL && panel * PANEL + place < args->num_outputs; place++) {
            const uint8_t *row = (const uint8_t *)args->rows[panel * PANEL + place];
            int source = args->sources[panel * PANEL + place];
            if (args->keeps_codes && is_affine(source)) {
                for (int64_t group = 0; group < args->num_inputs / GROUP; group++) {
                    uint8_t codes[GROUP];
                    float scale, offset;
                    read_group(source, row, group, codes, &scale, &offset);
                    put_group(args, panel, group, place, codes, scale, offset);
                }
                continue;
            }
            for (int64_t at = 0; at < args->num_inputs; at += SPAN) {
                int64_t count = args->num_inputs - at < SPAN ? args->num_inputs - at : SPAN;
                read_span(source, row, at, count, x);
                for (int64_t i = 0; i < count; i++)
                    if (!isfinite(x[i])) *args->not_finite = 1;
                put_span(args, panel, place, at, count, x);
            }
        }
}

/* Rows of a packed matrix as floats. */
void NAME(slotwise_unpack_)(const struct unpack_args *args, int64_t first, int64_t end) {
    int64_t k = padded_inputs(args->num_inputs, args->kind);
    for (int64_t index = first; index < end; index++) {
        int64_t panel = args->indices[index] / PANEL, place = args->indices[index] % PANEL;
        float *out = args->out + index * args->num_inputs;
        for (int64_t i = 0; i < args->num_inputs; i++) {
            int64_t at = (panel * (k / GROUP) + i / GROUP) * PANEL + place;
            if (args->kind == KIND_F32) {
                out[i] = ((const float *)args->codes)[(panel * k + i) * PANEL + place];
            } else if (args->kind == KIND_BF16) {
                out[i] = float_of_bf16(((const uint16_t *)args->codes)[(panel * k + i / 2 * 2) * PANEL + place * 2 + i % 2]);
            } else {
                const uint8_t *codes = (const uint8_t *)args->codes;
                int code = args->kind == KIND_U8 ? codes[(panel * k + i / 4 * 4) * PANEL + place * 4 + i % 4]
                                                 : codes[(panel * k + i / 8 * 8) / 2 * PANEL + place * 4 + i % 4] >> (i % 8 < 4 ? 0 : 4) & 15;
                float scale = (float)((const _Float16 *)args->scales)[at];
                float offset = args->offsets ? (float)((const _Float16 *)args->offsets)[at] : -args->zero * scale;
                out[i] = scale * (float)code + offset;
            }
        }
    }
}
