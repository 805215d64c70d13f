/* Matrix products, x @ w.T + bias, shared out to threads by columns.
 *
 * The product itself is oneDNN's: one call for a block of 48 columns and up to 64 rows. A block's weights lie together,
 * so a thread reads one long piece of memory, and nothing is looked up or allocated between two products. oneDNN sums
 * each element from the first input to the last, however many rows there are, so a row's result depends on that row
 * only, bit for bit.
 */
#include "common.h"
#include "kernels.h"

enum { BLOCK = 48, ROWS = 64 };

/* Where a block's sums go: `columns` of each row of `out`, from element `to` on, in the form that is asked for. */
INLINE void finish_block(const float *sums, const linear *by, int64_t first, int64_t rows, void *out, int64_t to,
                         form as, int bf16) {
    int64_t columns = by->out - first < BLOCK ? by->out - first : BLOCK, whole = columns / LANES * LANES;
    for (int64_t r = 0; r < rows; r++, sums += BLOCK, to += by->out) {
        for (int64_t i = 0; i < whole; i += LANES) {
            vec x = load(sums, i, 0);
            if (by->bias) x += load(by->bias, first + i, bf16);
            x = rounded(x, bf16);
            if (as == ADD) x += load(out, to + i, bf16);
            store(out, to + i, x, as == AS_FLOATS ? 0 : bf16);
        }
        for (int64_t i = whole; i < columns; i++) {
            float x = rounded_scalar(by->bias ? sums[i] + get(by->bias, first + i, bf16) : sums[i], bf16);
            if (as == ADD) x += get(out, to + i, bf16);
            set(out, to + i, x, as == AS_FLOATS ? 0 : bf16);
        }
    }
}

/* Two rows are multiplied faster than one, so one is multiplied with whatever is behind it. */
void multiply_shared(const onednn *with, const linear *by, const void *x, int64_t rows, void *out, form as) {
    int64_t blocks = (by->out + BLOCK - 1) / BLOCK, groups = (rows + ROWS - 1) / ROWS, size = with->bf16 ? 2 : 4;
    float sums[ROWS * BLOCK] __attribute__((aligned(64)));
#pragma omp for schedule(dynamic) /* threads are rarely equally fast: one of them shares its core with Python */
    for (int64_t task = 0; task < blocks * groups; task++) {
        int64_t first = task / groups * BLOCK, row = task % groups * ROWS;
        int64_t count = rows - row < ROWS ? rows - row : ROWS;
        with->brgemm(rows == 1 ? 2 : count, BLOCK, by->in, by->in, BLOCK, BLOCK, 0, (const char *)x + row * by->in * size,
                     (const char *)by->weight + first * by->in * size, sums, with->bf16);
        if (with->bf16) finish_block(sums, by, first, count, out, row * by->out + first, as, 1);
        else finish_block(sums, by, first, count, out, row * by->out + first, as, 0);
    }
}

/* out[rows, by->out], as x's type or as floats. */
void tinyllm_multiply(const onednn *with, const linear *by, const void *x, int64_t rows, void *out, int32_t floats,
                      int32_t num_threads) {
#pragma omp parallel num_threads(num_threads)
    {
        multiply_shared(with, by, x, rows, out, floats ? AS_FLOATS : STORE);
        with->release(with->bf16);
    }
}

/* Multiply each of `inputs` by one of `linears`, into the same memory: the least that a step can cost. */
void tinyllm_multiply_all(const onednn *with, const linear *linears, const void *const *inputs, int64_t count,
                          int64_t rows, void *out, int32_t num_threads) {
#pragma omp parallel num_threads(num_threads)
    {
        for (int64_t i = 0; i < count; i++) multiply_shared(with, &linears[i], inputs[i], rows, out, STORE);
        with->release(with->bf16);
    }
}
