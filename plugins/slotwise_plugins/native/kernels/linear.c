/* Matrix products of a few rows with panels of 16 output features. Compiled once for each instruction set.

   Each output has one accumulator to which its inputs are added in their order, however many rows and panels are computed together; so a
   row's result does not depend on its company. Quantised kinds multiply integers exactly and add up the groups in float32. */
#include <math.h>

#include "formats.h"
#include "vector.h"

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define NAME(stem) JOIN(stem, VARIANT)
#define V (PANEL / WIDTH)
#define INLINE static inline __attribute__((always_inline))
#define ROWS_PER_BLOCK 64 /* whose prepared inputs stay in the cache while all panels pass */
/* A loop over parts of a block, unrolled: else the compiler keeps the sums in memory. */
#define EACH(i, count) _Pragma("GCC unroll 8") for (int i = 0; i < count; i++)
#define HALF_RANGE 127.0f
#define MOST_PANELS 4
#define MOST_ROWS 8

/* Sums of the largest block. They stay in registers only as local arrays of a size that the compiler knows, all of whose loops it unrolls. */
typedef vec block_sums[MOST_PANELS][MOST_ROWS][V];

typedef int8_t byte_vec __attribute__((vector_size(WIDTH), aligned(1), may_alias));

/* -- inputs -- */

static int64_t padded_inputs(const struct linear_args *args) {
    int unit = args->kind == KIND_F32 ? 1 : args->kind == KIND_BF16 ? 2 : GROUP;
    return (args->num_inputs + unit - 1) / unit * unit;
}

/* Bytes of one prepared row: elements, then per group its scale and its scaled sum. */
static int64_t row_bytes(const struct linear_args *args) {
    int64_t k = padded_inputs(args);
    if (args->kind == KIND_U8 || args->kind == KIND_U4) return k + k / GROUP * 8;
    return k * 4;
}

int64_t NAME(slotwise_row_bytes_)(const struct linear_args *args) { return row_bytes(args); }

/* To the nearest, ties to even: adding 1.5 * 2^23 rounds to an integer that stands in the low bits. */
INLINE ivec nearest(vec x) { return (ivec)(x + splat(12582912.0f)) - (ivec)splat(12582912.0f); }

/* Groups of signed bytes, each with a scale, and that times the sum of its codes. A group with a value that is not finite gets NaN for both,
   so that what is not a number stays none. */
static void quantise(const float *values, int64_t k, char *out) {
    int8_t *codes = (int8_t *)out;
    float *scales = (float *)(out + k), *sums = scales + k / GROUP;
    for (int64_t group = 0; group < k / GROUP; group++) {
        const float *in = values + group * GROUP;
        vec high = splat(0.0f), spoiled = splat(0.0f);
        for (int i = 0; i < GROUP; i += WIDTH) {
            vec x = load(in + i);
            high = largest(high, (vec)((ivec)x & 0x7fffffff));
            spoiled += x - x; /* 0, or NaN for what is not finite */
        }
        float top = peak(high), unfit = sum(spoiled);
        vec factor = splat(top > 0.0f && unfit == 0.0f ? HALF_RANGE / top : 0.0f);
        ivec total = {0};
        for (int i = 0; i < GROUP; i += WIDTH) {
            ivec code = unfit == 0.0f ? nearest(load(in + i) * factor) : (ivec){0};
            total += code;
            *(byte_vec *)(codes + group * GROUP + i) = __builtin_convertvector(code, byte_vec);
        }
        scales[group] = top / HALF_RANGE + unfit;
        sums[group] = scales[group] * sum(__builtin_convertvector(total, vec));
    }
}

void NAME(slotwise_prepare_)(const struct linear_args *args, int64_t first, int64_t end) {
    int64_t k = padded_inputs(args), bytes = row_bytes(args);
    float values[k];
    for (int64_t row = first; row < end; row++) {
        const char *in = (const char *)args->x + row * args->x_stride * element_bytes(args->x_type);
        char *out = (char *)args->scratch + row * bytes;
        read_row(in, args->x_type, args->num_inputs, values);
        for (int64_t i = args->num_inputs; i < k; i++) values[i] = 0.0f;
        if (args->kind == KIND_U8 || args->kind == KIND_U4) {
            quantise(values, k, out);
        } else if (args->kind == KIND_BF16) {
#if defined(__AVX512BF16__)
            write_row(values, ELEMENT_BF16, k, out);
#else
            round_row(values, k, (float *)out);
#endif
        } else {
            for (int64_t i = 0; i < k; i++) ((float *)out)[i] = values[i];
        }
    }
}

/* -- outputs -- */

/* One row's outputs of a panel into memory. */
static __attribute__((noinline)) void finish(const struct linear_args *args, float *values, int64_t output, int64_t count, int64_t row) {
    if (args->bias)
        for (int64_t i = 0; i < count; i++) values[i] += ((const float *)args->bias)[output + i];
    char *y = (char *)args->y + (row * args->y_stride + output) * element_bytes(args->y_type);
    if (args->adds) {
        float before[PANEL];
        read_row(y, args->y_type, count, before);
        for (int64_t i = 0; i < count; i++) values[i] += before[i];
    }
    write_row(values, args->y_type, count, y);
}

/* What is added to sums, and where they go. */
INLINE void put(const struct linear_args *args, int64_t first_panel, int64_t row, int P, int R, block_sums sum) {
    EACH(p, P) {
        int64_t output = (first_panel + p) * PANEL;
        int64_t count = args->num_outputs - output < PANEL ? args->num_outputs - output : PANEL;
        EACH(r, R) {
            float values[PANEL];
            EACH(v, V) store(values + v * WIDTH, sum[p][r][v]);
            finish(args, values, output, count, row + r);
        }
    }
}

/* -- products: sums of P panels * R prepared rows -- */

INLINE void clear(block_sums sum, int P, int R) {
    EACH(p, P)
        EACH(r, R)
            EACH(v, V) sum[p][r][v] = splat(0.0f);
}

INLINE void product_f32(const struct linear_args *args, int64_t first_panel, int64_t row, int P, int R) {
    int64_t k = padded_inputs(args), bytes = row_bytes(args), panel = k * PANEL;
    const float *w = (const float *)args->weights + first_panel * panel;
    const char *x = (const char *)args->scratch + row * bytes;
    block_sums sum;
    clear(sum, P, R);
    for (int64_t i = 0; i < k; i++)
        EACH(p, P)
            EACH(v, V) {
                vec weight = load(w + p * panel + i * PANEL + v * WIDTH);
                EACH(r, R) sum[p][r][v] = multiply_add(weight, splat(((const float *)(x + r * bytes))[i]), sum[p][r][v]);
            }
    put(args, first_panel, row, P, R, sum);
}

INLINE void product_bf16(const struct linear_args *args, int64_t first_panel, int64_t row, int P, int R) {
    int64_t k = padded_inputs(args), bytes = row_bytes(args), panel = k * PANEL;
    const uint16_t *w = (const uint16_t *)args->weights + first_panel * panel;
    const char *x = (const char *)args->scratch + row * bytes;
    block_sums sum;
    clear(sum, P, R);
    for (int64_t i = 0; i < k / 2; i++)
        EACH(p, P)
            EACH(v, V) {
                const uint16_t *at = w + p * panel + (i * PANEL + v * WIDTH) * 2;
#if defined(__AVX512BF16__)
                __m512bh weight = (__m512bh)_mm512_loadu_si512(at);
                EACH(r, R) {
                    __m512bh input = (__m512bh)_mm512_set1_epi32(((const int32_t *)(x + r * bytes))[i]);
                    sum[p][r][v] = (vec)_mm512_dpbf16_ps((__m512)sum[p][r][v], weight, input);
                }
#else
                ivec both = *(const ivec *)at;
                vec even = (vec)(both << 16), odd = (vec)(both & (int32_t)0xffff0000);
                EACH(r, R) {
                    const float *in = (const float *)(x + r * bytes) + 2 * i;
                    sum[p][r][v] = multiply_add(even, splat(in[0]), sum[p][r][v]);
                    sum[p][r][v] = multiply_add(odd, splat(in[1]), sum[p][r][v]);
                }
#endif
            }
    put(args, first_panel, row, P, R, sum);
}

/* sum of four products of an unsigned byte of each lane with a signed byte that all lanes share, added to `sum` */
INLINE ivec dot4(ivec sum, ivec bytes, int32_t four) {
#if defined(__AVX512VNNI__)
    return (ivec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)bytes, _mm512_set1_epi32(four));
#else
    int32_t a = (int8_t)four, b = (int8_t)(four >> 8), c = (int8_t)(four >> 16), d = (int8_t)(four >> 24);
    int32_t ac = (a & 0xffff) | (int32_t)((uint32_t)c << 16), bd = (b & 0xffff) | (int32_t)((uint32_t)d << 16);
    ivec even = bytes & 0x00ff00ff, odd = (bytes >> 8) & 0x00ff00ff;
#if defined(__AVX512BW__)
    sum += (ivec)_mm512_madd_epi16((__m512i)even, _mm512_set1_epi32(ac));
    return sum + (ivec)_mm512_madd_epi16((__m512i)odd, _mm512_set1_epi32(bd));
#elif defined(__AVX2__)
    sum += (ivec)_mm256_madd_epi16((__m256i)even, _mm256_set1_epi32(ac));
    return sum + (ivec)_mm256_madd_epi16((__m256i)odd, _mm256_set1_epi32(bd));
#elif defined(__SSE2__)
    sum += (ivec)_mm_madd_epi16((__m128i)even, _mm_set1_epi32(ac));
    return sum + (ivec)_mm_madd_epi16((__m128i)odd, _mm_set1_epi32(bd));
#else
    (void)ac;
    (void)bd;
    return sum + (even & 0xffff) * a + (odd & 0xffff) * b + (even >> 16) * c + (odd >> 16) * d;
#endif
#endif
}

/* w = scale * code + offset, so w . x = scale * (codes . x) + offset * (sum of x): the first sum is exact, in integers. */
INLINE void product_codes(const struct linear_args *args, int64_t first_panel, int64_t row, int is_u4, int P, int R) {
    int64_t k = padded_inputs(args), bytes = row_bytes(args), groups = k / GROUP, panel = is_u4 ? k / 2 * PANEL : k * PANEL;
    const uint8_t *w = (const uint8_t *)args->weights + first_panel * panel;
    const char *x = (const char *)args->scratch + row * bytes;
    block_sums sum;
    clear(sum, P, R);
    for (int64_t group = 0; group < groups; group++)
        EACH(p, P)
            EACH(v, V) {
                ivec exact[MOST_ROWS];
                EACH(r, R) exact[r] = (ivec){0};
                if (is_u4) {
                    const uint8_t *at = w + p * panel + group * (GROUP / 2 * PANEL) + v * WIDTH * 4;
                    EACH(i, GROUP / 8) {
                        ivec both = *(const ivec *)(at + i * PANEL * 4);
                        ivec low = both & 0x0f0f0f0f, high = (both >> 4) & 0x0f0f0f0f;
                        EACH(r, R) {
                            const int32_t *in = (const int32_t *)(x + r * bytes + group * GROUP) + 2 * i;
                            exact[r] = dot4(dot4(exact[r], low, in[0]), high, in[1]);
                        }
                    }
                } else {
                    const uint8_t *at = w + p * panel + group * (GROUP * PANEL) + v * WIDTH * 4;
                    EACH(i, GROUP / 4) {
                        ivec four = *(const ivec *)(at + i * PANEL * 4);
                        EACH(r, R) exact[r] = dot4(exact[r], four, ((const int32_t *)(x + r * bytes + group * GROUP))[i]);
                    }
                }
                int64_t place = ((first_panel + p) * groups + group) * PANEL + v * WIDTH;
                vec scale = load_halves((const _Float16 *)args->scales + place);
                vec offset = splat(-args->zero) * scale;
                if (args->offsets) offset = load_halves((const _Float16 *)args->offsets + place);
                EACH(r, R) {
                    const float *x_scale = (const float *)(x + r * bytes + k) + group;
                    sum[p][r][v] = multiply_add(__builtin_convertvector(exact[r], vec), scale * splat(x_scale[0]), sum[p][r][v]);
                    sum[p][r][v] = multiply_add(offset, splat(x_scale[groups]), sum[p][r][v]);
                }
            }
    put(args, first_panel, row, P, R, sum);
}

INLINE void block(const struct linear_args *args, int kind, int64_t first_panel, int64_t row, int P, int R) {
    if (kind == KIND_F32) product_f32(args, first_panel, row, P, R);
    if (kind == KIND_BF16) product_bf16(args, first_panel, row, P, R);
    if (kind == KIND_U8) product_codes(args, first_panel, row, 0, P, R);
    if (kind == KIND_U4) product_codes(args, first_panel, row, 1, P, R);
}

/* Panels first .. end - 1 for R rows from `row` on, P panels at a time. */
INLINE void panels_of(const struct linear_args *args, int kind, int64_t first, int64_t end, int64_t row, int P, int R) {
    int64_t panel = first;
    for (; panel + P <= end; panel += P) block(args, kind, panel, row, P, R);
    for (; panel < end; panel++) block(args, kind, panel, row, 1, R);
}

/* Rows `row` .. `last - 1`: many rows at a time where there are many, else many panels, so that there are always several independent sums
   under way, and no more than there are registers. */
INLINE void rows_of_kind(const struct linear_args *args, int kind, int64_t first, int64_t end, int64_t row, int64_t last) {
    int is_wide = WIDTH == 16, has_codes = kind == KIND_U8 || kind == KIND_U4;
    if (is_wide)
        for (; row + 8 <= last; row += 8) panels_of(args, kind, first, end, row, has_codes ? 1 : 2, 8);
    for (; row + 4 <= last; row += 4) panels_of(args, kind, first, end, row, is_wide ? 2 : 1, 4);
    for (; row + 2 <= last; row += 2) panels_of(args, kind, first, end, row, is_wide ? 2 : 1, 2);
    if (row < last) panels_of(args, kind, first, end, row, is_wide ? 4 : 2, 1);
}

#define OF_KIND(name, kind)                                                                                                         \
    static __attribute__((noinline)) void name(const struct linear_args *args, int64_t first, int64_t end, int64_t row, int64_t last) { \
        rows_of_kind(args, kind, first, end, row, last);                                                                            \
    }
OF_KIND(rows_f32, KIND_F32)
OF_KIND(rows_bf16, KIND_BF16)
OF_KIND(rows_u8, KIND_U8)
OF_KIND(rows_u4, KIND_U4)

void NAME(slotwise_panels_)(const struct linear_args *args, int64_t first, int64_t end) {
    for (int64_t row = 0; row < args->num_rows; row += ROWS_PER_BLOCK) {
        int64_t last = row + ROWS_PER_BLOCK < args->num_rows ? row + ROWS_PER_BLOCK : args->num_rows;
        if (args->kind == KIND_F32) rows_f32(args, first, end, row, last);
        if (args->kind == KIND_BF16) rows_bf16(args, first, end, row, last);
        if (args->kind == KIND_U8) rows_u8(args, first, end, row, last);
        if (args->kind == KIND_U4) rows_u4(args, first, end, row, last);
    }
}
