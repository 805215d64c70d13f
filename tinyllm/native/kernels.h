/* What the kernels of this directory offer each other and Python. */
#ifndef TINYLLM_KERNELS_H
#define TINYLLM_KERNELS_H

#include <stdint.h>

/* oneDNN's product of a block, as PyTorch offers it (at::native::cpublas::brgemm): c = a b, of m rows, n columns and k
 * summands. The rows of a, b and c are so many elements apart; with `pairs` two rows of b are one, of pairs. What a
 * thread has configured for it ends with `release`. */
typedef struct {
    void (*brgemm)(int64_t m, int64_t n, int64_t k, int64_t a_stride, int64_t b_stride, int64_t c_stride, _Bool add,
                   const void *a, const void *b, float *c, _Bool pairs);
    void (*release)(_Bool pairs);
    int32_t bf16;
} onednn;

typedef struct {
    const void *weight; /* [out / 48 rounded up, in, 48], two inputs of a column side by side in bfloat16 */
    const void *bias;   /* [out] or NULL */
    int64_t in, out;
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

/* Functions that end in `shared` are called by all threads of a parallel region, each of which does its share, and
 * return when all have done it. */

typedef enum { STORE, ADD, AS_FLOATS } form; /* as the input's type; added to what is there; as float */

void multiply_shared(const onednn *with, const linear *by, const void *x, int64_t rows, void *out, form as);

/* `taken` is 0 before, and after the next function that all threads have returned from. */
void attend_shared(const attention_args *a, int64_t *taken);

/* Store keys and values where `slots` say, turning keys on the way into the cache's layout. */
typedef struct {
    const void *k, *v; /* [num_tokens, num_kv_heads, head_dim], rows `stride` elements apart */
    void *keys, *values;
    const int64_t *slots; /* [num_tokens]: block * block_size + offset */
    int64_t num_tokens, num_kv_heads, head_dim, num_blocks, block_size, k_stride, v_stride;
    int32_t in_bf16, kv_bf16, num_threads;
} store_args;

void store_kv_shared(const store_args *s);

void add_rms_norm_shared(const void *x, void *residual, const void *weight, void *out, int64_t rows, int64_t dim,
                         float eps, int bf16);

void silu_and_mul_shared(const void *gate_up, void *out, int64_t rows, int64_t dim, int bf16);

/* Normalise (where weights are given) and rotate heads of q and k in place. */
typedef struct {
    void *heads; /* rows of `stride` elements: q heads, k heads, and more that is left alone */
    const void *q_weight, *k_weight; /* [dim] or NULL */
    const void *cos, *sin;           /* tables of rows of dim / 2 */
    const int64_t *positions;        /* the row of each token, or NULL: its own number */
    int64_t tokens, stride, num_q, num_k, dim;
    float eps;
    int32_t bf16, num_threads;
} rotate_args;

void norm_rotate_shared(const rotate_args *r);

#endif
