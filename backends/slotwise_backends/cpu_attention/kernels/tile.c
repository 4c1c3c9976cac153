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

struct place {
    float *query, *key, *value, *scores;
    uint8_t *visible; /* [tokens, KEYS_PER_STEP] */
};

static int tile_rows(const struct attend_args *args, int tokens) { return tokens * (args->num_heads / args->num_kv_heads); }

static struct place lay_out(const struct attend_args *args, int tokens, char *scratch) {
    int rows = tile_rows(args, tokens), dim = padded(args->head_dim), value_dim = padded(args->value_dim);
    struct place at;
    at.query = (float *)scratch;
    at.key = at.query + (int64_t)rows * dim;
    at.value = at.key + (int64_t)KEYS_PER_STEP * dim;
    at.scores = at.value + (int64_t)KEYS_PER_STEP * value_dim;
    at.visible = (uint8_t *)(at.scores + (int64_t)rows * KEYS_PER_STEP);
    return at;
}

int64_t NAME(slotwise_scratch_)(const struct attend_args *args) {
    int rows = tile_rows(args, 64), dim = padded(args->head_dim), value_dim = padded(args->value_dim);
    return 4 * ((int64_t)rows * (dim + KEYS_PER_STEP) + KEYS_PER_STEP * (dim + value_dim)) + 64 * KEYS_PER_STEP;
}

/* Positions of keys that some query of the tile may see: a superset, cheap to know. */
static void key_range(const struct attend_args *args, const struct tile *tile, int lowest, int *begin, int *end) {
    int highest = lowest + tile->num_queries - 1, first = 0, last = args->num_keys[tile->row];
    int is_causal = args->causal_rows ? args->causal_rows[tile->row] : args->is_causal;
    if (args->window && lowest - args->window + 1 > first) first = lowest - args->window + 1;
    if (args->chunk_len && lowest / args->chunk_len * args->chunk_len > first) first = lowest / args->chunk_len * args->chunk_len;
    if (is_causal && !args->mask && highest >= 0 && (highest - args->rank + args->num_ranks) / args->num_ranks < last)
        last = (highest - args->rank + args->num_ranks) / args->num_ranks;
    first /= args->num_ranks;
    if (tile->split >= 0) {
        int split_begin = tile->split * KEYS_PER_SPLIT;
        if (first < split_begin) first = split_begin;
        if (last > split_begin + KEYS_PER_SPLIT) last = split_begin + KEYS_PER_SPLIT;
    }
    *begin = first, *end = last;
}

/* Who sees what in one step; returns whether every query sees every key of it. seen[n]: some query sees key n. */
static int find_visible(
    const struct attend_args *args, const struct tile *tile, int lowest, int start, int begin, int end, uint8_t *visible, uint8_t *seen
) {
    int row = tile->row, seq_len = args->seq_lens[row], all = 1;
    int is_causal = !args->mask && (args->causal_rows ? args->causal_rows[row] : args->is_causal);
    memset(seen, 0, KEYS_PER_STEP);
    for (int t = 0; t < tile->num_queries; t++) {
        int position = lowest + t;
        const uint8_t *mask = args->mask ? args->mask + args->mask_start[row] + (int64_t)(tile->first_query + t) * seq_len : 0;
        for (int n = 0; n < KEYS_PER_STEP; n++) {
            int held = start + n, key = held * args->num_ranks + args->rank;
            int sees = held >= begin && held < end;
            if (sees && mask) sees = mask[key];
            if (is_causal) sees &= key <= position;
            if (args->window) sees &= position - key < args->window && key - position < args->window;
            if (args->chunk_len) sees &= position / args->chunk_len == key / args->chunk_len;
            visible[t * KEYS_PER_STEP + n] = (uint8_t)sees;
            seen[n] |= (uint8_t)sees;
            all &= sees;
        }
    }
    return all;
}

/* K and V of one step as floats; what nobody sees is 0 and not read, since it may be anything. */
static void read_keys(const struct attend_args *args, const struct tile *tile, int start, const uint8_t *seen, const struct place *at) {
    int size = element_size(args->kv_type), dim = padded(args->head_dim), value_dim = padded(args->value_dim);
    int query_start = args->query_start_loc[tile->row];
    const int32_t *table = args->block_table ? args->block_table + (int64_t)tile->row * args->table_stride : 0;
    for (int n = 0; n < KEYS_PER_STEP; n++) {
        float *key = at->key + n * dim, *value = at->value + n * value_dim;
        if (!seen[n]) {
            memset(key, 0, (size_t)dim * 4);
            memset(value, 0, (size_t)value_dim * 4);
            continue;
        }
        int64_t block = table ? table[(start + n) / args->block_size] : 0;
        int64_t token = table ? (start + n) % args->block_size : query_start + start + n;
        const struct kv_view *k = &args->key, *v = &args->value;
        int64_t k_place = block * k->block_stride + token * k->token_stride + tile->kv_head * k->head_stride;
        int64_t v_place = block * v->block_stride + token * v->token_stride + tile->kv_head * v->head_stride;
        read_elements((const char *)k->base + k_place * size, args->kv_type, args->head_dim, dim, key);
        read_elements((const char *)v->base + v_place * size, args->kv_type, args->value_dim, value_dim, value);
    }
}

/* scores[row, n] = query[row] . key[n] */
static void multiply_keys(const struct place *at, int rows, int dim) {
    for (int row = 0; row < rows; row++) {
        const float *q = at->query + (int64_t)row * dim;
        float *scores = at->scores + (int64_t)row * KEYS_PER_STEP;
        for (int n = 0; n < KEYS_PER_STEP; n += 8) {
            const float *k = at->key + n * dim;
            vec a[8];
            for (int j = 0; j < 8; j++) a[j] = splat(0.0f);
            for (int i = 0; i < dim; i += WIDTH) {
                vec x = load(q + i);
                for (int j = 0; j < 8; j++) a[j] += x * load(k + j * dim + i);
            }
            vec4 first = sums(a[0], a[1], a[2], a[3]), second = sums(a[4], a[5], a[6], a[7]);
            memcpy(scores + n, &first, 16);
            memcpy(scores + n + 4, &second, 16);
        }
    }
}

/* Scale, soft cap, ALiBi and mask, in this order. */
static void shape_scores(
    const struct attend_args *args, const struct tile *tile, const struct place *at, int lowest, int start, int all_visible
) {
    int group = args->num_heads / args->num_kv_heads;
    for (int row = 0; row < tile->num_queries * group; row++) {
        int token = row / group, head = tile->kv_head * group + row % group;
        float *scores = at->scores + (int64_t)row * KEYS_PER_STEP;
        const uint8_t *visible = at->visible + token * KEYS_PER_STEP;
        for (int n = 0; n < KEYS_PER_STEP; n += WIDTH) {
            vec s = load(scores + n) * splat(args->score_scale);
            if (args->soft_cap > 0.0f) s = splat(args->soft_cap) * hyperbolic_tangent(s / splat(args->soft_cap));
            store(scores + n, s);
        }
        if (args->alibi_slopes)
            for (int n = 0; n < KEYS_PER_STEP; n++) {
                int key = (start + n) * args->num_ranks + args->rank;
                scores[n] -= args->alibi_slopes[head] * fabsf((float)(lowest + token - key));
            }
        if (!all_visible)
            for (int n = 0; n < KEYS_PER_STEP; n++) scores[n] = visible[n] ? scores[n] : -INFINITY;
    }
}

/* total = total * shrink + weights . values, for `count` vectors side by side: several sums at a time hide the latency of each. */
static inline __attribute__((always_inline)) void add_values(
    const float *weights, const float *values, int stride, float shrink, float *total, int count
) {
    vec sums[8];
    for (int j = 0; j < count; j++) sums[j] = splat(0.0f);
    for (int n = 0; n < KEYS_PER_STEP; n++) {
        vec weight = splat(weights[n]);
        for (int j = 0; j < count; j++) sums[j] += weight * load(values + (int64_t)n * stride + j * WIDTH);
    }
    for (int j = 0; j < count; j++) store(total + j * WIDTH, load(total + j * WIDTH) * splat(shrink) + sums[j]);
}

/* Online softmax: weights replace the scores, sums shrink to the new peak and take the step in. */
static void add_step(const struct place *at, int rows, int value_dim, struct partial *into) {
    for (int row = 0; row < rows; row++) {
        float *scores = at->scores + (int64_t)row * KEYS_PER_STEP, *total = into->sum + (int64_t)row * value_dim;
        vec high = load(scores);
        for (int n = WIDTH; n < KEYS_PER_STEP; n += WIDTH) high = largest(high, load(scores + n));
        float old_peak = into->peak[row], new_peak = peak(high) > old_peak ? peak(high) : old_peak;
        if (new_peak == -INFINITY) continue;
        float shrink = old_peak == -INFINITY ? 0.0f : exponential(splat(old_peak - new_peak))[0];
        vec added = splat(0.0f);
        for (int n = 0; n < KEYS_PER_STEP; n += WIDTH) {
            vec weights = exponential(load(scores + n) - splat(new_peak));
            store(scores + n, weights);
            added += weights;
        }
        into->peak[row] = new_peak;
        into->total[row] = into->total[row] * shrink + sum(added);
        int i = 0;
        for (; i + 8 * WIDTH <= value_dim; i += 8 * WIDTH) add_values(scores, at->value + i, value_dim, shrink, total + i, 8);
        for (; i + 4 * WIDTH <= value_dim; i += 4 * WIDTH) add_values(scores, at->value + i, value_dim, shrink, total + i, 4);
        for (; i < value_dim; i += WIDTH) add_values(scores, at->value + i, value_dim, shrink, total + i, 1);
    }
}

void NAME(slotwise_tile_)(const struct attend_args *args, const struct tile *tile, struct partial *into, char *scratch) {
    int group = args->num_heads / args->num_kv_heads, rows = tile->num_queries * group;
    int dim = padded(args->head_dim), value_dim = padded(args->value_dim), size = element_size(args->query_type);
    int query_start = args->query_start_loc[tile->row], query_len = args->query_start_loc[tile->row + 1] - query_start;
    int lowest = args->seq_lens[tile->row] - query_len + tile->first_query, begin, end;
    uint8_t seen[KEYS_PER_STEP];
    struct place at = lay_out(args, tile->num_queries, scratch);
    for (int row = 0; row < rows; row++) {
        int64_t token = query_start + tile->first_query + row / group, head = tile->kv_head * group + row % group;
        const char *from = (const char *)args->query + (token * args->query_token_stride + head * args->query_head_stride) * size;
        read_elements(from, args->query_type, args->head_dim, dim, at.query + (int64_t)row * dim);
        into->peak[row] = -INFINITY, into->total[row] = 0.0f;
        memset(into->sum + (int64_t)row * value_dim, 0, (size_t)value_dim * 4);
    }
    key_range(args, tile, lowest, &begin, &end);
    for (int start = begin / KEYS_PER_STEP * KEYS_PER_STEP; start < end; start += KEYS_PER_STEP) {
        int all_visible = find_visible(args, tile, lowest, start, begin, end, at.visible, seen);
        read_keys(args, tile, start, seen, &at);
        multiply_keys(&at, rows, dim);
        shape_scores(args, tile, &at, lowest, start, all_visible);
        add_step(&at, rows, value_dim, into);
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
