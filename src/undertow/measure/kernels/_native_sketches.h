/* Sums over the stretches of packed sketches: products or squared differences of two rows of them, in one pass and
 * without temporary arrays. Eight fixed lanes, so the result is the same on every processor. */

#define SUM_LANES 8

static double stretch_sum(const double *a, const double *b, size_t count, int differences) {
    double lanes[SUM_LANES] = {0};
    size_t i = 0;
    if (differences) {
        for (; i + SUM_LANES <= count; i += SUM_LANES)
            for (size_t k = 0; k < SUM_LANES; k++) {
                const double d = a[i + k] - b[i + k];
                lanes[k] += d * d;
            }
        for (; i < count; i++) lanes[0] += (a[i] - b[i]) * (a[i] - b[i]);
    } else {
        for (; i + SUM_LANES <= count; i += SUM_LANES)
            for (size_t k = 0; k < SUM_LANES; k++) lanes[k] += a[i + k] * b[i + k];
        for (; i < count; i++) lanes[0] += a[i] * b[i];
    }
    return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

/* a: rows × width; b: the same, or one row for all; offsets: tensors + 1; out: rows × tensors. */
static void stretch_sums(const double *a, const double *b, int one_b, const int64_t *offsets, size_t rows,
                         size_t width, size_t tensors, int differences, double *out) {
    for (size_t r = 0; r < rows; r++)
        for (size_t t = 0; t < tensors; t++) {
            const size_t begin = (size_t)offsets[t];
            out[r * tensors + t] = stretch_sum(a + r * width + begin, b + (one_b ? 0 : r * width) + begin,
                                               (size_t)offsets[t + 1] - begin, differences);
        }
}
