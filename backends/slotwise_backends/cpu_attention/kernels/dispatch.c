/* Which instruction set runs, and how a step's work is spread over threads. The only functions that Python calls. */
#include <math.h>
#include <pthread.h>
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

/* Memory of the calling thread that is kept from call to call: fresh memory would cost a page fault for every 4 KiB. */
struct memory {
    char *base;
    int64_t size;
};

static pthread_key_t memory_key;
static void forget_memory(void *kept) { free(((struct memory *)kept)->base), free(kept); }
static void make_memory_key(void) { pthread_key_create(&memory_key, forget_memory); }

static char *kept_memory(int64_t size) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_memory_key);
    struct memory *kept = pthread_getspecific(memory_key);
    if (!kept) {
        kept = calloc(1, sizeof *kept);
        if (!kept || pthread_setspecific(memory_key, kept)) return free(kept), (char *)0;
    }
    if (kept->size < size) {
        free(kept->base);
        kept->base = aligned_alloc(LINE, (size_t)in_lines(size));
        kept->size = kept->base ? size : 0;
    }
    return kept->base;
}

/* What the threads of one call share. Tiles come in three kinds, in this order: single tokens with several splits, a tile for each of them,
   whose sums are kept as parts; single tokens with one split; many tokens. */
struct attend_job {
    const struct attend_args *args;
    struct tile *tiles;
    int64_t num_split, num_single, num_tiles; /* where each kind ends */
    int64_t together; /* heads of a single token that one thread takes, because their keys lie in the same cache lines */
    char *parts, *scratch;
    int64_t part_size, scratch_size, sums_size;
    int group, value_dim;
};

static struct partial part_of(const struct attend_job *job, int64_t tile) {
    return partial_at((float *)(job->parts + tile * job->part_size), job->group, job->value_dim);
}

static void attend_item(void *context, int64_t item, int thread) {
    const struct attend_job *job = context;
    char *sums = job->scratch + thread * (job->scratch_size + job->sums_size), *scratch = sums + job->sums_size;
    int64_t first = item * job->together, last = first + job->together;
    if (first >= job->num_single) first = job->num_single + item - job->num_single / job->together, last = first + 1;
    for (int64_t at = first; at < last; at++) {
        struct partial part = part_of(job, at);
        if (at < job->num_split) best()->tile(job->args, &job->tiles[at], &part, scratch);
        else whole_tile(job->args, job->tiles[at], (float *)sums, scratch);
    }
}

/* The parts of one head of a single token, in the order of its keys. They begin at tile `item` of its row's tiles, if that is a first split. */
static void merge_item(void *context, int64_t item, int thread) {
    const struct attend_job *job = context;
    struct tile tile = job->tiles[item];
    if (tile.split) return;
    struct partial all = part_of(job, item);
    for (int split = 1; split < num_splits(job->args, tile.row); split++) {
        struct partial part = part_of(job, item + (int64_t)split * job->args->num_kv_heads);
        merge(&all, &part, job->group, job->value_dim);
    }
    finish(job->args, &tile, &all, (float *)(job->scratch + thread * (job->scratch_size + job->sums_size)));
}

static int is_split(const struct attend_args *args, int row) {
    return args->step->query_start_loc[row + 1] - args->step->query_start_loc[row] == 1 && num_splits(args, row) > 1;
}

static int is_single(const struct attend_args *args, int row) {
    return args->step->query_start_loc[row + 1] - args->step->query_start_loc[row] == 1 && num_splits(args, row) <= 1;
}

static void lay_tiles(struct attend_job *job, int tokens_per_tile) {
    const struct attend_args *args = job->args;
    int heads = args->num_kv_heads, num_rows = args->step->num_rows;
    int64_t count = 0;
    for (int row = 0; row < num_rows; row++)
        for (int split = 0; is_split(args, row) && split < num_splits(args, row); split++)
            for (int head = 0; head < heads; head++) job->tiles[count++] = (struct tile){row, 0, 1, head, split};
    job->num_split = count;
    for (int row = 0; row < num_rows; row++)
        for (int head = 0; is_single(args, row) && head < heads; head++) job->tiles[count++] = (struct tile){row, 0, 1, head, -1};
    job->num_single = count;
    for (int row = 0; row < num_rows; row++) {
        int query_len = args->step->query_start_loc[row + 1] - args->step->query_start_loc[row];
        for (int first = 0; query_len > 1 && first < query_len; first += tokens_per_tile)
            for (int head = 0; head < heads; head++) {
                int tokens = query_len - first < tokens_per_tile ? query_len - first : tokens_per_tile;
                job->tiles[count++] = (struct tile){row, first, tokens, head, -1};
            }
    }
    job->num_tiles = count;
}

/* 0, or 1 if memory ran out. */
int slotwise_attend(const struct attend_args *args) {
    int group = args->num_heads / args->num_kv_heads, value_dim = padded(args->value_dim), num_threads = args->step->num_threads;
    int tokens_per_tile = group < ROWS_PER_TILE ? ROWS_PER_TILE / group : 1;
    int64_t num_tiles = 0, num_parts = 0;
    for (int row = 0; row < args->step->num_rows; row++) {
        int query_len = args->step->query_start_loc[row + 1] - args->step->query_start_loc[row];
        num_tiles += (int64_t)((query_len + tokens_per_tile - 1) / tokens_per_tile) * args->num_kv_heads;
        if (is_split(args, row)) num_parts += (int64_t)num_splits(args, row) * args->num_kv_heads;
    }
    if (!num_tiles) return 0;
    struct attend_job job = {.args = args, .group = group, .value_dim = value_dim};
    job.part_size = in_lines((int64_t)group * (value_dim + 2) * 4);
    job.scratch_size = in_lines(best()->scratch(args));
    job.sums_size = 2 * in_lines((int64_t)tokens_per_tile * group * (value_dim + 2) * 4);
    int64_t tiles_size = in_lines((int64_t)sizeof(struct tile) * (num_tiles + num_parts));
    char *memory = kept_memory(tiles_size + num_parts * job.part_size + num_threads * (job.scratch_size + job.sums_size));
    if (!memory) return 1;
    job.tiles = (struct tile *)memory;
    job.parts = memory + tiles_size;
    job.scratch = job.parts + num_parts * job.part_size;
    lay_tiles(&job, tokens_per_tile);
    job.together = job.num_single >= 2 * (int64_t)num_threads * args->num_kv_heads ? args->num_kv_heads : 1;
    slotwise_run(num_threads, job.num_single / job.together + job.num_tiles - job.num_single, attend_item, &job);
    if (job.num_split) slotwise_run(num_threads, job.num_split, merge_item, &job);
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
