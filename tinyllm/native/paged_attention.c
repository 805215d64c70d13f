/* Attention over a paged KV cache, read in place.
 *
 * Layout, for each block and KV head, in groups of 16 tokens (LANES):
 *   keys    [group][head_dim][16]   so that one vector holds one dimension of 16 tokens
 *   values  [group][16][head_dim]
 *
 * Order of summation. A row (one query head of one token) visits the tokens before it in spans of 64, aligned at
 * absolute positions, with one online softmax (Milakov and Gimelshein, 2018) for each part of 512 tokens; parts are
 * merged in order. Nothing in that order depends on other rows, on how the sequence was cut into steps, or on the
 * number of threads, so a row's result is the same, bit for bit, in every batch.
 */
#include "common.h"
#include "kernels.h"

enum { ROWS = 4, GROUPS = 4, SPAN = LANES * GROUPS, PART = 512, MAX_DIM = 256 };

static const float MASKED = -1e30f;

/* State of one tile of rows over one part: running maximum, sum of weights, weighted values. */
typedef struct {
    float max[ROWS];
    vec sum[ROWS];
    vec acc[ROWS][MAX_DIM / LANES];
} tile_state;

/* Ask for two vectors of a span's keys and two of its values, `i` of the 2 * dim such pairs: memory is slow to come. */
INLINE void fetch_ahead(const void *keys, const void *values, const int64_t *offset, int i, int dim, int bf16) {
    int64_t size = bf16 ? 2 : 4, at = (offset[2 * i / dim] + 2 * i % dim * LANES) * size;
    for (int64_t line = 0; line < 2 * LANES * size; line += 64) {
        __builtin_prefetch((const char *)keys + at + line, 0, 2);
        __builtin_prefetch((const char *)values + at + line, 0, 2);
    }
}

/* Absorb the span that starts at `start`, `count` tokens of 64; row r sees tokens up to last[r]. While it computes,
 * the span whose groups lie at `ahead`, if any, is fetched.
 * Values past `count` are not touched: a freed block may hold anything, and 0 times NaN is NaN. */
INLINE void absorb_span(tile_state *state, float (*q)[MAX_DIM], const void *keys, const void *values,
                        const int64_t *offset, const int64_t *ahead, int64_t start, int64_t count,
                        const int64_t *last, int dim, int bf16) {
    vec score[ROWS][GROUPS];
    for (int pair = 0; pair < GROUPS; pair += 2) { /* more sums than these do not stay in registers */
        vec sum[ROWS][2] = {{{0}}};
        for (int d = 0; d < dim; d++) {
            if (ahead) fetch_ahead(keys, values, ahead, pair / 2 * dim + d, dim, bf16);
            vec key[2];
            for (int g = 0; g < 2; g++) key[g] = load(keys, offset[pair + g] + (int64_t)d * LANES, bf16);
            for (int r = 0; r < ROWS; r++)
                for (int g = 0; g < 2; g++) sum[r][g] += q[r][d] * key[g];
        }
        for (int r = 0; r < ROWS; r++)
            for (int g = 0; g < 2; g++) score[r][pair + g] = sum[r][g];
    }
    const ivec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    float weight[ROWS][SPAN];
    for (int r = 0; r < ROWS; r++) {
        if (last[r] < start + SPAN - 1)
            for (int g = 0; g < GROUPS; g++) {
                ivec seen = (lane + (int32_t)(start + g * LANES)) <= (int32_t)last[r];
                score[r][g] = (vec)(((ivec)score[r][g] & seen) | ((ivec)splat(2 * MASKED) & ~seen));
            }
        vec top = max_of(max_of(score[r][0], score[r][1]), max_of(score[r][2], score[r][3]));
        float highest = horizontal_max(top);
        highest = highest > state->max[r] ? highest : state->max[r];
        float shrink = exp_nonpositive(splat(state->max[r] - highest))[0];
        state->max[r] = highest;
        vec total = splat(0);
        for (int g = 0; g < GROUPS; g++) {
            vec w = exp_nonpositive(score[r][g] - highest);
            total += w;
            memcpy(&weight[r][g * LANES], &w, sizeof w);
        }
        state->sum[r] = state->sum[r] * shrink + total;
        for (int j = 0; j < dim / LANES; j++) state->acc[r][j] *= shrink;
    }
    enum { STRIPE = 4 };
    for (int j0 = 0; j0 < dim / LANES; j0 += STRIPE) {
        int width = dim / LANES - j0 < STRIPE ? dim / LANES - j0 : STRIPE;
        if (width == STRIPE) {
            vec acc[ROWS][STRIPE];
            for (int r = 0; r < ROWS; r++)
                for (int j = 0; j < STRIPE; j++) acc[r][j] = state->acc[r][j0 + j];
            for (int g = 0; g < GROUPS; g++)
                for (int t = 0; t < LANES && g * LANES + t < count; t++) {
                    vec value[STRIPE];
                    for (int j = 0; j < STRIPE; j++)
                        value[j] = load(values, offset[g] + (int64_t)t * dim + (j0 + j) * LANES, bf16);
                    for (int r = 0; r < ROWS; r++)
                        for (int j = 0; j < STRIPE; j++) acc[r][j] += weight[r][g * LANES + t] * value[j];
                }
            for (int r = 0; r < ROWS; r++)
                for (int j = 0; j < STRIPE; j++) state->acc[r][j0 + j] = acc[r][j];
        } else {
            for (int j = j0; j < j0 + width; j++)
                for (int g = 0; g < GROUPS; g++)
                    for (int t = 0; t < LANES && g * LANES + t < count; t++) {
                        vec value = load(values, offset[g] + (int64_t)t * dim + j * LANES, bf16);
                        for (int r = 0; r < ROWS; r++) state->acc[r][j] += weight[r][g * LANES + t] * value;
                    }
        }
    }
}

/* Where the groups of tokens from `start` on lie; those past the end, which are masked, count as the first. */
INLINE void locate_span(const attention_args *a, const int32_t *table, int64_t kv_head, int64_t start, int64_t end,
                        int dim, int64_t *offset) {
    for (int g = 0; g < GROUPS; g++) {
        int64_t token = start + g * LANES < end ? start + g * LANES : start;
        int64_t block = table[token / a->block_size], inside = token % a->block_size / LANES;
        offset[g] = ((block * a->num_kv_heads + kv_head) * (a->block_size / LANES) + inside) * LANES * dim;
    }
}

/* One tile of rows, one KV head, one part of the sequence: leaves maximum, sum and values in `record`. */
INLINE void attend_part(const attention_args *a, int64_t seq, int64_t first_row, int64_t kv_head, int64_t part,
                        float *record, int dim, int bf16) {
    int64_t group = a->num_heads / a->num_kv_heads;
    int64_t token0 = a->query_start_loc[seq], num_rows = (a->query_start_loc[seq + 1] - token0) * group;
    int64_t position0 = a->seq_lens[seq] - (a->query_start_loc[seq + 1] - token0);
    const int32_t *table = a->block_tables + seq * a->max_blocks;

    int64_t offset[2][GROUPS]; /* of this span and the next */
    int is_alone = num_rows <= ROWS; /* no other tile reads the same keys and values, so they are in no cache */
    locate_span(a, table, kv_head, part * PART, a->seq_lens[seq], dim, offset[0]);
    for (int i = 0; is_alone && i < 2 * dim; i++) fetch_ahead(a->keys, a->values, offset[0], i, dim, bf16);

    float q[ROWS][MAX_DIM];
    int64_t last[ROWS], end = 0;
    for (int r = 0; r < ROWS; r++) {
        int64_t row = first_row + r < num_rows ? first_row + r : num_rows - 1;
        int64_t token = token0 + row / group, head = kv_head * group + row % group;
        int64_t at = token * a->q_stride + head * dim;
        for (int d = 0; d < dim; d++)
            q[r][d] = get(a->q, at + d, a->q_bf16) * a->scale;
        last[r] = position0 + row / group;
        end = last[r] + 1 > end ? last[r] + 1 : end;
    }
    tile_state state;
    for (int r = 0; r < ROWS; r++) {
        state.max[r] = MASKED;
        state.sum[r] = splat(0);
        for (int j = 0; j < dim / LANES; j++) state.acc[r][j] = splat(0);
    }
    int64_t stop = (part + 1) * PART < end ? (part + 1) * PART : end;
    for (int64_t start = part * PART, turn = 0; start < stop; start += SPAN, turn ^= 1) {
        int64_t *next = NULL;
        if (start + SPAN < stop) locate_span(a, table, kv_head, start + SPAN, end, dim, next = offset[turn ^ 1]);
        int64_t *ahead = is_alone ? next : NULL;
        int64_t count = end - start < SPAN ? end - start : SPAN;
        if (count == SPAN) absorb_span(&state, q, a->keys, a->values, offset[turn], ahead, start, SPAN, last, dim, bf16);
        else absorb_span(&state, q, a->keys, a->values, offset[turn], ahead, start, count, last, dim, bf16);
    }
    for (int r = 0; r < ROWS; r++) {
        record[r] = state.max[r];
        record[ROWS + r] = horizontal_sum(state.sum[r]);
        memcpy(record + 2 * ROWS + r * dim, state.acc[r], (size_t)dim * sizeof(float));
    }
}

static inline int64_t record_size(int64_t dim) { return ROWS * (dim + 2); }

/* Merge the parts of one tile and KV head in order, and write the rows. */
static void merge_parts(const attention_args *a, int64_t seq, int64_t first_row, int64_t kv_head, const float *records,
                        int64_t parts) {
    int64_t dim = a->head_dim, group = a->num_heads / a->num_kv_heads, size = record_size(dim);
    int64_t token0 = a->query_start_loc[seq], num_rows = (a->query_start_loc[seq + 1] - token0) * group;
    for (int r = 0; r < ROWS && first_row + r < num_rows; r++) {
        float highest = MASKED, sum = 0, acc[MAX_DIM] = {0};
        for (int64_t p = 0; p < parts; p++) highest = records[p * size + r] > highest ? records[p * size + r] : highest;
        for (int64_t p = 0; p < parts; p++) {
            const float *record = records + p * size;
            float w = exp_nonpositive(splat(record[r] - highest))[0];
            sum += w * record[ROWS + r];
            for (int64_t d = 0; d < dim; d++) acc[d] += w * record[2 * ROWS + r * dim + d];
        }
        int64_t row = first_row + r, at = ((token0 + row / group) * a->num_heads + kv_head * group + row % group) * dim;
        for (int64_t d = 0; d < dim; d++) set(a->out, at + d, acc[d] / sum, a->q_bf16);
    }
}

static int64_t num_parts(const attention_args *a, int64_t seq, int64_t first_row) {
    int64_t group = a->num_heads / a->num_kv_heads;
    int64_t queries = a->query_start_loc[seq + 1] - a->query_start_loc[seq];
    int64_t last_row = first_row + ROWS - 1 < queries * group ? first_row + ROWS - 1 : queries * group - 1;
    int64_t end = a->seq_lens[seq] - queries + last_row / group + 1;
    return (end + PART - 1) / PART;
}

#define SPECIALISE(DIM, BF16) \
    case DIM * 2 + BF16: attend_part(a, seq, first_row, kv_head, part, record, DIM, BF16); return;

static void attend_part_of_any_shape(const attention_args *a, int64_t seq, int64_t first_row, int64_t kv_head,
                                     int64_t part, float *record) {
    switch (a->head_dim * 2 + a->kv_bf16) {
        SPECIALISE(64, 0) SPECIALISE(64, 1) SPECIALISE(128, 0) SPECIALISE(128, 1)
    }
    attend_part(a, seq, first_row, kv_head, part, record, (int)a->head_dim, a->kv_bf16);
}

void tinyllm_attend(const attention_args *a) {
    int64_t size = record_size(a->head_dim);
    int64_t tasks = a->tiles[a->num_tiles * 3 + 2] * a->num_kv_heads; /* a last row holds the total of parts */
#pragma omp parallel num_threads(a->num_threads) if (tasks > 1)
    {
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; task++) {
            int64_t unit = task / a->num_kv_heads, low = 0, high = a->num_tiles;
            while (high - low > 1) { /* the tile whose parts contain this unit */
                int64_t middle = (low + high) / 2;
                if (a->tiles[middle * 3 + 2] <= unit) low = middle;
                else high = middle;
            }
            const int32_t *tile = a->tiles + low * 3;
            int64_t kv_head = task % a->num_kv_heads, part = unit - tile[2], parts = a->tiles[(low + 1) * 3 + 2] - tile[2];
            float *records = a->partial + (tile[2] * a->num_kv_heads + kv_head * parts) * size;
            attend_part_of_any_shape(a, tile[0], tile[1], kv_head, part, records + part * size);
        }
#pragma omp for schedule(static)
        for (int64_t task = 0; task < a->num_tiles * a->num_kv_heads; task++) {
            const int32_t *tile = a->tiles + task / a->num_kv_heads * 3;
            int64_t kv_head = task % a->num_kv_heads, parts = num_parts(a, tile[0], tile[1]);
            merge_parts(a, tile[0], tile[1], kv_head, a->partial + (tile[2] * a->num_kv_heads + kv_head * parts) * size,
                        parts);
        }
    }
}

void tinyllm_store_kv(const store_args *s) {
#pragma omp parallel for schedule(static) num_threads(s->num_threads) if (s->num_tokens > 4)
    for (int64_t t = 0; t < s->num_tokens; t++) {
        int64_t block = s->slots[t] / s->block_size, inside = s->slots[t] % s->block_size;
        for (int64_t h = 0; h < s->num_kv_heads; h++) {
            int64_t group = (block * s->num_kv_heads + h) * (s->block_size / LANES) + inside / LANES;
            int64_t base = group * LANES * s->head_dim, lane = inside % LANES;
            int64_t k = t * s->k_stride + h * s->head_dim, v = t * s->v_stride + h * s->head_dim;
            for (int64_t d = 0; d < s->head_dim; d++) {
                set(s->keys, base + d * LANES + lane, get(s->k, k + d, s->in_bf16), s->kv_bf16);
                set(s->values, base + lane * s->head_dim + d, get(s->v, v + d, s->in_bf16), s->kv_bf16);
            }
        }
    }
}
