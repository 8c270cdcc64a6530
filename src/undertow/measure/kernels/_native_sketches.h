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

/* What one frame's sketches say beside those remembered: see undertow.measure.sketches.Direction for the rows of
 * out. Any of the sketches may be NULL: rows that need it are left alone. change = weight − weight_before. */
struct frame_sketches {
    const double *gradient, *gradient_before, *weight, *weight_before, *change_before, *start;
    double *change;
};

static void direction_sums(const struct frame_sketches *of, const int64_t *offsets, size_t tensors, double *out) {
    for (size_t t = 0; t < tensors; t++, out++) {
        const size_t at = (size_t)offsets[t], count = (size_t)offsets[t + 1] - at;
#define SUM(row, a, b, differences) \
    if (of->a && of->b) out[(row) * tensors] = stretch_sum(of->a + at, of->b + at, count, differences)
        SUM(0, gradient, gradient, 0);
        SUM(1, gradient, gradient_before, 0);
        SUM(2, weight, weight, 0);
        SUM(3, weight, start, 0);
        SUM(4, weight, start, 1);
        if (!of->weight || !of->weight_before) continue;
        for (size_t i = at; i < at + count; i++) of->change[i] = of->weight[i] - of->weight_before[i];
        SUM(5, change, change, 0);
        SUM(6, change, change_before, 0);
        SUM(7, change, gradient, 0);
#undef SUM
    }
}
