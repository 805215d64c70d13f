/* The small operators between the matrix products: each reads its input once and writes its output once.
 *
 * Rounding follows the readable path in models/layers.py: values are rounded to the tensors' type where that path
 * would write them to memory. A row's result depends on that row only.
 */
#include "common.h"

/* residual += x (where x is given); out = residual / rms(residual) * weight. Rows of `dim` elements. */
void tinyllm_add_rms_norm(const void *x, void *residual, const void *weight, void *out, int64_t rows, int64_t dim,
                          float eps, int32_t bf16, int32_t num_threads) {
    int64_t whole = dim / LANES * LANES;
#pragma omp parallel for schedule(static) num_threads(num_threads) if (rows * dim > 32768)
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = row * dim;
        vec squares = splat(0);
        float rest = 0;
        for (int64_t i = 0; i < whole; i += LANES) {
            vec h = load(residual, at + i, bf16);
            if (x) {
                h = rounded(h + load(x, at + i, bf16), bf16);
                store(residual, at + i, h, bf16);
            }
            squares += h * h;
        }
        for (int64_t i = whole; i < dim; i++) {
            if (x) set(residual, at + i, get(residual, at + i, bf16) + get(x, at + i, bf16), bf16);
            float h = get(residual, at + i, bf16);
            rest += h * h;
        }
        float scale = 1.0f / __builtin_sqrtf((horizontal_sum(squares) + rest) / (float)dim + eps);
        for (int64_t i = 0; i < whole; i += LANES) {
            vec normed = rounded(load(residual, at + i, bf16) * scale, bf16);
            store(out, at + i, normed * load(weight, i, bf16), bf16);
        }
        for (int64_t i = whole; i < dim; i++) {
            float normed = get(residual, at + i, bf16) * scale;
            if (bf16) normed = from_bf16(to_bf16(normed));
            set(out, at + i, normed * get(weight, i, bf16), bf16);
        }
    }
}

/* out = silu(gate) * up, for rows [gate | up] of 2 * dim elements. */
void tinyllm_silu_and_mul(const void *gate_up, void *out, int64_t rows, int64_t dim, int32_t bf16,
                          int32_t num_threads) {
    int64_t whole = dim / LANES * LANES;
#pragma omp parallel for schedule(static) num_threads(num_threads) if (rows * dim > 32768)
    for (int64_t row = 0; row < rows; row++) {
        int64_t gate = row * 2 * dim, up = gate + dim, to = row * dim;
        for (int64_t i = 0; i < whole; i += LANES) {
            vec g = load(gate_up, gate + i, bf16);
            vec silu = rounded(g / (1.0f + exp_of(-g)), bf16);
            store(out, to + i, silu * load(gate_up, up + i, bf16), bf16);
        }
        for (int64_t i = whole; i < dim; i++) {
            vec g = splat(get(gate_up, gate + i, bf16));
            vec silu = rounded(g / (1.0f + exp_of(-g)), bf16);
            set(out, to + i, silu[0] * get(gate_up, up + i, bf16), bf16);
        }
    }
}

/* Normalise (where weights are given) and rotate each head of q and k in place; halves are (i, i + dim / 2). */
void tinyllm_norm_rope(void *qkv, const void *q_weight, const void *k_weight, const float *cos, const float *sin,
                       int64_t tokens, int64_t stride, int64_t num_heads, int64_t num_kv_heads, int64_t dim, float eps,
                       int32_t bf16, int32_t num_threads) {
    int64_t half = dim / 2;
#pragma omp parallel for schedule(static) num_threads(num_threads) if (tokens * num_heads * dim > 32768)
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < num_heads + num_kv_heads; h++) {
            int64_t at = t * stride + h * dim;
            const void *weight = h < num_heads ? q_weight : k_weight;
            float x[512];
            for (int64_t i = 0; i < dim; i++) x[i] = get(qkv, at + i, bf16);
            if (weight) {
                float squares = 0;
                for (int64_t i = 0; i < dim; i++) squares += x[i] * x[i];
                float scale = 1.0f / __builtin_sqrtf(squares / (float)dim + eps);
                for (int64_t i = 0; i < dim; i++) {
                    float normed = bf16 ? from_bf16(to_bf16(x[i] * scale)) : x[i] * scale;
                    normed *= get(weight, i, bf16);
                    x[i] = bf16 ? from_bf16(to_bf16(normed)) : normed;
                }
            }
            for (int64_t i = 0; i < half; i++) {
                float c = cos[t * half + i], s = sin[t * half + i];
                set(qkv, at + i, x[i] * c - x[i + half] * s, bf16);
                set(qkv, at + half + i, x[i + half] * c + x[i] * s, bf16);
            }
        }
}
