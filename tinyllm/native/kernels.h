/* What the kernels of this directory offer each other and Python. */
#ifndef TINYLLM_KERNELS_H
#define TINYLLM_KERNELS_H

#include <stdint.h>

typedef void *tensor; /* AtenTensorHandle */

/* PyTorch's C interface (torch/csrc/inductor/aoti_torch/c/shim.h), found at run time. Each returns 0 if it worked. */
typedef struct {
    int32_t (*linear)(tensor x, tensor weight, tensor *bias, const char *post_op, const double **scalars,
                      int64_t num_scalars, const char **algorithm, tensor *out);
    int32_t (*from_blob)(void *data, int64_t num_dims, const int64_t *sizes, const int64_t *strides, int64_t offset,
                         int32_t dtype, int32_t device_type, int32_t device_index, tensor *out);
    int32_t (*data_pointer)(tensor t, void **out);
    int32_t (*release)(tensor t);
    int32_t dtype, device_type;
} torch_api;

typedef struct {
    tensor weight, bias; /* packed weight; bias or NULL */
} linear;

/* Attention with each query row over the tokens up to its own: see paged_attention.c. */
typedef struct {
    const void *q;             /* [num_tokens, num_heads, head_dim], rows q_stride elements apart */
    void *out;                 /* [num_tokens, num_heads, head_dim], contiguous */
    const void *keys, *values; /* this layer's cache, each [num_kv_heads, num_blocks, ...] */
    const int32_t *query_start_loc, *seq_lens, *block_tables; /* [n + 1], [n], [n, max_blocks] */
    int64_t num_seqs, max_blocks, num_heads, num_kv_heads, head_dim, num_blocks, block_size, q_stride;
    float *partial; /* workspace: one record for each (row tile, KV head, part) */
    const int32_t *tiles; /* [num_tiles + 1, 3]: sequence, first row of the tile, first record in `partial` */
    int64_t num_tiles;
    float scale;
    int32_t q_bf16, kv_bf16, num_threads;
} attention_args;

void tinyllm_attend(const attention_args *a);

/* Store keys and values where `slots` say, turning keys on the way into the cache's layout. */
typedef struct {
    const void *k, *v; /* [num_tokens, num_kv_heads, head_dim], rows `stride` elements apart */
    void *keys, *values;
    const int64_t *slots; /* [num_tokens]: block * block_size + offset */
    int64_t num_tokens, num_kv_heads, head_dim, num_blocks, block_size, k_stride, v_stride;
    int32_t in_bf16, kv_bf16, num_threads;
} store_args;

void tinyllm_store_kv(const store_args *s);

void tinyllm_add_rms_norm(const void *x, void *residual, const void *weight, void *out, int64_t rows, int64_t dim,
                          float eps, int32_t bf16, int32_t num_threads);

void tinyllm_silu_and_mul(const void *gate_up, void *out, int64_t rows, int64_t dim, int32_t bf16,
                          int32_t num_threads);

void tinyllm_norm_rotate(void *heads, const void *q_weight, const void *k_weight, const void *cos, const void *sin,
                         const int64_t *positions, int64_t tokens, int64_t stride, int64_t num_q, int64_t num_k,
                         int64_t dim, float eps, int32_t bf16, int32_t num_threads);

void tinyllm_largest(const float *logits, int64_t rows, int64_t columns, int64_t stride, float *values,
                     int64_t *indices, int32_t num_threads);

#endif
