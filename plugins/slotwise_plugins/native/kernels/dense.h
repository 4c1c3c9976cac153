/* What Python hands to the dense kernels, field by field as in `records.py`, and what the variants of them offer to `dispatch.c`. */
#ifndef SLOTWISE_DENSE_H
#define SLOTWISE_DENSE_H

#include <stdint.h>

#define SLOTWISE_DENSE_ABI_VERSION 3
#define PANEL 16 /* output features side by side in memory */
#define GROUP 32 /* inputs that share a scale in the quantised kinds */

enum element { ELEMENT_F32, ELEMENT_BF16, ELEMENT_F16 };
enum kind { KIND_F32, KIND_BF16, KIND_U8, KIND_U4 };
enum activation { ACTIVATION_SILU, ACTIVATION_GELU_TANH, ACTIVATION_GELU };

/* y = x w^T + bias, or y += that.
   Weights are cut into panels of 16 output features, padded with zeros. Within a panel, input by input:
     F32   [k][16] float          BF16  [k / 2][16][2] bfloat16
     U8    [k / 4][16][4] uint8   U4    [k / 8][16][4] uint8, whose low halves are inputs 8i .. 8i + 3, and high halves 8i + 4 .. 8i + 7
   A quantised weight is scale * (code - zero), or scale * code + offset; scales and offsets are [panel][k / 32][16] float16. */
struct linear_args {
    const void *x, *weights, *scales, *offsets, *bias;
    void *y, *scratch; /* scratch: slotwise_linear_scratch() bytes */
    int64_t x_stride, y_stride; /* elements from row to row */
    int32_t num_rows, num_outputs, num_inputs; /* num_inputs: before padding */
    int32_t kind, x_type, y_type, adds, num_threads;
    float zero;
};

/* How a row lies in its file: plain elements, or blocks of the ggml project's formats. */
enum source { SOURCE_F32, SOURCE_BF16, SOURCE_F16, SOURCE_Q8_0, SOURCE_Q4_0, SOURCE_Q4_1, SOURCE_Q4_K, SOURCE_Q6_K };

/* Rows into panels of `kind`, which begin as zeros. */
struct pack_args {
    const void *const *rows; /* [num_outputs] */
    const int32_t *sources;  /* [num_outputs] */
    void *codes, *scales, *offsets; /* offsets may be null for U8, whose codes then stand for scale * (code - 128) */
    int32_t *not_finite;     /* becomes 1 if a value is not */
    int64_t num_outputs, num_inputs;
    int32_t kind, keeps_codes, num_threads; /* keeps_codes: where the source's codes fit, they are not taken anew */
};

struct unpack_args {
    const void *codes, *scales, *offsets;
    const int64_t *indices; /* [num_rows] */
    float *out;             /* [num_rows, num_inputs] */
    int64_t num_rows, num_inputs;
    int32_t kind, num_threads;
    float zero;
};

/* out = x / rms(x) * weight, and out += that if `adds` (float32 only). */
struct norm_args {
    const void *x;
    const float *weight;
    void *out;
    int64_t x_stride, out_stride;
    int32_t num_rows, size, x_type, out_type, adds, num_threads;
    float eps;
};

/* Rows of query, key and value heads side by side. Query and key heads are normalised if their weights are given, then their first
   2 * half elements are rotated by pairs (i, i + half); everything is written in `out_type`. */
struct rope_args {
    const float *qkv;
    const float *cos, *sin; /* [positions][half] */
    const float *query_norm, *key_norm; /* [head_dim], or null */
    const int64_t *positions;
    void *out;
    int64_t qkv_stride, out_stride;
    int32_t num_rows, num_heads, num_kv_heads, head_dim, half, out_type, num_threads;
    float eps;
};

/* out = activation(x[0 .. size - 1]) * x[size .. 2 size - 1] */
struct gate_args {
    const float *x;
    void *out;
    int64_t x_stride, out_stride;
    int32_t num_rows, size, out_type, activation, num_threads;
};

/* A chain: row-wise operations one after another, each of which reads named rows and writes others. It runs block by block, all links on
   some rows before the next ones, so that what lies between two links stays in the cache. */
enum link_kind { LINK_LINEAR, LINK_NORM, LINK_ROPE, LINK_GATE };

struct rows {
    void *base;
    int64_t stride; /* elements */
    int32_t type;
    int32_t is_whole; /* has a place for every row of the call; else for those of one block */
};

struct link {
    int32_t kind, source, target, adds; /* source, target: index of `rows` */
    const void *parameters;             /* of its kind; what the chain knows is filled in by it */
};

struct chain_args {
    const struct link *links;
    const struct rows *rows;
    const int64_t *positions; /* [num_rows] */
    void *scratch;            /* for a block of rows */
    int64_t num_links, num_rows, block_size;
    int32_t num_threads;
};

int64_t slotwise_linear_scratch(const struct linear_args *args);

#define DECLARE_VARIANT(name)                                                                                  \
    void slotwise_prepare_##name(const struct linear_args *, int64_t first, int64_t end);                      \
    void slotwise_panels_##name(const struct linear_args *, int64_t first, int64_t end);                       \
    void slotwise_norm_##name(const struct norm_args *, int64_t first, int64_t end);                           \
    void slotwise_rope_##name(const struct rope_args *, int64_t first, int64_t end);                           \
    void slotwise_gate_##name(const struct gate_args *, int64_t first, int64_t end);                           \
    void slotwise_pack_##name(const struct pack_args *, int64_t first, int64_t end);                           \
    void slotwise_unpack_##name(const struct unpack_args *, int64_t first, int64_t end);

DECLARE_VARIANT(baseline)
DECLARE_VARIANT(avx2)
DECLARE_VARIANT(avx512)
DECLARE_VARIANT(avx512dot)

#endif
