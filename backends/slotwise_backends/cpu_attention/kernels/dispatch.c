/* Which instruction set runs, and how a step's work is spread over threads. The only functions that Python calls. */
#include <math.h>
#include <stdlib.h>

#include "elements.h"
#include "pool.h"

typedef int64_t (*scratch_function)(const struct attend_args *);
typedef void (*tile_function)(const struct attend_args *, const struct tile *, struct partial *, char *);
typedef void (*write_function)(const struct write_args *, int64_t, int64_t);

struct variant {
    const char *name;
    scratch_function scratch;
    tile_function tile;
    write_function write;
};

#define VARIANT_OF(name) {#name, slotwise_scratch_##name, slotwise_tile_##name, slotwise_write_##name}

static const struct variant variants[] = {
#ifdef HAS_AVX512
    VARIANT_OF(avx512),
#endif
#ifdef HAS_AVX2
    VARIANT_OF(avx2),
#endif
    VARIANT_OF(baseline),
};

static int is_supported(const struct variant *variant) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (variant->name[3] == '5')
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq");
    if (variant->name[0] == 'a') return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return 1;
}

static const struct variant *best(void) {
    static const struct variant *found = 0;
    if (!found)
        for (unsigned i = 0; i < sizeof variants / sizeof *variants && !found; i++)
            if (is_supported(&variants[i])) found = &variants[i];
    return found;
}

const char *slotwise_variant(void) { return best()->name; }
int slotwise_abi_version(void) { return SLOTWISE_ABI_VERSION; }

static int padded(int dim) { return (dim + PADDING - 1) / PADDING * PADDING; }

/* Takes a later part of the keys into the sums of the earlier ones. */
static void merge(struct partial *into, const struct partial *part, int rows, int value_dim) {
    for (int row = 0; row < rows; row++) {
        float high = into->peak[row] > part->peak[row] ? into->peak[row] : part->peak[row];
        if (high == -INFINITY) continue;
        float mine = expf(into->peak[row] - high), yours = expf(part->peak[row] - high);
        for (int i = 0; i < value_dim; i++) {
            int64_t at = (int64_t)row * value_dim + i;
            into->sum[at] = into->sum[at] * mine + part->sum[at] * yours;
        }
        into->total[row] = into->total[row] * mine + part->total[row] * yours;
        into->peak[row] = high;
    }
}

/* Sinks join once, rows that saw nothing become 0. */
static void finish(const struct attend_args *args, const struct tile *tile, const struct partial *from, float *row_scratch) {
    int group = args->num_heads / args->num_kv_heads, value_dim = padded(args->value_dim), size = element_size(args->query_type);
    for (int row = 0; row < tile->num_queries * group; row++) {
        int head = tile->kv_head * group + row % group;
        int64_t token = args->step->query_start_loc[tile->row] + tile->first_query + row / group, place = token * args->num_heads + head;
        float high = from->peak[row], factor = 0.0f, lse = -INFINITY;
        if (high != -INFINITY) {
            float base = args->sinks && args->sinks[head] > high ? args->sinks[head] : high;
            float total = from->total[row] * expf(high - base) + (args->sinks ? expf(args->sinks[head] - base) : 0.0f);
            factor = expf(high - base) / total * args->value_scale;
            lse = base + logf(total);
        }
        for (int i = 0; i < args->value_dim; i++) row_scratch[i] = factor == 0.0f ? 0.0f : from->sum[(int64_t)row * value_dim + i] * factor;
        write_elements(row_scratch, args->query_type, args->value_dim, (char *)args->output + place * args->value_dim * size);
        if (args->lse) args->lse[place] = lse;
    }
}

static int num_splits(const struct attend_args *args, int row) { return (args->step->num_keys[row] + KEYS_PER_SPLIT - 1) / KEYS_PER_SPLIT; }

/* Sums first: they begin where their memory does, at a cache line. */
static struct partial partial_at(float *memory, int64_t rows, int value_dim) {
    return (struct partial){memory + rows * value_dim, memory + rows * (value_dim + 1), memory};
}

/* Whole cache lines: vectors that lie across two of them cost twice. */
#define LINE 64
static int64_t in_lines(int64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }
static void *lines(int64_t bytes) { return aligned_alloc(LINE, (size_t)in_lines(bytes)); }

/* Splits one after the other: each is summed on its own and then merged, exactly as if other threads had done them. */
static void whole_tile(const struct attend_args *args, struct tile tile, float *sums, char *scratch) {
    int group = args->num_heads / args->num_kv_heads, rows = tile.num_queries * group, value_dim = padded(args->value_dim);
    struct partial all = partial_at(sums, rows, value_dim);
    struct partial part = partial_at(sums + in_lines((int64_t)rows * (value_dim + 2) * 4) / 4, rows, value_dim);
    int count = num_splits(args, tile.row);
    tile.split = 0;
    best()->tile(args, &tile, &all, scratch);
    for (tile.split = 1; tile.split < count; tile.split++) {
        best()->tile(args, &tile, &part, scratch);
        merge(&all, &part, rows, value_dim);
    }
    finish(args, &tile, &all, (float *)scratch);
}

/* What the threads of one call share. */
struct attend_job {
    const struct attend_args *args;
    const struct tile *tiles;
    float *parts, *sums;
    char *scratch;
    int64_t num_split_tiles, part_size, sums_size, scratch_size;
    int64_t heads_together; /* of one row's split, by one thread: their keys lie in the same cache lines */
    int group;
};

static void attend_item(void *context, int64_t item, int thread) {
    const struct attend_job *job = context;
    char *mine = job->scratch + thread * job->scratch_size;
    int64_t num_split_items = job->num_split_tiles / job->heads_together, first = item * job->heads_together;
    if (item >= num_split_items) {
        whole_tile(job->args, job->tiles[job->num_split_tiles + item - num_split_items], job->sums + thread * job->sums_size, mine);
        return;
    }
    for (int64_t at = first; at < first + job->heads_together; at++) {
        struct partial part = partial_at(job->parts + at * job->part_size, job->group, padded(job->args->value_dim));
        best()->tile(job->args, &job->tiles[at], &part, mine);
    }
}

/* 0, or 1 if memory ran out. */
int slotwise_attend(const struct attend_args *args) {
    int group = args->num_heads / args->num_kv_heads, value_dim = padded(args->value_dim);
    int tokens_per_tile = group < ROWS_PER_TILE ? ROWS_PER_TILE / group : 1;
    int64_t num_tiles = 0, num_parts = 0, largest = (int64_t)tokens_per_tile * group * (value_dim + 2);
    for (int row = 0; row < args->step->num_rows; row++) {
        int query_len = args->step->query_start_loc[row + 1] - args->step->query_start_loc[row];
        num_tiles += (int64_t)((query_len + tokens_per_tile - 1) / tokens_per_tile) * args->num_kv_heads;
        if (query_len == 1) num_parts += (int64_t)num_splits(args, row) * args->num_kv_heads;
    }
    if (!num_tiles) return 0;
    int64_t part_size = in_lines((int64_t)group * (value_dim + 2) * 4) / 4, scratch_size = in_lines(best()->scratch(args));
    int num_threads = args->step->num_threads;
    largest = 2 * in_lines(largest * 4) / 4; /* two partials */
    struct tile *tiles = malloc(sizeof *tiles * (size_t)(num_tiles + num_parts));
    float *parts = lines(num_parts * part_size * 4 + 4);
    float *sums = lines(num_threads * largest * 4);
    char *scratch = lines(num_threads * scratch_size);
    if (!tiles || !parts || !sums || !scratch) {
        free(tiles), free(parts), free(sums), free(scratch);
        return 1;
    }
    /* Single tokens: one tile per split and head, its part kept. Longer rows: one item per tile. */
    int64_t count = 0, num_split_tiles = 0;
    for (int row = 0; row < args->step->num_rows; row++)
        if (args->step->query_start_loc[row + 1] - args->step->query_start_loc[row] == 1)
            for (int split = 0; split < num_splits(args, row); split++)
                for (int head = 0; head < args->num_kv_heads; head++) tiles[count++] = (struct tile){row, 0, 1, head, split};
    num_split_tiles = count;
    for (int row = 0; row < args->step->num_rows; row++) {
        int query_len = args->step->query_start_loc[row + 1] - args->step->query_start_loc[row];
        for (int first = 0; query_len > 1 && first < query_len; first += tokens_per_tile)
            for (int head = 0; head < args->num_kv_heads; head++) {
                int tokens = query_len - first < tokens_per_tile ? query_len - first : tokens_per_tile;
                tiles[count++] = (struct tile){row, first, tokens, head, -1};
            }
    }
    int64_t together = num_split_tiles >= 2 * (int64_t)num_threads * args->num_kv_heads ? args->num_kv_heads : 1;
    struct attend_job job = {args, tiles, parts, sums, scratch, num_split_tiles, part_size, largest, scratch_size, together, group};
    slotwise_run(num_threads, num_split_tiles / together + count - num_split_tiles, attend_item, &job);
    /* Parts of single tokens, in the order of their keys; a row without keys has none and becomes 0. */
    int64_t at = 0;
    for (int row = 0; row < args->step->num_rows; row++) {
        if (args->step->query_start_loc[row + 1] - args->step->query_start_loc[row] != 1) continue;
        int splits = num_splits(args, row), heads = args->num_kv_heads;
        for (int head = 0; head < heads; head++) {
            struct partial all = partial_at(sums, group, value_dim);
            struct tile tile = {row, 0, 1, head, -1};
            if (splits) all = partial_at(parts + (at + head) * part_size, group, value_dim);
            else for (int i = 0; i < group; i++) all.peak[i] = -INFINITY;
            for (int split = 1; split < splits; split++) {
                struct partial part = partial_at(parts + (at + split * heads + head) * part_size, group, value_dim);
                merge(&all, &part, group, value_dim);
            }
            finish(args, &tile, &all, (float *)scratch);
        }
        at += (int64_t)splits * heads;
    }
    free(tiles), free(parts), free(sums), free(scratch);
    return 0;
}

#define TOKENS_PER_CHUNK 16

static void write_chunk(void *context, int64_t chunk, int thread) {
    const struct write_args *args = context;
    int64_t first = chunk * TOKENS_PER_CHUNK, last = first + TOKENS_PER_CHUNK;
    (void)thread;
    best()->write(args, first, last < args->num_tokens ? last : args->num_tokens);
}

void slotwise_write(const struct write_args *args) {
    slotwise_run(args->num_threads, (args->num_tokens + TOKENS_PER_CHUNK - 1) / TOKENS_PER_CHUNK, write_chunk, (void *)args);
}
