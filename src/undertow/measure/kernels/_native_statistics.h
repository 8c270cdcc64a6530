/* The statistics of one tensor from its partial values: the same formulas, in the same order, as
 * undertow.measure.statistics, which explains them. */

enum statistic {
    NORM, RMS, MEAN, MEAN_ABS, STD, MIN, MAX, MAX_ABS, SKEWNESS, KURTOSIS, ZERO_FRACTION, NONFINITE_COUNT,
    ABS_P05, ABS_P50, ABS_P95, FP16_UNDERFLOW, FP16_OVERFLOW, BF16_UNDERFLOW, BF16_OVERFLOW, FP8_UNDERFLOW,
    FP8_OVERFLOW, STATISTICS
};

enum { BIAS = 127, LAST_FINITE = 254 };

/* Where the share of the finite elements lies, interpolated on a log scale inside an exponent. */
static double quantile(const int64_t *below, double share) {
    const double target = share * (double)below[LAST_FINITE + 1];
    int exponent = 0;
    while (exponent < LAST_FINITE && (double)below[exponent + 1] < target) exponent++;
    if (exponent == 0) return 0.0;
    const double inside = (target - (double)below[exponent]) / (double)(below[exponent + 1] - below[exponent]);
    return exp2(exponent - BIAS + inside);
}

static void from_exponents(const double *moments, const int64_t *exponents, double *out) {
    static const struct {
        int underflow, overflow, smallest, limit;
    } formats[] = {
        {FP16_UNDERFLOW, FP16_OVERFLOW, -25, 16},
        {BF16_UNDERFLOW, BF16_OVERFLOW, -126, 127},
        {FP8_UNDERFLOW, FP8_OVERFLOW, -10, 9},
    };
    const double largest_brain_float = 0x1.fep127, count = moments[0], zeros = moments[4];
    int64_t below[LAST_FINITE + 2]; /* whole numbers are added several times as fast as others */
    below[0] = 0;
    for (int e = 0; e <= LAST_FINITE; e++) below[e + 1] = below[e] + exponents[e];
    const double finite = (double)below[LAST_FINITE + 1];
    const double nonzero = count > 0 ? (finite - zeros > 1.0 ? finite - zeros : 1.0) : NAN;
    static const double shares[] = {0.05, 0.50, 0.95};
    for (int q = 0; q < 3; q++) {
        const double value = finite == 0 ? NAN : quantile(below, shares[q]);
        out[ABS_P05 + q] = value > out[MAX_ABS] ? out[MAX_ABS] : value;
    }
    for (int f = 0; f < 3; f++) {
        double over = finite - (double)below[formats[f].limit + BIAS];
        if (formats[f].overflow == BF16_OVERFLOW && !(out[MAX_ABS] > largest_brain_float)) over = 0.0;
        out[formats[f].underflow] = ((double)below[formats[f].smallest + BIAS] - zeros) / nonzero;
        out[formats[f].overflow] = over / count;
    }
}

/* moments in the order of undertow.measure.partials.Moment; exponents may be NULL. */
static void statistics_of(const double *moments, const int64_t *exponents, double *out) {
    const double count = moments[0], nan = moments[1], infinite = moments[2] + moments[3], finite = count - nan - infinite;
    const double low = moments[5], high = moments[6], some = finite > 0 ? finite : NAN;
    const double shift = moments[8] / (finite > 1 ? finite : 1), square = shift * shift;
    double second = moments[9] - finite * square;
    if (second < 0) second = 0;
    const double third = moments[10] - 3.0 * shift * moments[9] + 2.0 * finite * square * shift;
    const double fourth =
        moments[11] - 4.0 * shift * moments[10] + 6.0 * square * moments[9] - 3.0 * finite * square * square;
    const double variance = low == high ? 0.0 : second / some;
    /* Below this float64 cannot hold the fourth power of the deviations. */
    const double usable = variance > 1e-140 ? variance : NAN;
    for (int s = 0; s < STATISTICS; s++) out[s] = NAN;
    out[NORM] = nan > 0 || count == 0 ? NAN : infinite > 0 ? INFINITY : sqrt(moments[13]);
    out[RMS] = out[NORM] / sqrt(count);
    out[MEAN] = finite > 0 ? moments[7] + shift : NAN;
    out[MEAN_ABS] = moments[12] / some;
    out[STD] = sqrt(variance);
    out[MIN] = low;
    out[MAX] = high;
    out[MAX_ABS] = fabs(low) > fabs(high) ? fabs(low) : fabs(high);
    out[SKEWNESS] = variance == 0 ? 0.0 : third / some / usable / sqrt(usable);
    out[KURTOSIS] = variance == 0 ? 0.0 : fourth / some / usable / usable - 3.0;
    out[ZERO_FRACTION] = moments[4] / count;
    out[NONFINITE_COUNT] = nan + infinite;
    if (exponents) from_exponents(moments, exponents, out);
}

enum { MANY_STATISTICS = 256 }; /* tensors; the lock of the interpreter is then worth giving back */

/* moments: n rows; exponents: n rows, or NULL; out: a row per statistic. */
static void statistics_of_all(const double *moments, const int64_t *exponents, size_t n, double *out) {
    double row[STATISTICS];
    for (size_t t = 0; t < n; t++) {
        statistics_of(moments + t * MOMENTS, exponents ? exponents + t * EXPONENTS : NULL, row);
        for (size_t s = 0; s < STATISTICS; s++) out[s * n + t] = row[s];
    }
}
