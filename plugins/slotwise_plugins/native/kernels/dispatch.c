/* Which instruction set runs, and how rows and panels are spread over threads. The only functions that Python calls. */
#include "dense.h"
#include "pool.h"

#define MOST_PANELS_PER_CHUNK 8 /* so that a thread that lost its core is waited for not long */
#define ROWS_PER_CHUNK 8 /* of elementwise work */

typedef void (*linear_function)(const struct linear_args *, int64_t, int64_t);

struct variant {
    const char *name;
    linear_function prepare, panels;
    int64_t (*row_bytes)(const struct linear_args *);
    void (*norm)(const struct norm_args *, int64_t, int64_t);
    void (*rope)(const struct rope_args *, int64_t, int64_t);
    void (*gate)(const struct gate_args *, int64_t, int64_t);
    void (*pack)(const struct pack_args *, int64_t, int64_t);
    void (*unpack)(const struct unpack_args *, int64_t, int64_t);
};

#define DECLARE_ROW_BYTES(name) int64_t slotwise_row_bytes_##name(const struct linear_args *);
DECLARE_ROW_BYTES(baseline)
DECLARE_ROW_BYTES(avx2)
DECLARE_ROW_BYTES(avx512)
DECLARE_ROW_BYTES(avx512dot)

#define VARIANT_OF(name)                                                                                                       \
    {#name, slotwise_prepare_##name, slotwise_panels_##name, slotwise_row_bytes_##name, slotwise_norm_##name, slotwise_rope_##name, \
     slotwise_gate_##name, slotwise_pack_##name, slotwise_unpack_##name}

static const struct variant variants[] = {
#ifdef HAS_AVX512DOT
    VARIANT_OF(avx512dot),
#endif
#ifdef HAS_AVX512
    VARIANT_OF(avx512),
#endif
#ifdef HAS_AVX2
    VARIANT_OF(avx2),
#endif
    VARIANT_OF(baseline),
};
#define NUM_VARIANTS ((int)(sizeof variants / sizeof *variants))

#if defined(__x86_64__)
static int has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd");
}
#endif

static int is_supported(int index) {
    const char *name = variants[index].name;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (name[0] == 'b') return 1;
    if (name[3] == '2') return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (name[6] == 'd') return has_avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
    return has_avx512();
#else
    return name[0] == 'b';
#endif
}

static int chosen = -1;

static const struct variant *current(void) {
    for (int i = 0; chosen < 0; i++)
        if (is_supported(i)) chosen = i;
    return &variants[chosen];
}

/* Intel's cores multiply pairs of bfloat16 at half the rate of float32 (where they have no tiles): there products of that kind are better off
   without. The choice holds for all numbers of rows, so that a row's result does not depend on its company. */
static const struct variant *of_kind(int kind) {
    const struct variant *found = current();
#if defined(HAS_AVX512DOT) && defined(__x86_64__)
    if (kind == KIND_BF16 && found == &variants[0] && __builtin_cpu_is("intel")) return &variants[1];
#endif
    return found;
}

int slotwise_dense_abi_version(void) { return SLOTWISE_DENSE_ABI_VERSION; }
int slotwise_dense_num_variants(void) { return NUM_VARIANTS; }
/* Null for one that this machine does not run. */
const char *slotwise_dense_variant(int index) { return is_supported(index) ? variants[index].name : 0; }
const char *slotwise_dense_current(void) { return current()->name; }
/* For tests: from now on this one runs. */
void slotwise_dense_choose(int index) { chosen = index; }

int64_t slotwise_linear_scratch(const struct linear_args *args) { return args->num_rows * of_kind(args->kind)->row_bytes(args); }

static int64_t divided(int64_t whole, int64_t parts) { return (whole + parts - 1) / parts; }

/* Rows of one call, ROWS_PER_CHUNK at a time. */
struct row_job {
    const void *args;
    void (*work)(const void *args, int64_t first, int64_t end);
    int64_t num_rows;
};

static void row_chunk(void *context, int64_t chunk, int thread) {
    const struct row_job *job = context;
    int64_t first = chunk * ROWS_PER_CHUNK, end = first + ROWS_PER_CHUNK;
    (void)thread;
    job->work(job->args, first, end < job->num_rows ? end : job->num_rows);
}

static void for_rows(const void *args, int64_t num_rows, int num_threads, void (*work)(const void *, int64_t, int64_t)) {
    struct row_job job = {args, work, num_rows};
    slotwise_run(num_threads, divided(num_rows, ROWS_PER_CHUNK), row_chunk, &job);
}

typedef void (*row_function)(const void *, int64_t, int64_t);

/* Panels of one call, as many in each chunk. */
struct panel_job {
    const struct linear_args *args;
    const struct variant *variant;
    int64_t num_panels, size;
};

static void panel_chunk(void *context, int64_t chunk, int thread) {
    const struct panel_job *job = context;
    int64_t first = chunk * job->size, end = first + job->size;
    (void)thread;
    job->variant->panels(job->args, first, end < job->num_panels ? end : job->num_panels);
}

void slotwise_linear(const struct linear_args *args) {
    const struct variant *variant = of_kind(args->kind);
    for_rows(args, args->num_rows, args->num_threads, (row_function)variant->prepare);
    int64_t panels = divided(args->num_outputs, PANEL), threads = args->num_threads < panels ? args->num_threads : panels;
    /* As many chunks for each thread as for any other. */
    int64_t rounds = divided(panels, threads * MOST_PANELS_PER_CHUNK), size = divided(panels, threads * rounds);
    struct panel_job job = {args, variant, panels, size};
    slotwise_run((int)threads, divided(panels, size), panel_chunk, &job);
}

void slotwise_norm(const struct norm_args *args) { for_rows(args, args->num_rows, args->num_threads, (row_function)current()->norm); }
void slotwise_rope(const struct rope_args *args) { for_rows(args, args->num_rows, args->num_threads, (row_function)current()->rope); }
void slotwise_gate(const struct gate_args *args) { for_rows(args, args->num_rows, args->num_threads, (row_function)current()->gate); }

void slotwise_pack(const struct pack_args *args) { for_rows(args, divided(args->num_outputs, PANEL), args->num_threads, (row_function)current()->pack); }
void slotwise_unpack(const struct unpack_args *args) { for_rows(args, args->num_rows, args->num_threads, (row_function)current()->unpack); }

static void *at_row(const struct rows *rows, int64_t row) {
    return (char *)rows->base + (rows->is_whole ? row * rows->stride * (rows->type == ELEMENT_F32 ? 4 : 2) : 0);
}

static void run_link(const struct chain_args *chain, const struct link *link, int64_t first, int32_t count) {
    const struct rows *source = &chain->rows[link->source], *target = &chain->rows[link->target];
    void *in = at_row(source, first), *out = at_row(target, first);
    int32_t threads = chain->num_threads;
    if (link->kind == LINK_LINEAR) {
        struct linear_args args = *(const struct linear_args *)link->parameters;
        args.x = in, args.x_stride = source->stride, args.x_type = source->type;
        args.y = out, args.y_stride = target->stride, args.y_type = target->type;
        args.scratch = chain->scratch, args.num_rows = count, args.adds = link->adds, args.num_threads = threads;
        slotwise_linear(&args);
    } else if (link->kind == LINK_NORM) {
        struct norm_args args = *(const struct norm_args *)link->parameters;
        args.x = in, args.x_stride = source->stride, args.x_type = source->type;
        args.out = out, args.out_stride = target->stride, args.out_type = target->type;
        args.num_rows = count, args.adds = link->adds, args.num_threads = threads;
        slotwise_norm(&args);
    } else if (link->kind == LINK_ROPE) {
        struct rope_args args = *(const struct rope_args *)link->parameters;
        args.qkv = in, args.qkv_stride = source->stride, args.positions = chain->positions + first;
        args.out = out, args.out_stride = target->stride, args.out_type = target->type;
        args.num_rows = count, args.num_threads = threads;
        slotwise_rope(&args);
    } else {
        struct gate_args args = *(const struct gate_args *)link->parameters;
        args.x = in, args.x_stride = source->stride;
        args.out = out, args.out_stride = target->stride, args.out_type = target->type;
        args.num_rows = count, args.num_threads = threads;
        slotwise_gate(&args);
    }
}

void slotwise_chain(const struct chain_args *chain) {
    for (int64_t first = 0; first < chain->num_rows; first += chain->block_size) {
        int64_t left = chain->num_rows - first;
        int32_t count = (int32_t)(left < chain->block_size ? left : chain->block_size);
        for (int64_t i = 0; i < chain->num_links; i++) run_link(chain, &chain->links[i], first, count);
    }
}
