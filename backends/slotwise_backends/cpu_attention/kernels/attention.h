/* What Python hands over: one record per call. `native.py` mirrors these records field by field; ABI_VERSION tells them apart. */
#ifndef SLOTWISE_ATTENTION_H
#define SLOTWISE_ATTENTION_H

#include <stdint.h>

#define SLOTWISE_ABI_VERSION 2

enum element_type { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, INT8 = 3, FLOAT8_E4M3 = 4 };

/* Strides count elements. An address of K or V is base + block * block_stride + token * token_stride + head * head_stride. */
struct kv_view {
    void *base;
    int64_t block_stride, token_stride, head_stride;
};

/* What the layers of a step share. */
struct attend_step {
    const int32_t *query_start_loc; /* [num_rows + 1] */
    const int32_t *seq_lens;    /* [num_rows], whole sequences: they give the positions of queries */
    const int32_t *num_keys;    /* [num_rows], keys that can be read */
    const int32_t *block_table; /* [num_rows, table_stride], null: keys lie like the queries */
    const int8_t *causal_rows;  /* [num_rows] or null: then `is_causal` counts */
    const uint8_t *mask;        /* or null; row r begins at mask_start[r], [query_len, seq_len] */
    const int64_t *mask_start;
    int64_t table_stride;
    int32_t num_rows, is_causal, num_ranks, rank, num_threads;
};

struct attend_args {
    const struct attend_step *step;
    const void *query;          /* [num_tokens, num_heads, head_dim], strided */
    void *output;               /* [num_tokens, num_heads, value_dim], contiguous */
    float *lse;                 /* [num_tokens, num_heads] or null */
    struct kv_view key, value;
    const float *sinks;         /* [num_heads] or null */
    const float *alibi_slopes;  /* [num_heads] or null */
    int64_t query_token_stride, query_head_stride;
    int32_t num_heads, num_kv_heads, head_dim, value_dim, block_size;
    int32_t query_type, kv_type;
    int32_t window, chunk_len; /* 0 = none */
    float score_scale, value_scale, soft_cap; /* score_scale holds k_scale; soft_cap 0 = none */
};

struct write_args {
    const void *key, *value;    /* [num_tokens, num_kv_heads, head_dim], strided; value null for latent caches */
    struct kv_view key_cache, value_cache;
    const int64_t *slots;       /* [num_tokens], -1: not written */
    int64_t key_token_stride, key_head_stride, value_token_stride, value_head_stride;
    int64_t num_tokens;
    int32_t num_kv_heads, head_dim, block_size, source_type, kv_type, num_threads;
    float k_scale, v_scale;
};

/* One tile of query rows of one KV head against keys first_key .. last_key - 1. */
struct tile {
    int32_t row, first_query, num_queries, kv_head, split;
};

/* Sums of a tile's rows: peak and total [rows], sum [rows, value_dim]. */
struct partial {
    float *peak, *total, *sum;
};

#define ROWS_PER_TILE 96 /* query rows, if one KV head does not have more heads than that */
#define KEYS_PER_STEP 64
#define PADDING 16 /* rows of scratch memory are a multiple of it: no vector ends inside one */
#define KEYS_PER_SPLIT 512

#define DECLARE_VARIANT(name)                                                                             \
    int64_t slotwise_scratch_##name(const struct attend_args *args);                                      \
    void slotwise_tile_##name(const struct attend_args *args, const struct tile *tile, struct partial *into, char *scratch); \
    void slotwise_write_##name(const struct write_args *args, int64_t first, int64_t last);

DECLARE_VARIANT(baseline)
DECLARE_VARIANT(avx2)
DECLARE_VARIANT(avx512)

#endif
