/* What sampling needs of every row of logits: the largest, and where it is. */
#include "common.h"
#include "kernels.h"

enum { CHAINS = 4, STRIDE = CHAINS * LANES, NONE = INT32_MAX };

/* The first largest of `columns` numbers; a NaN anywhere makes the largest NaN. */
static void largest_of_row(const float *row, int64_t columns, float *value, int64_t *index) {
    const ivec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int64_t whole = columns / STRIDE * STRIDE;
    vec best[CHAINS], sum = splat(0);
    ivec place[CHAINS];
    for (int c = 0; c < CHAINS; c++) {
        best[c] = splat(-__builtin_inff());
        place[c] = lane - lane + NONE;
    }
    for (int64_t i = 0; i < whole; i += STRIDE)
        for (int c = 0; c < CHAINS; c++) {
            vec x = *(const uvec *)(row + i + c * LANES);
            ivec larger = x > best[c];
            best[c] = (vec)(((ivec)x & larger) | ((ivec)best[c] & ~larger));
            place[c] = ((lane + (int32_t)(i + c * LANES)) & larger) | (place[c] & ~larger);
            sum += x * 0.0f; /* NaN from then on where x is NaN or infinite */
        }
    float top = -__builtin_inff();
    int32_t at = NONE, unsure = !(horizontal_sum(sum) == 0.0f);
    for (int c = 0; c < CHAINS; c++)
        for (int l = 0; l < LANES; l++)
            if (best[c][l] > top || (best[c][l] == top && place[c][l] < at)) {
                top = best[c][l];
                at = place[c][l];
            }
    for (int64_t i = whole; i < columns; i++)
        if (row[i] > top) {
            top = row[i];
            at = (int32_t)i;
        }
    for (int64_t i = unsure ? 0 : whole; i < columns; i++)
        if (row[i] != row[i]) top = row[i];
    *value = top;
    *index = at == NONE ? 0 : at;
}

/* values[i], indices[i]: the first largest of row i; rows are `stride` floats apart. */
void tinyllm_largest(const float *logits, int64_t rows, int64_t columns, int64_t stride, float *values,
                     int64_t *indices, int32_t num_threads) {
#pragma omp parallel for schedule(static) num_threads(num_threads) if (rows > 1)
    for (int64_t row = 0; row < rows; row++) largest_of_row(logits + row * stride, columns, values + row, indices + row);
}
