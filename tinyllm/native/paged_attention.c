/* Attention over a paged KV cache, read in place.
 *
 * Layout, for each KV head and block, in groups of 16 tokens (LANES):
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
enum { SUMS = 16, COLUMNS = 4 }; /* as many as stay in registers, and of each row */

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

/* Where the keys and values of 64 tokens lie, by groups of 16. */
typedef struct {
    const char *keys[GROUPS], *values[GROUPS];
} span;

/* Ask for a line that is needed soon, and once: memory is slow to come. */
INLINE void fetch(const char *base, int64_t line) { __builtin_prefetch(base + line * LINE, 0, 0); }

/* Scores of `groups` groups of tokens, two at a time: more sums than these do not stay in registers. */
INLINE void score_span(vec score[MANY][GROUPS], const factors *q, float scale, const span *at, const span *ahead,
                       int groups, int rows, int dim, int mode) {
    for (int pair = 0; pair < GROUPS; pair += 2) {
        const char *first = at->keys[pair], *second = at->keys[pair + 1];
        vec sum[MANY][2] = {{{0}}};
        for (int i = 0; pair < groups && i < dim / per_line(mode); i++) {
            if (ahead) fetch(ahead->keys[pair], i), fetch(ahead->keys[pair + 1], i);
            wvec key[2] = {line_at(first, i), line_at(second, i)};
            for (int r = 0; r < rows; r++)
                for (int g = 0; g < 2; g++) sum[r][g] = add_product(sum[r][g], q, r, i, key[g], mode);
        }
        for (int r = 0; r < rows; r++)
            for (int g = 0; g < 2; g++) score[r][pair + g] = sum[r][g] * scale;
    }
}

/* Turn a row's scores into weights relative to the highest so far. Tokens from `seen` on do not count. */
INLINE void weigh_span(tile_state *state, factors *weight, vec score[GROUPS], int64_t seen, int r, int dim, int mode) {
    const ivec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    if (seen < SPAN)
        for (int g = 0; g < GROUPS; g++) {
            ivec is_seen = (lane + g * LANES) < (int32_t)seen;
            score[g] = (vec)(((ivec)score[g] & is_seen) | ((ivec)splat(2 * MASKED) & ~is_seen));
        }
    float highest = horizontal_max(max_of(max_of(score[0], score[1]), max_of(score[2], score[3])));
    if (highest > state->max[r]) {
        float shrink = exp_nonpositive(splat(state->max[r] - highest))[0];
        state->max[r] = highest;
        state->sum[r] *= shrink;
        for (int j = 0; j < dim / LANES; j++) state->acc[r][j] *= shrink;
    }
    vec total = splat(0);
    for (int g = 0; g < GROUPS; g++) {
        vec w = exp_nonpositive(score[g] - state->max[r]);
        total += w;
        if (mode == PAIRS) store_normal(weight->half[r], g * LANES, w);
        else store(weight->one[r], g * LANES, w, 0);
    }
    state->sum[r] += total;
}

/* acc += a line of values times each row's weight, for `width` columns of 16 dimensions from `column` on. */
INLINE void add_line(vec acc[MANY][COLUMNS], const factors *weight, const char *values, int64_t i, int line,
                     wvec mask, int width, int rows, int mode) {
    for (int j = 0; j < width; j++) {
        wvec value = line_at(values, line + j) & mask;
        for (int r = 0; r < rows; r++) acc[r][j] = add_product(acc[r][j], weight, r, i, value, mode);
    }
}

/* Add the values of the first `count` tokens, weighted. Those past them do not count: a freed block may hold
 * anything, and 0 times NaN is NaN. */
INLINE void add_values(tile_state *state, const factors *weight, const span *at, const span *ahead, int64_t count,
                       int rows, int dim, int mode) {
    const wvec whole = ~(wvec){0}, half = (wvec){0} + 0xffffu; /* half: the first token of a pair only */
    int per = per_line(mode), columns = dim / LANES, lines = LANES / per;
    int stripe = SUMS / rows < COLUMNS ? SUMS / rows : COLUMNS;
    for (int column = 0; column < columns; column += stripe) {
        int width = columns - column < stripe ? columns - column : stripe;
        vec acc[MANY][COLUMNS];
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < width; j++) acc[r][j] = state->acc[r][column + j];
        for (int g = 0; g < GROUPS; g++) {
            int64_t left = count - g * LANES;
            int full = left >= LANES ? lines : left > 0 ? (int)left / per : 0;
            for (int i = 0; i < full; i++) {
                for (int j = 0; ahead && j < width; j++) fetch(ahead->values[g], i * columns + column + j);
                add_line(acc, weight, at->values[g], g * lines + i, i * columns + column, whole, width, rows, mode);
            }
            if (left > 0 && left < LANES && left % per)
                add_line(acc, weight, at->values[g], g * lines + full, full * columns + column, half, width, rows,
                         mode);
        }
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < width; j++) state->acc[r][column + j] = acc[r][j];
    }
}

/* Absorb a span of `count` tokens of 64 that starts at `start`; row r sees tokens up to last[r]. While it computes,
 * the span `ahead`, if any, is fetched. */
INLINE void absorb_span(tile_state *state, const factors *q, float scale, const span *at, const span *ahead,
                        int64_t start, int64_t count, const int64_t *last, int rows, int dim, int mode) {
    vec score[MANY][GROUPS];
    factors weight;
    score_span(score, q, scale, at, ahead, (int)(count + LANES - 1) / LANES, rows, dim, mode);
    for (int r = 0; r < rows; r++)
        weigh_span(state, &weight, score[r], last[r] + 1 - start, r, dim, mode);
    add_values(state, &weight, at, ahead, count, rows, dim, mode);
}

/* One tile of rows, one KV head, one part of the sequence. */
typedef struct {
    int64_t seq, first_row, kv_head, part;
    int64_t num_rows;  /* of the sequence */
    int64_t position0; /* of its first query */
    float *record;     /* what is found, to be merged with other parts; NULL if this is the only one */
} unit;

/* The place of tokens from `start` on; those past the end, which are masked, count as the first. */
INLINE void locate_span(const attention_args *a, const unit *u, int64_t start, int64_t end, int dim, int mode,
                        span *out) {
    const int32_t *table = a->block_tables + u->seq * a->max_blocks;
    int64_t size = dim / per_line(mode) * LINE; /* of a group's keys, and of its values */
    for (int g = 0; g < GROUPS; g++) {
        int64_t token = start + g * LANES < end ? start + g * LANES : start;
        int64_t block = table[token / a->block_size], inside = token % a->block_size / LANES;
        int64_t at = ((u->kv_head * a->num_blocks + block) * (a->block_size / LANES) + inside) * size;
        out->keys[g] = (const char *)a->keys + at;
        out->values[g] = (const char *)a->values + at;
    }
}

static inline int64_t record_size(int64_t dim) { return MANY * (dim + 2); }

static inline int64_t tile_rows(int64_t num_rows) { return num_rows <= FEW ? FEW : MANY; }

/* A row's place, as of [num_tokens, num_heads]. */
INLINE void place_row(const attention_args *a, const unit *u, int64_t row, int64_t *token, int64_t *head) {
    int64_t group = a->num_heads / a->num_kv_heads;
    *token = a->query_start_loc[u->seq] + row / group;
    *head = u->kv_head * group + row % group;
}

INLINE void write_row(const attention_args *a, const unit *u, int64_t row, const vec *acc, float sum) {
    int64_t token, head;
    place_row(a, u, row, &token, &head);
    for (int j = 0; j < a->head_dim / LANES; j++)
        store(a->out, (token * a->num_heads + head) * a->head_dim + j * LANES, acc[j] / sum, a->q_bf16);
}

/* Leaves maximum, sum and values of a unit in its record, or the result in `out`. `next` is what this thread computes
 * after it, or NULL: its beginning is fetched in good time. */
INLINE void attend_part(const attention_args *a, const unit *u, const unit *next, int rows, int dim, int mode) {
    int64_t group = a->num_heads / a->num_kv_heads;
    factors q;
    int64_t last[MANY], end = 0;
    tile_state state;
    for (int r = 0; r < rows; r++) {
        int64_t row = u->first_row + r < u->num_rows ? u->first_row + r : u->num_rows - 1, token, head;
        place_row(a, u, row, &token, &head);
        int64_t at = token * a->q_stride + head * dim;
        if (mode == PAIRS) memcpy(q.half[r], (const uint16_t *)a->q + at, (size_t)dim * sizeof(uint16_t));
        else
            for (int d = 0; d < dim; d++) q.one[r][d] = get(a->q, at + d, a->q_bf16);
        last[r] = u->position0 + row / group;
        end = last[r] + 1 > end ? last[r] + 1 : end;
        state.max[r] = MASKED;
        state.sum[r] = splat(0);
        for (int j = 0; j < dim / LANES; j++) state.acc[r][j] = splat(0);
    }
    int is_alone = u->num_rows <= rows; /* no other tile reads the same keys and values, so they are in no cache */
    int64_t stop = (u->part + 1) * PART < end ? (u->part + 1) * PART : end;
    span spans[2];
    locate_span(a, u, u->part * PART, end, dim, mode, &spans[0]);
    for (int64_t start = u->part * PART, turn = 0; start < stop; start += SPAN, turn ^= 1) {
        span *ahead = NULL, *following = &spans[turn ^ 1];
        if (start + SPAN < stop) {
            locate_span(a, u, start + SPAN, end, dim, mode, following);
            if (is_alone) ahead = following;
        } else if (next) {
            locate_span(a, next, next->part * PART, next->position0 + 1, dim, mode, following);
            ahead = following;
        }
        if (end - start >= SPAN)
            absorb_span(&state, &q, a->scale, &spans[turn], ahead, start, SPAN, last, rows, dim, mode);
        else absorb_span(&state, &q, a->scale, &spans[turn], ahead, start, end - start, last, rows, dim, mode);
    }
    for (int r = 0; r < rows; r++) {
        float sum = horizontal_sum(state.sum[r]);
        if (u->record) {
            u->record[r] = state.max[r];
            u->record[MANY + r] = sum;
            memcpy(u->record + 2 * MANY + r * dim, state.acc[r], (size_t)dim * sizeof(float));
        } else if (u->first_row + r < u->num_rows) {
            write_row(a, u, u->first_row + r, state.acc[r], sum);
        }
    }
}

/* Merge the parts of one tile and KV head in order, and write the rows. `first` is the first part's unit. */
static void merge_parts(const attention_args *a, const unit *first, int64_t parts) {
    int64_t dim = a->head_dim, size = record_size(dim);
    for (int r = 0; r < tile_rows(first->num_rows) && first->first_row + r < first->num_rows; r++) {
        const float *record = first->record + r, *values = first->record + 2 * MANY + r * dim;
        float highest = MASKED, sum = 0;
        vec acc[MAX_DIM / LANES] = {{0}};
        for (int64_t p = 0; p < parts; p++) highest = record[p * size] > highest ? record[p * size] : highest;
        for (int64_t p = 0; p < parts; p++) {
            float w = exp_nonpositive(splat(record[p * size] - highest))[0];
            sum += w * record[p * size + MANY];
            for (int j = 0; j < dim / LANES; j++) acc[j] += w * load(values, p * size + j * LANES, 0);
        }
        write_row(a, first, first->first_row + r, acc, sum);
    }
}

#define SPECIALISE(ROWS, DIM, MODE) \
    if (rows == ROWS && a->head_dim == DIM && mode == MODE) { \
        attend_part(a, u, next, ROWS, DIM, MODE); \
        return; \
    }

static void attend_part_of_any_shape(const attention_args *a, const unit *u, const unit *next) {
    int64_t rows = u->num_rows < FEW ? u->num_rows : tile_rows(u->num_rows);
    int mode = !a->kv_bf16 ? FLOATS : !a->q_bf16 ? MIXED : PAIRS;
    SPECIALISE(3, 64, FLOATS)
    SPECIALISE(3, 64, PAIRS)
    SPECIALISE(FEW, 64, FLOATS)
    SPECIALISE(FEW, 64, PAIRS)
    SPECIALISE(2, 128, FLOATS)
    SPECIALISE(2, 128, PAIRS)
    SPECIALISE(FEW, 128, FLOATS)
    SPECIALISE(FEW, 128, PAIRS)
    SPECIALISE(MANY, 64, FLOATS)
    SPECIALISE(MANY, 64, PAIRS)
    SPECIALISE(MANY, 128, FLOATS)
    SPECIALISE(MANY, 128, PAIRS)
    attend_part(a, u, next, (int)rows, (int)a->head_dim, mode);
}

/* The unit that is the `task`-th of all: heads, in parts, in tiles. */
static unit find_unit(const attention_args *a, int64_t task) {
    int64_t number = task / a->num_kv_heads, low = 0, high = a->num_tiles;
    while (high - low > 1) { /* the tile whose parts contain this one */
        int64_t middle = (low + high) / 2;
        if (a->tiles[middle * 3 + 2] <= number) low = middle;
        else high = middle;
    }
    const int32_t *tile = a->tiles + low * 3;
    int64_t seq = tile[0], queries = a->query_start_loc[seq + 1] - a->query_start_loc[seq];
    unit u = {seq, tile[1], task % a->num_kv_heads, number - tile[2], queries * (a->num_heads / a->num_kv_heads),
              a->seq_lens[seq] - queries, NULL};
    int64_t parts = tile[5] - tile[2];
    if (parts > 1)
        u.record = a->partial + (tile[2] * a->num_kv_heads + u.kv_head * parts + u.part) * record_size(a->head_dim);
    return u;
}

void attend_shared(const attention_args *a, int64_t *taken) {
    int64_t parts = a->tiles[a->num_tiles * 3 + 2], tasks = parts * a->num_kv_heads;
    int64_t task = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED);
    while (task < tasks) {
        int64_t after = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED);
        unit this = find_unit(a, task), next;
        if (after < tasks) next = find_unit(a, after);
        attend_part_of_any_shape(a, &this, after < tasks ? &next : NULL);
        task = after;
    }
#pragma omp barrier
#pragma omp master
    *taken = 0;
    if (parts == a->num_tiles) return;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < a->num_tiles * a->num_kv_heads; i++) {
        const int32_t *tile = a->tiles + i / a->num_kv_heads * 3;
        int64_t count = tile[5] - tile[2];
        if (count < 2) continue;
        unit first = find_unit(a, tile[2] * a->num_kv_heads + i % a->num_kv_heads);
        merge_parts(a, &first, count);
    }
}

void tinyllm_attend(const attention_args *a) {
    int64_t taken = 0;
#pragma omp parallel num_threads(a->num_threads) if (a->tiles[a->num_tiles * 3 + 2] * a->num_kv_heads > 1)
    attend_shared(a, &taken);
}

/* Store one head of one token, lane `lane` of a group that starts at element `base`. */
INLINE void store_head(const store_args *s, int64_t k, int64_t v, int64_t base, int64_t lane, int in_bf16,
                       int kv_bf16) {
    int64_t dim = s->head_dim, per = kv_bf16 ? 2 : 1;
    int64_t key = base + lane * per, value = base + lane / per * dim * per + lane % per;
    for (int64_t d = 0; d < dim; d += per, key += LANES * per) {
        if (in_bf16 && kv_bf16) memcpy((uint16_t *)s->keys + key, (const uint16_t *)s->k + k + d, 4); /* as they are */
        else
            for (int64_t i = 0; i < per; i++) set(s->keys, key + i, get(s->k, k + d + i, in_bf16), kv_bf16);
    }
    for (int64_t d = 0; d < dim; d++) {
        if (in_bf16 && kv_bf16) ((uint16_t *)s->values)[value + d * 2] = ((const uint16_t *)s->v)[v + d];
        else set(s->values, value + d * per, get(s->v, v + d, in_bf16), kv_bf16);
    }
}

void store_kv_shared(const store_args *s) {
#pragma omp for schedule(static)
    for (int64_t t = 0; t < s->num_tokens; t++) {
        int64_t block = s->slots[t] / s->block_size, inside = s->slots[t] % s->block_size;
        for (int64_t h = 0; h < s->num_kv_heads; h++) {
            int64_t group = (h * s->num_blocks + block) * (s->block_size / LANES) + inside / LANES;
            int64_t base = group * LANES * s->head_dim, lane = inside % LANES;
            int64_t k = t * s->k_stride + h * s->head_dim, v = t * s->v_stride + h * s->head_dim;
            if (s->in_bf16 && s->kv_bf16) store_head(s, k, v, base, lane, 1, 1);
            else store_head(s, k, v, base, lane, s->in_bf16, s->kv_bf16);
        }
    }
}

void tinyllm_store_kv(const store_args *s) {
#pragma omp parallel num_threads(s->num_threads) if (s->num_tokens > 4)
    store_kv_shared(s);
}
