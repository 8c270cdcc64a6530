/* What is done with one block, the same for both element types (ELEMENT, and OF(x) that adds its name). */

/* Leaves the finite elements, closed up, and counts the others. */
static size_t OF(finite_only)(const ELEMENT *x, size_t count, ELEMENT *out, struct result *result) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        out[kept] = x[i];
        kept += isfinite(x[i]) ? 1 : 0;
        result->nan += x[i] != x[i];
        result->positive_infinity += x[i] == (ELEMENT)INFINITY;
        result->negative_infinity += x[i] == -(ELEMENT)INFINITY;
    }
    return kept;
}

static void OF(silence)(const ELEMENT *x, size_t count, ELEMENT *out) {
    for (size_t i = 0; i < count; i++) out[i] = isfinite(x[i]) ? x[i] : (ELEMENT)0;
}

static void OF(add_sums)(struct result *result, const ELEMENT *x, size_t count, const struct sums *sums) {
    struct central part = central_of(sums, (double)count, 0.0);
    if (pivot_is_far(sums, (double)count)) {
        const double pivot = sums->minimum == sums->maximum ? sums->minimum : part.mean;
        struct sums near;
        OF(centred)(x, count, pivot, &near);
        part = central_of(&near, (double)count, pivot);
    }
    merge_central(&result->central, &part);
    result->absolute += sums->absolute;
    result->square += sums->second;
    result->minimum = fmin(result->minimum, sums->minimum);
    result->maximum = fmax(result->maximum, sums->maximum);
}

/* A block with a non-finite element takes the slow road: moments of the others, zeros in its place in the sketch. */
static void OF(clean_and_sweep)(const ELEMENT *x, size_t count, struct result *result, int moments,
                                const uint32_t *signs, double *buckets) {
    ELEMENT clean[BLOCK];
    if (moments) {
        struct sums sums;
        const size_t kept = OF(finite_only)(x, count, clean, result);
        OF(sweep)(clean, kept, &sums, signs, NULL);
        if (kept) OF(add_sums)(result, clean, kept, &sums);
    }
    if (buckets) {
        OF(silence)(x, count, clean);
        OF(sweep)(clean, count, NULL, signs, buckets);
    }
}

/* start is the place of the block in its tensor; it chooses the signs. */
static void OF(measure_block)(const ELEMENT *x, size_t count, size_t start, int want, struct result *result,
                              double *buckets) {
    const int moments = want & WANT_MOMENTS;
    uint32_t signs[BLOCK / 32];
    int finite, maybe_zero = 1;
    if (want & WANT_EXPONENTS) {
        uint8_t exponents[BLOCK] __attribute__((aligned(64)));
        const uint64_t before = result->exponents[0];
        OF(exponents)(x, count, exponents);
        finite = passes->histogram(exponents, count, result->exponents) != 255;
        maybe_zero = result->exponents[0] != before;
    } else {
        finite = OF(all_finite)(x, count);
    }
    if (moments && maybe_zero) result->zeros += OF(zeros)(x, count);
    if (buckets)
        for (size_t i = 0; i < (count + 31) / 32; i++) signs[i] = sign_word((uint32_t)(start / 32 + i));
    if (!finite) {
        OF(clean_and_sweep)(x, count, result, moments, signs, buckets);
    } else if (moments || buckets) {
        struct sums sums;
        OF(sweep)(x, count, moments ? &sums : NULL, signs, buckets);
        if (moments) OF(add_sums)(result, x, count, &sums);
    }
}
