/* The small operators between the matrix products: each reads its input once and writes its output once.
 *
 * Rounding follows the readable path in models/operators.py: values are rounded to the tensors' type where that path
 * would write them to memory. A row's result depends on that row only.
 */
#include "common.h"
#include "kernels.h"

enum { ONE_THREAD = 4096 }; /* elements from which waking a second thread pays */

INLINE void add_rms_norm_row(const void *x, void *residual, const void *weight, void *out, int64_t at, int64_t dim,
                             float eps, int bf16) {
    int64_t whole = dim / LANES * LANES;
    vec squares = splat(0);
    float rest = 0;
    for (int64_t i = at; i < at + whole; i += LANES) {
        vec h = load(residual, i, bf16);
        if (x) {
            h = rounded(h + load(x, i, bf16), bf16);
            store(residual, i, h, bf16);
        }
        squares += h * h;
    }
    for (int64_t i = at + whole; i < at + dim; i++) {
        if (x) set(residual, i, get(residual, i, bf16) + get(x, i, bf16), bf16);
        rest += get(residual, i, bf16) * get(residual, i, bf16);
    }
    float scale = 1.0f / __builtin_sqrtf((horizontal_sum(squares) + rest) / (float)dim + eps);
    for (int64_t i = 0; i < whole; i += LANES)
        store(out, at + i, rounded(load(residual, at + i, bf16) * scale, bf16) * load(weight, i, bf16), bf16);
    for (int64_t i = whole; i < dim; i++)
        set(out, at + i, rounded_scalar(get(residual, at + i, bf16) * scale, bf16) * get(weight, i, bf16), bf16);
}

/* residual += x (where x is given); out = residual / rms(residual) * weight. Rows of `dim` elements. */
void add_rms_norm_shared(const void *x, void *residual, const void *weight, void *out, int64_t rows, int64_t dim,
                         float eps, int bf16) {
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        if (bf16) add_rms_norm_row(x, residual, weight, out, row * dim, dim, eps, 1);
        else add_rms_norm_row(x, residual, weight, out, row * dim, dim, eps, 0);
    }
}

void tinyllm_add_rms_norm(const void *x, void *residual, const void *weight, void *out, int64_t rows, int64_t dim,
                          float eps, int32_t bf16, int32_t num_threads) {
#pragma omp parallel num_threads(num_threads) if (rows * dim > ONE_THREAD)
    add_rms_norm_shared(x, residual, weight, out, rows, dim, eps, bf16);
}

INLINE void silu_and_mul_row(const void *gate_up, void *out, int64_t gate, int64_t to, int64_t dim, int bf16) {
    int64_t whole = dim / LANES * LANES, up = gate + dim;
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

/* out = silu(gate) * up, for rows [gate | up] of 2 * dim elements. */
void silu_and_mul_shared(const void *gate_up, void *out, int64_t rows, int64_t dim, int bf16) {
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        if (bf16) silu_and_mul_row(gate_up, out, row * 2 * dim, row * dim, dim, 1);
        else silu_and_mul_row(gate_up, out, row * 2 * dim, row * dim, dim, 0);
    }
}

void tinyllm_silu_and_mul(const void *gate_up, void *out, int64_t rows, int64_t dim, int32_t bf16,
                          int32_t num_threads) {
#pragma omp parallel num_threads(num_threads) if (rows * dim > ONE_THREAD)
    silu_and_mul_shared(gate_up, out, rows, dim, bf16);
}

INLINE float sum_of_squares(const float *x, int64_t n) {
    vec squares = splat(0);
    float rest = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) squares += *(const uvec *)(x + i) * *(const uvec *)(x + i);
    for (; i < n; i++) rest += x[i] * x[i];
    return horizontal_sum(squares) + rest;
}

enum { MAX_HEAD_DIM = 512 };

INLINE void norm_rotate_head(void *head, const void *weight, const void *cos, const void *sin, int64_t dim, float eps,
                             int bf16) {
    float x[MAX_HEAD_DIM];
    int64_t half = dim / 2;
    for (int64_t i = 0; i < dim; i++) x[i] = get(head, i, bf16);
    if (weight) {
        float scale = 1.0f / __builtin_sqrtf(sum_of_squares(x, dim) / (float)dim + eps);
        for (int64_t i = 0; i < dim; i++)
            x[i] = rounded_scalar(rounded_scalar(x[i] * scale, bf16) * get(weight, i, bf16), bf16);
    }
    const float *first = x, *second = x + half;
    for (int64_t i = 0; i < half; i++) {
        float c = get(cos, i, bf16), s = get(sin, i, bf16);
        float a = first[i], b = second[i];
        set(head, i, rounded_scalar(a * c, bf16) - rounded_scalar(b * s, bf16), bf16);
        set(head, half + i, rounded_scalar(b * c, bf16) + rounded_scalar(a * s, bf16), bf16);
    }
}

/* Each head of q and k. Pairs are (i, i + dim / 2). */
void norm_rotate_shared(const rotate_args *r) {
    int64_t size = r->bf16 ? 2 : 4;
#pragma omp for schedule(static)
    for (int64_t t = 0; t < r->tokens; t++) {
        int64_t angle = (r->positions ? r->positions[t] : t) * (r->dim / 2) * size;
        const char *c = (const char *)r->cos + angle, *s = (const char *)r->sin + angle;
        for (int64_t h = 0; h < r->num_q + r->num_k; h++) {
            char *head = (char *)r->heads + (t * r->stride + h * r->dim) * size;
            const void *weight = h < r->num_q ? r->q_weight : r->k_weight;
            if (r->bf16) norm_rotate_head(head, weight, c, s, r->dim, r->eps, 1);
            else norm_rotate_head(head, weight, c, s, r->dim, r->eps, 0);
        }
    }
}

void tinyllm_norm_rotate(const rotate_args *r) {
#pragma omp parallel num_threads(r->num_threads) if (r->tokens * (r->num_q + r->num_k) * r->dim > ONE_THREAD)
    norm_rotate_shared(r);
}
