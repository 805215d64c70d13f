/* Attention over a paged KV cache, read in place.
 *
 * Layout, for each block and KV head, in groups of 16 tokens (LANES):
 *   float32   keys [group][head_dim][16]        so that one vector holds one dimension of 16 tokens
 *             values [group][16][head_dim]
 *   bfloat16  keys [group][head_dim / 2][16][2]    two dimensions of 16 tokens
 *             values [group][8][head_dim][2]       16 dimensions of two tokens
 * So a line of 64 bytes always goes into one multiplication, with what belongs to it of the query or the weights:
 * a number, or for bfloat16 a pair, whose two products are added to the sum at once where the processor can.
 *
 * Order of summation. A row (one query head of one token) visits the tokens before it in spans of 64, aligned at
 * absolute positions, with one online softmax (Milakov and Gimelshein, 2018) for each part of 512 tokens; parts are
 * merged in order. Nothing in that order depends on other rows, on how the sequence was cut into steps, or on the
 * number of threads, so a row's result is the same, bit for bit, in every batch.
 */
#include "common.h"
#include "kernels.h"

/* Rows that share a read of keys and values: those of a sequence with no more than FEW, else MANY at a time. */
enum { FEW = 4, MANY = 8 };
enum { GROUPS = 4, SPAN = LANES * GROUPS, PART = 512, MAX_DIM = 256, LINE = 64 };

/* What is multiplied: float32 by float32; float32 by bfloat16; bfloat16 by bfloat16, with weights rounded to it. */
enum { FLOATS, MIXED, PAIRS };

static const float MASKED = -1e30f;

/* State of one tile of rows over one part: running maximum, sum of weights, weighted values. */
typedef struct {
    float max[MANY];
    vec sum[MANY];
    vec acc[MANY][MAX_DIM / LANES];
} tile_state;

/* Queries, or the weights of a span: what a line of keys or values is multiplied by. */
typedef union {
    float one[MANY][MAX_DIM];
    uint16_t half[MANY][MAX_DIM];
    uint32_t pair[MANY][MAX_DIM / 2];
} factors;

/* How many numbers of a row of keys or values a line has of each of 16 columns. */
INLINE int per_line(int mode) { return mode == FLOATS ? 1 : 2; }

INLINE wvec line_at(const void *base, int64_t lines) { return *(const uwvec *)((const char *)base + lines * LINE); }

/* sum += a row's i-th factor times a line. */
INLINE vec add_product(vec sum, const factors *by, int row, int64_t i, wvec line, int mode) {
    if (mode == FLOATS) return sum + by->one[row][i] * (vec)line;
    if (mode == MIXED) return sum + by->one[row][2 * i] * low_half(line) + by->one[row][2 * i + 1] * high_half(line);
    return dot_pairs(sum, by->pair[row][i], line);
}

/* Ask for a line of a span's keys and one of its values, the `i`-th of all: memory is slow to come. */
INLINE void fetch_ahead(const void *keys, const void *values, const int64_t *offset, int64_t i, int lines) {
    int64_t at = (offset[i / lines] + i % lines) * LINE;
    __builtin_prefetch((const char *)keys + at, 0, 2);
    __builtin_prefetch((const char *)values + at, 0, 2);
}

/* Absorb the span that starts at `start`, `count` tokens of 64, whose groups lie at `offset`; row r sees tokens up to
 * last[r]. While it computes, the span whose groups lie at `ahead`, if any, is fetched.
 * Values past `count` do not count: a freed block may hold anything, and 0 times NaN is NaN. */
INLINE void absorb_span(tile_state *state, const factors *q, float scale, const void *keys, const void *values,
                        const int64_t *offset, const int64_t *ahead, int64_t start, int64_t count,
                        const int64_t *last, int rows, int dim, int mode) {
    int per = per_line(mode), key_lines = dim / per, value_lines = LANES / per;
    vec score[MANY][GROUPS];
    for (int pair = 0; pair < GROUPS; pair += 2) { /* more sums than these do not stay in registers */
        vec sum[MANY][2] = {{{0}}};
        for (int i = 0; i < key_lines; i++) {
            for (int n = 0; ahead && n < 2; n++)
                fetch_ahead(keys, values, ahead, pair * key_lines + 2 * i + n, key_lines);
            wvec key[2];
            for (int g = 0; g < 2; g++) key[g] = line_at(keys, offset[pair + g] + i);
            for (int r = 0; r < rows; r++)
                for (int g = 0; g < 2; g++) sum[r][g] = add_product(sum[r][g], q, r, i, key[g], mode);
        }
        for (int r = 0; r < rows; r++)
            for (int g = 0; g < 2; g++) score[r][pair + g] = sum[r][g] * scale;
    }
    const ivec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    factors weight;
    for (int r = 0; r < rows; r++) {
        if (last[r] < start + SPAN - 1)
            for (int g = 0; g < GROUPS; g++) {
                ivec seen = (lane + (int32_t)(start + g * LANES)) <= (int32_t)last[r];
                score[r][g] = (vec)(((ivec)score[r][g] & seen) | ((ivec)splat(2 * MASKED) & ~seen));
            }
        vec top = max_of(max_of(score[r][0], score[r][1]), max_of(score[r][2], score[r][3]));
        float highest = horizontal_max(top);
        if (highest > state->max[r]) {
            float shrink = exp_nonpositive(splat(state->max[r] - highest))[0];
            state->max[r] = highest;
            state->sum[r] *= shrink;
            for (int j = 0; j < dim / LANES; j++) state->acc[r][j] *= shrink;
        }
        vec total = splat(0);
        for (int g = 0; g < GROUPS; g++) {
            vec w = exp_nonpositive(score[r][g] - state->max[r]);
            total += w;
            if (mode == PAIRS) store_normal(weight.half[r], g * LANES, w);
            else store(weight.one[r], g * LANES, w, 0);
        }
        state->sum[r] += total;
    }
    enum { SUMS = 16 }; /* as many as stay in registers */
    int stripe = SUMS / rows;
    int64_t lines = (count + per - 1) / per;
    for (int j0 = 0; j0 < dim / LANES; j0 += stripe) {
        int width = dim / LANES - j0 < stripe ? dim / LANES - j0 : stripe;
        vec acc[MANY][SUMS / FEW];
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < width; j++) acc[r][j] = state->acc[r][j0 + j];
        for (int64_t i = 0; i < lines; i++) {
            int64_t at = offset[i / value_lines] + i % value_lines * (dim / LANES) + j0;
            for (int j = 0; j < width; j++) {
                wvec value = line_at(values, at + j);
                if (count % per && i == lines - 1) value &= 0xffffu; /* the first token of the last pair only */
                for (int r = 0; r < rows; r++) acc[r][j] = add_product(acc[r][j], &weight, r, i, value, mode);
            }
        }
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < width; j++) state->acc[r][j0 + j] = acc[r][j];
    }
}

/* Where the groups of tokens from `start` on lie, in lines; those past the end, which are masked, count as the
 * first. */
INLINE void locate_span(const attention_args *a, const int32_t *table, int64_t kv_head, int64_t start, int64_t end,
                        int lines, int64_t *offset) {
    for (int g = 0; g < GROUPS; g++) {
        int64_t token = start + g * LANES < end ? start + g * LANES : start;
        int64_t block = table[token / a->block_size], inside = token % a->block_size / LANES;
        offset[g] = ((block * a->num_kv_heads + kv_head) * (a->block_size / LANES) + inside) * lines;
    }
}

/* One tile of rows, one KV head, one part of the sequence: leaves maximum, sum and values in `record`. */
INLINE void attend_part(const attention_args *a, int64_t seq, int64_t first_row, int64_t kv_head, int64_t part,
                        float *record, int rows, int dim, int mode) {
    int64_t group = a->num_heads / a->num_kv_heads;
    int64_t token0 = a->query_start_loc[seq], num_rows = (a->query_start_loc[seq + 1] - token0) * group;
    int64_t position0 = a->seq_lens[seq] - (a->query_start_loc[seq + 1] - token0);
    const int32_t *table = a->block_tables + seq * a->max_blocks;

    int64_t offset[2][GROUPS]; /* of this span and the next */
    int is_alone = num_rows <= rows; /* no other tile reads the same keys and values, so they are in no cache */
    int lines = dim / per_line(mode); /* of a group's keys, and of its values */
    locate_span(a, table, kv_head, part * PART, a->seq_lens[seq], lines, offset[0]);
    for (int i = 0; is_alone && i < GROUPS * lines; i++) fetch_ahead(a->keys, a->values, offset[0], i, lines);

    factors q;
    int64_t last[MANY], end = 0;
    for (int r = 0; r < rows; r++) {
        int64_t row = first_row + r < num_rows ? first_row + r : num_rows - 1;
        int64_t token = token0 + row / group, head = kv_head * group + row % group;
        int64_t at = token * a->q_stride + head * dim;
        if (mode == PAIRS) memcpy(q.half[r], (const uint16_t *)a->q + at, (size_t)dim * sizeof(uint16_t));
        else
            for (int d = 0; d < dim; d++) q.one[r][d] = get(a->q, at + d, a->q_bf16);
        last[r] = position0 + row / group;
        end = last[r] + 1 > end ? last[r] + 1 : end;
    }
    tile_state state;
    for (int r = 0; r < rows; r++) {
        state.max[r] = MASKED;
        state.sum[r] = splat(0);
        for (int j = 0; j < dim / LANES; j++) state.acc[r][j] = splat(0);
    }
    int64_t stop = (part + 1) * PART < end ? (part + 1) * PART : end;
    for (int64_t start = part * PART, turn = 0; start < stop; start += SPAN, turn ^= 1) {
        int64_t *next = NULL;
        if (start + SPAN < stop) locate_span(a, table, kv_head, start + SPAN, end, lines, next = offset[turn ^ 1]);
        int64_t *ahead = is_alone ? next : NULL;
        int64_t count = end - start < SPAN ? end - start : SPAN;
        if (count == SPAN)
            absorb_span(&state, &q, a->scale, a->keys, a->values, offset[turn], ahead, start, SPAN, last, rows, dim,
                        mode);
        else
            absorb_span(&state, &q, a->scale, a->keys, a->values, offset[turn], ahead, start, count, last, rows, dim,
                        mode);
    }
    for (int r = 0; r < rows; r++) {
        record[r] = state.max[r];
        record[MANY + r] = horizontal_sum(state.sum[r]);
        memcpy(record + 2 * MANY + r * dim, state.acc[r], (size_t)dim * sizeof(float));
    }
}

static inline int64_t record_size(int64_t dim) { return MANY * (dim + 2); }

static inline int64_t tile_rows(int64_t num_rows) { return num_rows <= FEW ? FEW : MANY; }

/* Merge the parts of one tile and KV head in order, and write the rows. */
static void merge_parts(const attention_args *a, int64_t seq, int64_t first_row, int64_t kv_head, const float *records,
                        int64_t parts) {
    int64_t dim = a->head_dim, group = a->num_heads / a->num_kv_heads, size = record_size(dim);
    int64_t token0 = a->query_start_loc[seq], num_rows = (a->query_start_loc[seq + 1] - token0) * group;
    for (int r = 0; r < tile_rows(num_rows) && first_row + r < num_rows; r++) {
        float highest = MASKED, sum = 0, acc[MAX_DIM] = {0};
        for (int64_t p = 0; p < parts; p++) highest = records[p * size + r] > highest ? records[p * size + r] : highest;
        for (int64_t p = 0; p < parts; p++) {
            const float *record = records + p * size;
            float w = exp_nonpositive(splat(record[r] - highest))[0];
            sum += w * record[MANY + r];
            for (int64_t d = 0; d < dim; d++) acc[d] += w * record[2 * MANY + r * dim + d];
        }
        int64_t row = first_row + r, at = ((token0 + row / group) * a->num_heads + kv_head * group + row % group) * dim;
        for (int64_t d = 0; d < dim; d++) set(a->out, at + d, acc[d] / sum, a->q_bf16);
    }
}

static int64_t num_parts(const attention_args *a, int64_t seq, int64_t first_row) {
    int64_t group = a->num_heads / a->num_kv_heads;
    int64_t queries = a->query_start_loc[seq + 1] - a->query_start_loc[seq];
    int64_t num_rows = queries * group, last_row = first_row + tile_rows(num_rows) - 1;
    if (last_row >= num_rows) last_row = num_rows - 1;
    int64_t end = a->seq_lens[seq] - queries + last_row / group + 1;
    return (end + PART - 1) / PART;
}

#define SPECIALISE(ROWS, DIM, MODE) \
    if (rows == ROWS && a->head_dim == DIM && mode == MODE) { \
        attend_part(a, seq, first_row, kv_head, part, record, ROWS, DIM, MODE); \
        return; \
    }

static void attend_part_of_any_shape(const attention_args *a, int64_t seq, int64_t first_row, int64_t kv_head,
                                     int64_t part, float *record) {
    int64_t queries = a->query_start_loc[seq + 1] - a->query_start_loc[seq];
    int64_t rows = tile_rows(queries * (a->num_heads / a->num_kv_heads));
    int mode = !a->kv_bf16 ? FLOATS : !a->q_bf16 ? MIXED : PAIRS;
    SPECIALISE(FEW, 64, FLOATS)
    SPECIALISE(FEW, 64, PAIRS)
    SPECIALISE(FEW, 128, FLOATS)
    SPECIALISE(FEW, 128, PAIRS)
    SPECIALISE(MANY, 64, FLOATS)
    SPECIALISE(MANY, 64, PAIRS)
    SPECIALISE(MANY, 128, FLOATS)
    SPECIALISE(MANY, 128, PAIRS)
    attend_part(a, seq, first_row, kv_head, part, record, (int)rows, (int)a->head_dim, mode);
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

/* Store one head of one token, lane `lane` of a group that starts at element `base`. */
INLINE void store_head(const store_args *s, int64_t k, int64_t v, int64_t base, int64_t lane, int in_bf16,
                       int kv_bf16) {
    int64_t dim = s->head_dim, per = kv_bf16 ? 2 : 1;
    for (int64_t d = 0; d < dim; d++) {
        int64_t key = base + d / per * LANES * per + lane * per + d % per;
        int64_t value = base + lane / per * dim * per + d * per + lane % per;
        if (in_bf16 && kv_bf16) { /* as it is */
            ((uint16_t *)s->keys)[key] = ((const uint16_t *)s->k)[k + d];
            ((uint16_t *)s->values)[value] = ((const uint16_t *)s->v)[v + d];
        } else {
            set(s->keys, key, get(s->k, k + d, in_bf16), kv_bf16);
            set(s->values, value, get(s->v, v + d, in_bf16), kv_bf16);
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
            if (s->in_bf16 && s->kv_bf16) store_head(s, k, v, base, lane, 1, 1);
            else store_head(s, k, v, base, lane, s->in_bf16, s->kv_bf16);
        }
    }
}
