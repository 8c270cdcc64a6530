/* The passes over one block of float32, for one instruction set.
 *
 * _native.c includes this file once per instruction set. Before that it defines NAME(x) (adds a suffix),
 * TARGET (function attribute), WIDTH (floats per vector) and the few operations that C's vector extension
 * cannot say well: LOWER, HIGHER, WIDEN (load half a vector of floats as
 * doubles) and FLIP (negate the lanes whose bit is set).
 */

typedef float NAME(floats) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef uint32_t NAME(words) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef double NAME(doubles) __attribute__((vector_size(4 * WIDTH), aligned(8), may_alias));
typedef uint64_t NAME(longs) __attribute__((vector_size(4 * WIDTH), aligned(8), may_alias));
typedef float NAME(half_floats) __attribute__((vector_size(2 * WIDTH), aligned(4), may_alias));

/* Sums of powers and of signed values over rows × columns elements (columns a multiple of WIDTH, rows BUCKETS
 * apart), column by column, so that a bucket is loaded and stored once for all rows; each bucket adds up in
 * row order. Everything is summed in float64: powers of float32 neither over- nor underflow there, and the
 * difference of two sketches keeps the last bit of every weight. */
static inline __attribute__((always_inline)) TARGET void NAME(sweep)(const float *x, size_t rows, size_t columns,
                                                                     struct sums *sums, const uint32_t *signs,
                                                                     double *buckets, int moments, int sketch) {
    const NAME(longs) no_sign = (NAME(longs)){0} + 0x7fffffffffffffffu;
    NAME(doubles) first[2] = {{0}}, second[2] = {{0}}, third[2] = {{0}}, fourth[2] = {{0}}, absolute[2] = {{0}};
    NAME(doubles) bucket[2] = {{0}};
    NAME(floats) low = *(const NAME(floats) *)x, high = low;
    for (size_t c = 0; c < columns; c += WIDTH) {
        if (sketch) {
            bucket[0] = *(const NAME(doubles) *)(buckets + c);
            bucket[1] = *(const NAME(doubles) *)(buckets + c + WIDTH / 2);
        }
        for (size_t r = 0; r < rows; r++) {
            const float *at = x + r * BUCKETS + c;
            __builtin_prefetch(at + BLOCK, 0, 2); /* the next block, while this one is worked on */
            const NAME(floats) value = *(const NAME(floats) *)at;
            const NAME(doubles) wide[2] = {WIDEN(at), WIDEN(at + WIDTH / 2)};
            if (sketch) {
                const uint32_t bits = signs[r * (BUCKETS / 32) + c / 32] >> (c % 32);
                bucket[0] += FLIP(wide[0], bits);
                bucket[1] += FLIP(wide[1], bits >> (WIDTH / 2));
            }
            if (moments) {
                low = LOWER(low, value);
                high = HIGHER(high, value);
                for (int h = 0; h < 2; h++) {
                    const NAME(doubles) square = wide[h] * wide[h];
                    first[h] += wide[h];
                    absolute[h] += (NAME(doubles))((NAME(longs))wide[h] & no_sign);
                    second[h] += wide[h] * wide[h];
                    third[h] += square * wide[h];
                    fourth[h] += square * square;
                }
            }
        }
        if (sketch) {
            *(NAME(doubles) *)(buckets + c) = bucket[0];
            *(NAME(doubles) *)(buckets + c + WIDTH / 2) = bucket[1];
        }
    }
    if (!moments) return;
    for (int j = 0; j < WIDTH / 2; j++) {
        sums->first += first[0][j] + first[1][j];
        sums->second += second[0][j] + second[1][j];
        sums->third += third[0][j] + third[1][j];
        sums->fourth += fourth[0][j] + fourth[1][j];
        sums->absolute += absolute[0][j] + absolute[1][j];
    }
    for (int j = 0; j < WIDTH; j++) {
        if (low[j] < sums->minimum) sums->minimum = low[j];
        if (high[j] > sums->maximum) sums->maximum = high[j];
    }
}

/* sums or buckets may be NULL. Both in one sweep need more registers than narrow vectors have. */
static TARGET void NAME(sweep_chosen)(const float *x, size_t rows, size_t columns, struct sums *sums,
                                      const uint32_t *signs, double *buckets) {
    if (sums && buckets && WIDTH == 16) {
        NAME(sweep)(x, rows, columns, sums, signs, buckets, 1, 1);
        return;
    }
    if (sums) NAME(sweep)(x, rows, columns, sums, NULL, NULL, 1, 0);
    if (buckets) NAME(sweep)(x, rows, columns, NULL, signs, buckets, 0, 1);
}

/* Powers of x − pivot, for the rare block whose mean is far larger than its spread. count: a multiple of WIDTH. */
static TARGET void NAME(centred)(const float *x, size_t count, double pivot, struct sums *out) {
    NAME(doubles) first = {0}, second = {0}, third = {0}, fourth = {0};
    for (size_t i = 0; i < count; i += WIDTH) {
        const NAME(doubles) wide[2] = {WIDEN(x + i) - pivot, WIDEN(x + i + WIDTH / 2) - pivot};
        for (int h = 0; h < 2; h++) {
            const NAME(doubles) square = wide[h] * wide[h];
            first += wide[h];
            second += square;
            third += square * wide[h];
            fourth += square * square;
        }
    }
    for (int j = 0; j < WIDTH / 2; j++) {
        out->first += first[j];
        out->second += second[j];
        out->third += third[j];
        out->fourth += fourth[j];
    }
}

static TARGET size_t NAME(zeros)(const float *x, size_t count) {
    NAME(words) found = {0};
    for (size_t i = 0; i < count; i += WIDTH) found -= (NAME(words))(*(const NAME(floats) *)(x + i) == 0.0f);
    size_t total = 0;
    for (int j = 0; j < WIDTH; j++) total += found[j];
    return total;
}

static TARGET int NAME(all_finite)(const float *x, size_t count) {
    NAME(words) any = {0};
    for (size_t i = 0; i < count; i += WIDTH)
        any |= (NAME(words))(((*(const NAME(words) *)(x + i)) & 0x7f800000u) == 0x7f800000u);
    uint32_t total = 0;
    for (int j = 0; j < WIDTH; j++) total |= any[j];
    return total == 0;
}

static const struct passes NAME(passes) = {
    WIDTH, NAME(sweep_chosen), NAME(centred), NAME(zeros), NAME(all_finite), HISTOGRAM,
};
