/* All decoder layers of a step, one after the other, without a return to Python.
 *
 * It makes the same calls in the same order as models/layers.py: oneDNN's products through PyTorch's C interface, and
 * the kernels beside this file. So its results are the same, bit for bit. What it saves is the time between two
 * calls, some 10 us each: Python's own, and that of waking OpenMP's threads, which fall asleep when it takes longer.
 */
#include "common.h"
#include "kernels.h"

typedef struct {
    linear qkv, o, gate_up, down;
    const void *input_norm, *post_attention_norm, *q_norm, *k_norm; /* the last two or NULL */
    void *keys, *values;
} layer;

typedef struct {
    const torch_api *torch;
    const layer *layers;
    int64_t num_layers, num_tokens, product_rows; /* product_rows: num_tokens or a few more */
    int64_t hidden_size, intermediate_size;
    const int64_t *token_ids, *positions, *slots; /* [num_tokens] */
    const void *embedding;                        /* [vocab_size, hidden_size] */
    int64_t vocab_size;
    const void *cos, *sin; /* [num_positions, head_dim / 2] */
    int64_t num_positions;
    void *residual, *normed, *attended, *activated; /* workspaces of product_rows rows */
    const void *final_norm;
    void *out; /* [num_tokens, hidden_size] */
    float eps;
    attention_args attention; /* all but q, out, keys and values */
} decode_args;

/* Multiply `x` by a layer's weights; the result's memory is at *data until *out is released. */
static int32_t multiply(const torch_api *torch, tensor x, const linear *by, tensor *out, void **data) {
    tensor bias = by->bias;
    int32_t failed = torch->linear(x, by->weight, bias ? &bias : NULL, "none", NULL, 0, NULL, out);
    return failed ? failed : torch->data_pointer(*out, data);
}

/* Attend with the products in `qkv`, rows of q, k and v heads, whose keys and values are stored first. */
static void attend(const decode_args *d, const layer *l, void *qkv) {
    attention_args a = d->attention;
    int64_t size = a.q_bf16 ? 2 : 4, stride = (a.num_heads + 2 * a.num_kv_heads) * a.head_dim;
    char *k = (char *)qkv + a.num_heads * a.head_dim * size, *v = k + a.num_kv_heads * a.head_dim * size;
    tinyllm_norm_rotate(qkv, l->q_norm, l->k_norm, d->cos, d->sin, d->positions, d->num_tokens, stride,
                        a.num_heads, a.num_kv_heads, a.head_dim, d->eps, a.q_bf16, a.num_threads);
    store_args s = {k, v, l->keys, l->values, d->slots, d->num_tokens, a.num_kv_heads, a.head_dim, a.num_blocks,
                    a.block_size, stride, stride, a.q_bf16, a.kv_bf16, a.num_threads};
    tinyllm_store_kv(&s);
    a.q = qkv;
    a.q_stride = stride;
    a.out = d->attended;
    a.keys = l->keys;
    a.values = l->values;
    tinyllm_attend(&a);
}

/* Multiply each of `inputs` by one of `linears`: the least that a step can cost. Returns 0 if all of them worked. */
int32_t tinyllm_multiply_all(const torch_api *torch, const linear *linears, const tensor *inputs, int64_t count) {
    int32_t failed = 0;
    for (int64_t i = 0; i < count && !failed; i++) {
        tensor out = NULL;
        void *data;
        failed = multiply(torch, inputs[i], &linears[i], &out, &data);
        if (out) torch->release(out);
    }
    return failed;
}

/* One layer: adds *x, what the layer before found, to the residual stream, and leaves in *x what this one finds. */
static int32_t run_layer(const decode_args *d, const layer *l, const tensor inputs[3], tensor *x) {
    const torch_api *torch = d->torch;
    int32_t bf16 = d->attention.q_bf16, threads = d->attention.num_threads, failed;
    tensor qkv = NULL, found = NULL, gate_up = NULL;
    void *data = NULL;

    if (*x && (failed = torch->data_pointer(*x, &data))) return failed;
    tinyllm_add_rms_norm(data, d->residual, l->input_norm, d->normed, d->num_tokens, d->hidden_size, d->eps, bf16,
                         threads);
    if (*x) torch->release(*x);
    *x = NULL;
    failed = multiply(torch, inputs[0], &l->qkv, &qkv, &data);
    if (!failed) {
        attend(d, l, data);
        failed = multiply(torch, inputs[1], &l->o, &found, &data);
    }
    if (!failed) {
        tinyllm_add_rms_norm(data, d->residual, l->post_attention_norm, d->normed, d->num_tokens, d->hidden_size,
                             d->eps, bf16, threads);
        failed = multiply(torch, inputs[0], &l->gate_up, &gate_up, &data);
    }
    if (!failed) {
        tinyllm_silu_and_mul(data, d->activated, d->num_tokens, d->intermediate_size, bf16, threads);
        failed = multiply(torch, inputs[2], &l->down, x, &data);
    }
    if (qkv) torch->release(qkv);
    if (found) torch->release(found);
    if (gate_up) torch->release(gate_up);
    return failed;
}

static int32_t view(const torch_api *torch, void *data, int64_t rows, int64_t columns, tensor *out) {
    int64_t sizes[] = {rows, columns}, strides[] = {columns, 1};
    return torch->from_blob(data, 2, sizes, strides, 0, torch->dtype, torch->device_type, 0, out);
}

enum { OUT_OF_RANGE = -1 };

/* Start the residual stream with each token's row of the table. */
static int32_t embed(const decode_args *d) {
    int64_t row = d->hidden_size * (d->attention.q_bf16 ? 2 : 4);
    for (int64_t t = 0; t < d->num_tokens; t++) {
        if (d->token_ids[t] < 0 || d->token_ids[t] >= d->vocab_size) return OUT_OF_RANGE;
        if (d->positions[t] < 0 || d->positions[t] >= d->num_positions) return OUT_OF_RANGE;
        memcpy((char *)d->residual + t * row, (const char *)d->embedding + d->token_ids[t] * row, (size_t)row);
    }
    return 0;
}

/* Run embedding, layers and final norm. Returns 0, OUT_OF_RANGE, or what PyTorch returned where it failed. */
int32_t tinyllm_decode(const decode_args *d) {
    const attention_args *a = &d->attention;
    tensor inputs[3] = {NULL, NULL, NULL}, x = NULL;
    void *data = NULL;
    int32_t failed = embed(d);
    if (!failed) failed = view(d->torch, d->normed, d->product_rows, d->hidden_size, &inputs[0]);
    if (!failed) failed = view(d->torch, d->attended, d->product_rows, a->num_heads * a->head_dim, &inputs[1]);
    if (!failed) failed = view(d->torch, d->activated, d->product_rows, d->intermediate_size, &inputs[2]);
    for (int64_t i = 0; i < d->num_layers && !failed; i++) failed = run_layer(d, &d->layers[i], inputs, &x);
    if (!failed) failed = d->torch->data_pointer(x, &data);
    if (!failed)
        tinyllm_add_rms_norm(data, d->residual, d->final_norm, d->out, d->num_tokens, d->hidden_size, d->eps, a->q_bf16,
                             a->num_threads);
    if (x) d->torch->release(x);
    for (int i = 0; i < 3; i++)
        if (inputs[i]) d->torch->release(inputs[i]);
    return failed;
}

/* Logits of `rows` hidden states, which lie at the start of product_rows rows, as [rows, vocab_size] floats. */
int32_t tinyllm_logits(const torch_api *torch, const linear *head, void *hidden, int64_t rows, int64_t product_rows,
                       int64_t hidden_size, int64_t vocab_size, float *out, int32_t bf16, int32_t num_threads) {
    tensor x = NULL, product = NULL;
    void *data = NULL;
    int32_t failed = view(torch, hidden, product_rows, hidden_size, &x);
    if (!failed) failed = multiply(torch, x, head, &product, &data);
    if (!failed) {
        int64_t chunk = 4096, size = rows * vocab_size;
#pragma omp parallel for schedule(static) num_threads(num_threads)
        for (int64_t start = 0; start < size; start += chunk) {
            int64_t end = start + chunk < size ? start + chunk : size, i = start;
            for (; i + LANES <= end; i += LANES) store(out, i, load(data, i, bf16), 0);
            for (; i < end; i++) out[i] = get(data, i, bf16);
        }
    }
    if (product) torch->release(product);
    if (x) torch->release(x);
    return failed;
}
