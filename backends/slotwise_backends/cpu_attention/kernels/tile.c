/* One tile of query rows against a range of keys; and the KV write. Compiled once for each instruction set (VARIANT), chosen in dispatch.c.

   The query heads of one KV head are stacked into the tile's rows (row = token * group + head), so that each key is read once for them all.
   Keys come in steps of KEYS_PER_STEP at multiples of it, splits in KEYS_PER_SPLIT at multiples of it. What a row does not see leaves its
   sums untouched, and each row's arithmetic is the same in every tile: its result depends neither on the batch, nor on how its
   sequence was cut, nor on the number of threads. */
#include <math.h>

#include "elements.h"
#include "vector.h"

#define CONCAT_(a, b) a##b
#define CONCAT(a, b) CONCAT_(a, b)
#define NAME(base) CONCAT(base, VARIANT)

static inline int padded(int dim) { return (dim + PADDING - 1) / PADDING * PADDING; }

#define INLINE static inline __attribute__((always_inline))
#define ROWS_AT_ONCE 6
#define VECTORS_AT_ONCE (WIDTH == 16 ? 4 : 2) /* with ROWS_AT_ONCE rows the sums fill the registers */

/* Scratch memory of a tile. */
struct place {
    float *query;     /* [rows, dim], scaled */
    float *keys;      /* [dim, KEYS_PER_STEP] */
    float *values;    /* [KEYS_PER_STEP, value_dim] */
    float *scores;    /* [ROWS_AT_ONCE, KEYS_PER_STEP] */
    char *zeros;      /* [most elements of a head] */
    uint8_t *visible; /* [tokens, KEYS_PER_STEP] */
};

static int64_t lay_out(const struct attend_args *args, char *scratch, struct place *at) {
    int group = args->num_heads / args->num_kv_heads, tokens = group < ROWS_PER_TILE ? ROWS_PER_TILE / group : 1;
    int dim = padded(args->head_dim), value_dim = padded(args->value_dim);
    float *next = (float *)scratch;
    at->query = next, next += (int64_t)tokens * group * dim;
    at->keys = next, next += (int64_t)KEYS_PER_STEP * dim;
    at->values = next, next += (int64_t)KEYS_PER_STEP * value_dim;
    at->scores = next, next += ROWS_AT_ONCE * KEYS_PER_STEP;
    int64_t longest = dim > value_dim ? dim : value_dim;
    at->zeros = (char *)next, next += longest; /* all of these are multiples of PADDING floats: cache lines */
    at->visible = (uint8_t *)next;
    return (char *)(at->visible + (int64_t)tokens * KEYS_PER_STEP) - scratch;
}

int64_t NAME(slotwise_scratch_)(const struct attend_args *args) {
    struct place at;
    return lay_out(args, (char *)64, &at);
}

/* Positions of keys that some query of the tile may see: a superset, cheap to know. */
static void key_range(const struct attend_args *args, const struct tile *tile, int lowest, int *begin, int *end) {
    int highest = lowest + tile->num_queries - 1, first = 0, last = args->step->num_keys[tile->row];
    int is_causal = args->step->causal_rows ? args->step->causal_rows[tile->row] : args->step->is_causal;
    if (args->window && lowest - args->window + 1 > first) first = lowest - args->window + 1;
    if (args->chunk_len && lowest / args->chunk_len * args->chunk_len > first) first = lowest / args->chunk_len * args->chunk_len;
    if (is_causal && !args->step->mask && highest >= 0 && (highest - args->step->rank + args->step->num_ranks) / args->step->num_ranks < last)
        last = (highest - args->step->rank + args->step->num_ranks) / args->step->num_ranks;
    first /= args->step->num_ranks;
    if (tile->split >= 0) {
        int split_begin = tile->split * KEYS_PER_SPLIT;
        if (first < split_begin) first = split_begin;
        if (last > split_begin + KEYS_PER_SPLIT) last = split_begin + KEYS_PER_SPLIT;
    }
    *begin = first, *end = last;
}

/* Whether every query of the tile sees every key of a step, where that is plain without looking at each. */
static int sees_all(const struct attend_args *args, const struct tile *tile, int lowest, int start, int begin, int end) {
    int is_causal = args->step->causal_rows ? args->step->causal_rows[tile->row] : args->step->is_causal;
    int highest = lowest + tile->num_queries - 1;
    int first = start * args->step->num_ranks + args->step->rank, last = (start + KEYS_PER_STEP - 1) * args->step->num_ranks + args->step->rank;
    if (args->step->mask || start < begin || start + KEYS_PER_STEP > end) return 0;
    if (is_causal && last > lowest) return 0;
    if (args->window && (highest - first >= args->window || last - lowest >= args->window)) return 0;
    if (args->chunk_len && (lowest / args->chunk_len != last / args->chunk_len || highest / args->chunk_len != first / args->chunk_len)) return 0;
    return 1;
}

/* Who sees what in one step. seen[n]: some query sees key n. */
static void find_visible(
    const struct attend_args *args, const struct tile *tile, int lowest, int start, int begin, int end, uint8_t *visible, uint8_t *seen
) {
    int row = tile->row, seq_len = args->step->seq_lens[row];
    int is_causal = !args->step->mask && (args->step->causal_rows ? args->step->causal_rows[row] : args->step->is_causal);
    memset(seen, 0, KEYS_PER_STEP);
    for (int t = 0; t < tile->num_queries; t++) {
        int position = lowest + t;
        const uint8_t *mask = args->step->mask ? args->step->mask + args->step->mask_start[row] + (int64_t)(tile->first_query + t) * seq_len : 0;
        for (int n = 0; n < KEYS_PER_STEP; n++) {
            int held = start + n, key = held * args->step->num_ranks + args->step->rank;
            int sees = held >= begin && held < end;
            if (sees && mask) sees = mask[key];
            if (is_causal) sees &= key <= position;
            if (args->window) sees &= position - key < args->window && key - position < args->window;
            if (args->chunk_len) sees &= position / args->chunk_len == key / args->chunk_len;
            visible[t * KEYS_PER_STEP + n] = (uint8_t)sees;
            seen[n] |= (uint8_t)sees;
        }
    }
}

typedef int8_t byte_vec __attribute__((vector_size(WIDTH), aligned(1), may_alias));

/* WIDTH elements as floats. */
INLINE vec read_vector(const char *at, int type) {
    if (type == FLOAT32) return load((const float *)at);
    if (type == BFLOAT16) return (vec)(load_shorts(at) << 16);
    if (type == FLOAT16) return load_halves(at);
    if (type == INT8) return __builtin_convertvector(*(const byte_vec *)at, vec);
    float values[WIDTH];
    read_elements(at, type, WIDTH, WIDTH, values);
    return load(values);
}

/* The first `count` of them, then 0. */
static vec read_some(const char *at, int type, int count) {
    float values[WIDTH];
    read_elements(at, type, count, WIDTH, values);
    return load(values);
}

/* Turned keys, and values, of one step as floats. keys, values: where each begins. */
INLINE void read_type(const struct attend_args *args, const char *const *keys, const char *const *values, int type, const struct place *at) {
    int size = element_size(type), dim = args->head_dim, value_dim = args->value_dim, stride = padded(value_dim);
    for (int first = 0; first < KEYS_PER_STEP; first += WIDTH) {
        int i = 0;
        for (; type == BFLOAT16 && i + 2 * WIDTH <= dim; i += 2 * WIDTH) { /* pairs are turned as one, and taken apart afterwards */
            vec rows[WIDTH];
            for (int n = 0; n < WIDTH; n++) rows[n] = load((const float *)(keys[first + n] + i * size));
            transpose(rows);
            for (int j = 0; j < WIDTH; j++) {
                store(at->keys + (i + 2 * j) * KEYS_PER_STEP + first, (vec)((ivec)rows[j] << 16));
                store(at->keys + (i + 2 * j + 1) * KEYS_PER_STEP + first, (vec)((ivec)rows[j] & (int32_t)0xffff0000));
            }
        }
        for (; i < dim; i += WIDTH) {
            vec rows[WIDTH];
            if (i + WIDTH <= dim)
                for (int n = 0; n < WIDTH; n++) rows[n] = read_vector(keys[first + n] + i * size, type);
            else
                for (int n = 0; n < WIDTH; n++) rows[n] = read_some(keys[first + n] + i * size, type, dim - i);
            transpose(rows);
            for (int j = 0; j < WIDTH; j++) store(at->keys + (i + j) * KEYS_PER_STEP + first, rows[j]);
        }
    }
    for (int n = 0; n < KEYS_PER_STEP; n++) {
        float *value = at->values + n * stride;
        int i = 0;
        for (; i + WIDTH <= value_dim; i += WIDTH) store(value + i, read_vector(values[n] + i * size, type));
        for (; i < stride; i += WIDTH) store(value + i, read_some(values[n] + i * size, type, value_dim > i ? value_dim - i : 0));
    }
}

/* Where the K and V of keys `start` .. `end` - 1 lie, a step at most. */
INLINE void find_keys(const struct attend_args *args, const struct tile *tile, int start, int end, const char **keys, const char **values) {
    const int32_t *table = args->step->block_table ? args->step->block_table + (int64_t)tile->row * args->step->table_stride : 0;
    const struct kv_view *k = &args->key, *v = &args->value;
    int64_t size = element_size(args->kv_type), k_step = k->token_stride * size, v_step = v->token_stride * size;
    int n = 0, at = table ? start : args->step->query_start_loc[tile->row] + start, last = at + end - start;
    while (at < last) { /* block by block */
        int64_t block = table ? table[at / args->block_size] : 0, token = table ? at % args->block_size : at;
        int stop = table ? at - (int)token + args->block_size : last;
        const char *key = (const char *)k->base + (block * k->block_stride + token * k->token_stride + tile->kv_head * k->head_stride) * size;
        const char *value = (const char *)v->base + (block * v->block_stride + token * v->token_stride + tile->kv_head * v->head_stride) * size;
        for (; at < stop && at < last; at++, n++, key += k_step, value += v_step) keys[n] = key, values[n] = value;
    }
}

/* Where the K and V of one step lie. */
struct step_keys {
    const char *keys[KEYS_PER_STEP], *values[KEYS_PER_STEP];
};

/* Of the step that begins at `start`. If it is far from the one that is worked on, it is asked for: scattered as keys are, the machine does
   not foresee them. */
static void look_ahead(const struct attend_args *args, const struct tile *tile, int start, int end, int asks, struct step_keys *next) {
    int last = start + KEYS_PER_STEP < end ? start + KEYS_PER_STEP : end, size = element_size(args->kv_type);
    if (start >= end) return;
    find_keys(args, tile, start, last, next->keys, next->values);
    for (int n = 0; asks && n < last - start; n++) {
        for (int i = 0; i < args->head_dim * size; i += 64) __builtin_prefetch(next->keys[n] + i, 0, 2);
        for (int i = 0; i < args->value_dim * size; i += 64) __builtin_prefetch(next->values[n] + i, 0, 2);
    }
}

/* What nobody sees lies where there are zeros, since it may be anything. */
static void hide_unseen(int start, int end, const uint8_t *seen, const struct place *at, struct step_keys *step) {
    for (int n = 0; n < KEYS_PER_STEP; n++)
        if (start + n >= end || !seen[n]) step->keys[n] = step->values[n] = at->zeros;
}

/* K, turned, and V of one step as floats. */
static void read_keys(const struct attend_args *args, const char *const *keys, const char *const *values, const struct place *at) {
    switch (args->kv_type) { /* so that each type gets a loop of its own */
    case FLOAT32: read_type(args, keys, values, FLOAT32, at); break;
    case BFLOAT16: read_type(args, keys, values, BFLOAT16, at); break;
    case FLOAT16: read_type(args, keys, values, FLOAT16, at); break;
    case INT8: read_type(args, keys, values, INT8, at); break;
    default: read_type(args, keys, values, args->kv_type, at);
    }
}

/* scores[row, n] = query[row] . key[n], for R rows. Each score has one accumulator. */
INLINE void multiply_keys(const struct place *at, const float *query, int dim, int stride, int R) {
    for (int n = 0; n < KEYS_PER_STEP; n += VECTORS_AT_ONCE * WIDTH) {
        vec sums[ROWS_AT_ONCE][VECTORS_AT_ONCE];
        for (int r = 0; r < R; r++)
            for (int v = 0; v < VECTORS_AT_ONCE; v++) sums[r][v] = splat(0.0f);
        for (int i = 0; i < dim; i++) {
            vec keys[VECTORS_AT_ONCE];
            for (int v = 0; v < VECTORS_AT_ONCE; v++) keys[v] = load(at->keys + i * KEYS_PER_STEP + n + v * WIDTH);
            for (int r = 0; r < R; r++) {
                vec x = splat(query[r * stride + i]);
                for (int v = 0; v < VECTORS_AT_ONCE; v++) sums[r][v] = multiply_add(keys[v], x, sums[r][v]);
            }
        }
        for (int r = 0; r < R; r++)
            for (int v = 0; v < VECTORS_AT_ONCE; v++) store(at->scores + r * KEYS_PER_STEP + n + v * WIDTH, sums[r][v]);
    }
}

/* Soft cap, ALiBi and mask of one row, in this order. */
static void shape_scores(const struct attend_args *args, int head, int position, int start, const uint8_t *visible, float *scores) {
    if (args->soft_cap > 0.0f)
        for (int n = 0; n < KEYS_PER_STEP; n += WIDTH)
            store(scores + n, splat(args->soft_cap) * hyperbolic_tangent(load(scores + n) / splat(args->soft_cap)));
    if (args->alibi_slopes)
        for (int n = 0; n < KEYS_PER_STEP; n++) {
            int key = (start + n) * args->step->num_ranks + args->step->rank;
            scores[n] -= args->alibi_slopes[head] * fabsf((float)(position - key));
        }
    if (visible)
        for (int n = 0; n < KEYS_PER_STEP; n++) scores[n] = visible[n] ? scores[n] : -INFINITY;
}

/* Online softmax: weights replace the scores, the total shrinks to the new peak and takes them in. Returns the factor of shrinking. */
INLINE float weigh(float *scores, float *peak_of_row, float *total) {
    vec high = load(scores);
    for (int n = WIDTH; n < KEYS_PER_STEP; n += WIDTH) high = largest(high, load(scores + n));
    float old_peak = *peak_of_row, new_peak = peak(high) > old_peak ? peak(high) : old_peak;
    if (new_peak == -INFINITY) {
        memset(scores, 0, KEYS_PER_STEP * sizeof *scores);
        return 1.0f;
    }
    float shrink = old_peak == -INFINITY ? 0.0f : exponential(splat(old_peak - new_peak))[0];
    vec added = splat(0.0f);
    for (int n = 0; n < KEYS_PER_STEP; n += WIDTH) {
        vec weights = exponential(load(scores + n) - splat(new_peak));
        store(scores + n, weights);
        added += weights;
    }
    *peak_of_row = new_peak;
    *total = *total * shrink + sum(added);
    return shrink;
}

/* sums[row] = sums[row] * shrink[row] + weights[row] . values, for R rows and V vectors side by side. */
INLINE void add_values(const float *weights, const float *values, int stride, const float *shrink, float *into, int R, int V) {
    vec sums[ROWS_AT_ONCE][VECTORS_AT_ONCE];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) sums[r][v] = splat(0.0f);
    for (int n = 0; n < KEYS_PER_STEP; n++) {
        vec value[VECTORS_AT_ONCE];
        for (int v = 0; v < V; v++) value[v] = load(values + (int64_t)n * stride + v * WIDTH);
        for (int r = 0; r < R; r++) {
            vec weight = splat(weights[r * KEYS_PER_STEP + n]);
            for (int v = 0; v < V; v++) sums[r][v] = multiply_add(weight, value[v], sums[r][v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) {
            float *at = into + (int64_t)r * stride + v * WIDTH;
            store(at, multiply_add(load(at), splat(shrink[r]), sums[r][v]));
        }
}

/* -- few rows: K and V are not written down as floats, but used as they are read. The arithmetic is that of many rows, in the same order. -- */

/* scores[row, n] = query[row] . key[n], for R rows: keys are turned in registers. dim is a multiple of 2 * WIDTH. */
INLINE void multiply_bf16_keys(const char *const *keys, const float *query, int dim, int stride, float *scores, int R) {
    for (int first = 0; first < KEYS_PER_STEP; first += WIDTH) {
        vec sums[ROWS_AT_ONCE];
        for (int r = 0; r < R; r++) sums[r] = splat(0.0f);
        for (int i = 0; i < dim; i += 2 * WIDTH) {
            vec pairs[WIDTH];
            for (int n = 0; n < WIDTH; n++) pairs[n] = load((const float *)(keys[first + n] + i * 2));
            transpose(pairs);
            for (int j = 0; j < WIDTH; j++) {
                vec even = (vec)((ivec)pairs[j] << 16), odd = (vec)((ivec)pairs[j] & (int32_t)0xffff0000);
                for (int r = 0; r < R; r++) {
                    sums[r] = multiply_add(even, splat(query[r * stride + i + 2 * j]), sums[r]);
                    sums[r] = multiply_add(odd, splat(query[r * stride + i + 2 * j + 1]), sums[r]);
                }
            }
        }
        for (int r = 0; r < R; r++) store(scores + r * KEYS_PER_STEP + first, sums[r]);
    }
}

/* `add_values` straight from the cache. value_dim is a multiple of VECTORS_AT_ONCE * WIDTH. */
INLINE void add_bf16_values(const float *weights, const char *const *values, int value_dim, const float *shrink, float *into, int R) {
    for (int i = 0; i < value_dim; i += VECTORS_AT_ONCE * WIDTH) {
        vec sums[ROWS_AT_ONCE][VECTORS_AT_ONCE];
        for (int r = 0; r < R; r++)
            for (int v = 0; v < VECTORS_AT_ONCE; v++) sums[r][v] = splat(0.0f);
        for (int n = 0; n < KEYS_PER_STEP; n++) {
            vec value[VECTORS_AT_ONCE];
            for (int v = 0; v < VECTORS_AT_ONCE; v++) value[v] = read_vector(values[n] + (i + v * WIDTH) * 2, BFLOAT16);
            for (int r = 0; r < R; r++) {
                vec weight = splat(weights[r * KEYS_PER_STEP + n]);
                for (int v = 0; v < VECTORS_AT_ONCE; v++) sums[r][v] = multiply_add(weight, value[v], sums[r][v]);
            }
        }
        for (int r = 0; r < R; r++)
            for (int v = 0; v < VECTORS_AT_ONCE; v++) {
                float *at = into + (int64_t)r * value_dim + i + v * WIDTH;
                store(at, multiply_add(load(at), splat(shrink[r]), sums[r][v]));
            }
    }
}

static int has_few_rows(const struct attend_args *args, int rows) {
    int fits = args->head_dim % (2 * WIDTH) == 0 && args->value_dim % (VECTORS_AT_ONCE * WIDTH) == 0;
    return args->kv_type == BFLOAT16 && fits && (rows <= 4 || rows == ROWS_AT_ONCE);
}

/* Scores of rows first .. first + R - 1 become weights. */
INLINE void weigh_rows(
    const struct attend_args *args, const struct tile *tile, const struct place *at, int lowest, int start, int all_visible, int first, int R,
    struct partial *into, float *shrink
) {
    int group = args->num_heads / args->num_kv_heads;
    for (int r = 0; r < R; r++) {
        int row = first + r, token = row / group;
        float *scores = at->scores + r * KEYS_PER_STEP;
        if (!all_visible || args->soft_cap > 0.0f || args->alibi_slopes)
            shape_scores(
                args, tile->kv_head * group + row % group, lowest + token, start, all_visible ? 0 : at->visible + token * KEYS_PER_STEP, scores
            );
        shrink[r] = weigh(scores, into->peak + row, into->total + row);
    }
}

/* A step's keys into the sums of rows first .. first + R - 1. */
INLINE void add_rows(
    const struct attend_args *args, const struct tile *tile, const struct place *at, int lowest, int start, int all_visible, int first, int R,
    struct partial *into
) {
    int stride = padded(args->head_dim), value_dim = padded(args->value_dim);
    float shrink[ROWS_AT_ONCE];
    multiply_keys(at, at->query + (int64_t)first * stride, args->head_dim, stride, R);
    weigh_rows(args, tile, at, lowest, start, all_visible, first, R, into, shrink);
    float *sums = into->sum + (int64_t)first * value_dim;
    int i = 0;
    for (; i + VECTORS_AT_ONCE * WIDTH <= value_dim; i += VECTORS_AT_ONCE * WIDTH)
        add_values(at->scores, at->values + i, value_dim, shrink, sums + i, R, VECTORS_AT_ONCE);
    for (; i < value_dim; i += WIDTH) add_values(at->scores, at->values + i, value_dim, shrink, sums + i, R, 1);
}

INLINE void add_few(
    const struct attend_args *args, const struct tile *tile, const struct place *at, int lowest, int start, int all_visible,
    const char *const *keys, const char *const *values, int R, struct partial *into
) {
    float shrink[ROWS_AT_ONCE];
    multiply_bf16_keys(keys, at->query, args->head_dim, padded(args->head_dim), at->scores, R);
    weigh_rows(args, tile, at, lowest, start, all_visible, 0, R, into, shrink);
    add_bf16_values(at->scores, values, args->value_dim, shrink, into->sum, R);
}

static void add_few_rows(
    const struct attend_args *args, const struct tile *tile, const struct place *at, int lowest, int start, int all_visible,
    const char *const *keys, const char *const *values, int rows, struct partial *into
) {
    switch (rows) {
    case 1: add_few(args, tile, at, lowest, start, all_visible, keys, values, 1, into); break;
    case 2: add_few(args, tile, at, lowest, start, all_visible, keys, values, 2, into); break;
    case 3: add_few(args, tile, at, lowest, start, all_visible, keys, values, 3, into); break;
    case 4: add_few(args, tile, at, lowest, start, all_visible, keys, values, 4, into); break;
    default: add_few(args, tile, at, lowest, start, all_visible, keys, values, ROWS_AT_ONCE, into);
    }
}

static void add_step(
    const struct attend_args *args, const struct tile *tile, const struct place *at, int lowest, int start, int all_visible, int rows,
    struct partial *into
) {
    int row = 0;
    for (; row + ROWS_AT_ONCE <= rows; row += ROWS_AT_ONCE) add_rows(args, tile, at, lowest, start, all_visible, row, ROWS_AT_ONCE, into);
    for (; row + 3 <= rows; row += 3) add_rows(args, tile, at, lowest, start, all_visible, row, 3, into);
    for (; row < rows; row++) add_rows(args, tile, at, lowest, start, all_visible, row, 1, into);
}

void NAME(slotwise_tile_)(const struct attend_args *args, const struct tile *tile, struct partial *into, char *scratch) {
    int group = args->num_heads / args->num_kv_heads, rows = tile->num_queries * group;
    int dim = padded(args->head_dim), value_dim = padded(args->value_dim), size = element_size(args->query_type);
    int query_start = args->step->query_start_loc[tile->row], query_len = args->step->query_start_loc[tile->row + 1] - query_start;
    int lowest = args->step->seq_lens[tile->row] - query_len + tile->first_query, begin, end;
    uint8_t seen[KEYS_PER_STEP];
    struct step_keys steps[2]; /* the current one and the next */
    struct place at;
    lay_out(args, scratch, &at);
    memset(at.zeros, 0, (size_t)(dim > value_dim ? dim : value_dim) * sizeof(float));
    for (int row = 0; row < rows; row++) {
        int64_t token = query_start + tile->first_query + row / group, head = tile->kv_head * group + row % group;
        const char *from = (const char *)args->query + (token * args->query_token_stride + head * args->query_head_stride) * size;
        float *query = at.query + (int64_t)row * dim;
        read_elements(from, args->query_type, args->head_dim, dim, query);
        for (int i = 0; i < dim; i += WIDTH) store(query + i, load(query + i) * splat(args->score_scale));
        into->peak[row] = -INFINITY, into->total[row] = 0.0f;
        memset(into->sum + (int64_t)row * value_dim, 0, (size_t)value_dim * 4);
    }
    key_range(args, tile, lowest, &begin, &end);
    int start = begin / KEYS_PER_STEP * KEYS_PER_STEP;
    look_ahead(args, tile, start, end, 0, &steps[(start / KEYS_PER_STEP) % 2]);
    for (; start < end; start += KEYS_PER_STEP) {
        int all_visible = sees_all(args, tile, lowest, start, begin, end);
        if (!all_visible) find_visible(args, tile, lowest, start, begin, end, at.visible, seen);
        struct step_keys *now = &steps[(start / KEYS_PER_STEP) % 2], *next = &steps[(start / KEYS_PER_STEP + 1) % 2];
        look_ahead(args, tile, start + KEYS_PER_STEP, end, rows <= ROWS_AT_ONCE, next);
        if (!all_visible) hide_unseen(start, end, seen, &at, now);
        if (has_few_rows(args, rows)) {
            add_few_rows(args, tile, &at, lowest, start, all_visible, now->keys, now->values, rows, into);
        } else {
            read_keys(args, now->keys, now->values, &at);
            add_step(args, tile, &at, lowest, start, all_visible, rows, into);
        }
    }
}

void NAME(slotwise_write_)(const struct write_args *args, int64_t first, int64_t last) {
    int source = element_size(args->source_type), stored = element_size(args->kv_type);
    int is_plain = args->source_type == args->kv_type;
    float row[PADDING];
    for (int64_t token = first; token < last; token++) {
        if (args->slots[token] < 0) continue;
        int64_t block = args->slots[token] / args->block_size, offset = args->slots[token] % args->block_size;
        for (int head = 0; head < args->num_kv_heads; head++)
            for (int which = 0; which < (args->value ? 2 : 1); which++) {
                const struct kv_view *view = which ? &args->value_cache : &args->key_cache;
                const char *from = which ? (const char *)args->value + (token * args->value_token_stride + head * args->value_head_stride) * source
                                         : (const char *)args->key + (token * args->key_token_stride + head * args->key_head_stride) * source;
                char *into = (char *)view->base + (block * view->block_stride + offset * view->token_stride + head * view->head_stride) * stored;
                if (is_plain) {
                    memcpy(into, from, (size_t)args->head_dim * stored);
                    continue;
                }
                float scale = which ? args->v_scale : args->k_scale;
                for (int i = 0; i < args->head_dim; i += PADDING) {
                    int count = args->head_dim - i < PADDING ? args->head_dim - i : PADDING;
                    read_elements(from + (int64_t)i * source, args->source_type, count, PADDING, row);
                    for (int j = 0; j < PADDING; j++) row[j] /= scale;
                    write_elements(row, args->kv_type, count, into + (int64_t)i * stored);
                }
            }
    }
}
