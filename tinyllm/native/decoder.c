/* All decoder layers of a step in one parallel region, without a return to Python.
 *
 * Its operators are those of models/layers.py in the same order, and so are its results, bit for bit. What it saves is
 * the time between two operators: Python's own, some 10 us each, and that of waking OpenMP's threads, which fall
 * asleep when it takes longer.
 */
#include "common.h"
#include "kernels.h"

typedef struct {
    linear qkv, o, gate_up, down;
    const void *input_norm, *post_attention_norm, *q_norm, *k_norm; /* the last two or NULL */
    void *keys, *values;
} layer;

typedef struct {
    onednn products;
    const layer *layers;
    int64_t num_layers, num_tokens, hidden_size, intermediate_size;
    const int64_t *token_ids, *positions, *slots; /* [num_tokens] */
    const void *embedding;                        /* [vocab_size, hidden_size] */
    int64_t vocab_size;
    const void *cos, *sin; /* [num_positions, head_dim / 2] */
    int64_t num_positions;
    void *residual, *normed, *qkv, *attended, *gate_up, *activated; /* workspaces of num_tokens rows */
    const void *final_norm;
    void *out; /* [num_tokens, hidden_size] */
    float eps;
    attention_args attention; /* all but q, out, keys and values */
} decode_args;

/* Attend with rows of q, k and v heads, whose keys and values are stored first. */
static void attend(const decode_args *d, const layer *l, int64_t *taken) {
    attention_args a = d->attention;
    int64_t size = a.q_bf16 ? 2 : 4, stride = (a.num_heads + 2 * a.num_kv_heads) * a.head_dim;
    char *k = (char *)d->qkv + a.num_heads * a.head_dim * size, *v = k + a.num_kv_heads * a.head_dim * size;
    rotate_args r = {d->qkv, l->q_norm, l->k_norm, d->cos, d->sin, d->positions, d->num_tokens, stride, a.num_heads,
                     a.num_kv_heads, a.head_dim, d->eps, a.q_bf16, a.num_threads};
    norm_rotate_shared(&r);
    store_args s = {k, v, l->keys, l->values, d->slots, d->num_tokens, a.num_kv_heads, a.head_dim, a.num_blocks,
                    a.block_size, stride, stride, a.q_bf16, a.kv_bf16, a.num_threads};
    store_kv_shared(&s);
    a.q = d->qkv;
    a.q_stride = stride;
    a.out = d->attended;
    a.keys = l->keys;
    a.values = l->values;
    attend_shared(&a, taken);
}

/* One layer: adds what it finds to the residual stream. */
static void run_layer(const decode_args *d, const layer *l, int64_t *taken) {
    const onednn *with = &d->products;
    int64_t rows = d->num_tokens;
    add_rms_norm_shared(NULL, d->residual, l->input_norm, d->normed, rows, d->hidden_size, d->eps, with->bf16);
    multiply_shared(with, &l->qkv, d->normed, rows, d->qkv, STORE);
    attend(d, l, taken);
    multiply_shared(with, &l->o, d->attended, rows, d->residual, ADD);
    add_rms_norm_shared(NULL, d->residual, l->post_attention_norm, d->normed, rows, d->hidden_size, d->eps, with->bf16);
    multiply_shared(with, &l->gate_up, d->normed, rows, d->gate_up, STORE);
    silu_and_mul_shared(d->gate_up, d->activated, rows, d->intermediate_size, with->bf16);
    multiply_shared(with, &l->down, d->activated, rows, d->residual, ADD);
}

/* Start the residual stream with each token's row of the table. Returns 0, or -1 where something is out of range. */
static int32_t embed(const decode_args *d) {
    int64_t row = d->hidden_size * (d->products.bf16 ? 2 : 4);
    for (int64_t t = 0; t < d->num_tokens; t++) {
        if (d->token_ids[t] < 0 || d->token_ids[t] >= d->vocab_size) return -1;
        if (d->positions[t] < 0 || d->positions[t] >= d->num_positions) return -1;
        memcpy((char *)d->residual + t * row, (const char *)d->embedding + d->token_ids[t] * row, (size_t)row);
    }
    return 0;
}

/* Run embedding, layers and final norm. Returns 0, or -1 where a token id or a position is out of range. */
int32_t tinyllm_decode(const decode_args *d) {
    int64_t taken = 0;
    if (embed(d)) return -1;
#pragma omp parallel num_threads(d->attention.num_threads)
    {
        for (int64_t i = 0; i < d->num_layers; i++) run_layer(d, &d->layers[i], &taken);
        add_rms_norm_shared(NULL, d->residual, d->final_norm, d->out, d->num_tokens, d->hidden_size, d->eps,
                            d->products.bf16);
        d->products.release(d->products.bf16);
    }
    return 0;
}
