/* What stands between the matrices: norms, rotary embedding, gated activations. Row by row; compiled once for each instruction set. */
#include <math.h>

#include "formats.h"
#include "vector.h"

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define NAME(stem) JOIN(stem, VARIANT)

/* 1 / rms. Four vectors of partial sums: each adds up a small share of the row, so that long rows lose little. */
static float inverse_rms(const float *x, int64_t size, float eps) {
    vec part[4];
    for (int j = 0; j < 4; j++) part[j] = splat(0.0f);
    int64_t i = 0;
    for (; i + 4 * WIDTH <= size; i += 4 * WIDTH)
        for (int j = 0; j < 4; j++) part[j] = multiply_add(load(x + i + j * WIDTH), load(x + i + j * WIDTH), part[j]);
    for (; i + WIDTH <= size; i += WIDTH) part[0] = multiply_add(load(x + i), load(x + i), part[0]);
    float total = sum((part[0] + part[1]) + (part[2] + part[3]));
    for (; i < size; i++) total += x[i] * x[i];
    return 1.0f / sqrtf(total / (float)size + eps);
}

void NAME(slotwise_norm_)(const struct norm_args *args, int64_t first, int64_t end) {
    int64_t size = args->size;
    float values[size];
    for (int64_t row = first; row < end; row++) {
        read_row((const char *)args->x + row * args->x_stride * element_bytes(args->x_type), args->x_type, size, values);
        float factor = inverse_rms(values, size, args->eps);
        for (int64_t i = 0; i < size; i++) values[i] = values[i] * factor * args->weight[i];
        char *out = (char *)args->out + row * args->out_stride * element_bytes(args->out_type);
        if (args->adds)
            for (int64_t i = 0; i < size; i++) values[i] += ((const float *)out)[i];
        write_row(values, args->out_type, size, out);
    }
}

void NAME(slotwise_rope_)(const struct rope_args *args, int64_t first, int64_t end) {
    int64_t dim = args->head_dim, half = args->half;
    int num_rotated = args->num_heads + args->num_kv_heads, num_all = num_rotated + args->num_kv_heads;
    float values[dim];
    for (int64_t row = first; row < end; row++) {
        const float *cos = args->cos + args->positions[row] * half, *sin = args->sin + args->positions[row] * half;
        for (int head = 0; head < num_all; head++) {
            const float *in = args->qkv + row * args->qkv_stride + head * dim;
            char *out = (char *)args->out + (row * args->out_stride + head * dim) * element_bytes(args->out_type);
            const float *norm = head < args->num_heads ? args->query_norm : head < num_rotated ? args->key_norm : 0;
            float factor = norm ? inverse_rms(in, dim, args->eps) : 1.0f;
            for (int64_t i = 0; i < dim; i++) values[i] = norm ? in[i] * factor * norm[i] : in[i];
            for (int64_t i = 0; head < num_rotated && i < half; i++) {
                float a = values[i], b = values[i + half];
                values[i] = a * cos[i] - b * sin[i];
                values[i + half] = b * cos[i] + a * sin[i];
            }
            write_row(values, args->out_type, dim, out);
        }
    }
}

static inline __attribute__((always_inline)) vec activated(vec x, int activation) {
    if (activation == ACTIVATION_SILU) return x / (splat(1.0f) + exponential(splat(0.0f) - largest(x, splat(-87.0f))));
    vec inner = splat(0.7978845608f) * (x + splat(0.044715f) * x * x * x);
    return splat(0.5f) * x * (splat(1.0f) + hyperbolic_tangent(inner));
}

void NAME(slotwise_gate_)(const struct gate_args *args, int64_t first, int64_t end) {
    int64_t size = args->size;
    float values[size + WIDTH];
    for (int64_t row = first; row < end; row++) {
        const float *gate = args->x + row * args->x_stride, *up = gate + size;
        for (int64_t i = 0; i < size; i += WIDTH) {
            if (args->activation == ACTIVATION_GELU) {
                for (int64_t j = i; j < size && j < i + WIDTH; j++)
                    values[j] = 0.5f * gate[j] * (1.0f + erff(gate[j] * 0.70710678118f)) * up[j];
            } else if (i + WIDTH <= size) {
                store(values + i, activated(load(gate + i), args->activation) * load(up + i));
            } else {
                float rest[WIDTH] = {0};
                memcpy(rest, gate + i, (size_t)(size - i) * 4);
                store(rest, activated(load(rest), args->activation));
                for (int64_t j = i; j < size; j++) values[j] = rest[j - i] * up[j];
            }
        }
        write_row(values, args->out_type, size, (char *)args->out + row * args->out_stride * element_bytes(args->out_type));
    }
}
