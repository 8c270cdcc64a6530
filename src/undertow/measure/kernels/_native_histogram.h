/* The histogram of exponents of one block, for one instruction set (see _native_pass.h for NAME and TARGET).
 *
 * Real tensors spread over some twenty binary exponents, so counting one exponent after another, a vector of
 * bytes at a time, beats one memory increment per element. A block that spreads wider is finished one by one.
 */

typedef uint8_t NAME(bytes) __attribute__((vector_size(LANES), may_alias));
typedef uint16_t NAME(shorts) __attribute__((vector_size(LANES), may_alias));
typedef uint32_t NAME(lanes) __attribute__((vector_size(LANES), may_alias));
typedef uint32_t NAME(source) __attribute__((vector_size(LANES), aligned(4), may_alias));
typedef uint64_t NAME(totals) __attribute__((vector_size(LANES), may_alias));

/* The exponent byte of every element, in an order that only suits counting: the upper halves of two vectors are
 * laid together, then the exponents of two of those. */
static TARGET void NAME(exponents)(const float *x, size_t count, uint8_t *out) {
    const size_t whole = count - count % LANES;
    for (size_t i = 0; i < whole; i += LANES) {
        const NAME(source) *from = (const NAME(source) *)(x + i);
        const NAME(shorts) one = (NAME(shorts))((from[0] >> 16) | (from[1] & 0xffff0000u));
        const NAME(shorts) two = (NAME(shorts))((from[2] >> 16) | (from[3] & 0xffff0000u));
        *(NAME(shorts) *)(out + i) = ((one + one) >> 8) | ((two + two) & 0xff00u);
    }
    for (size_t i = whole; i < count; i++) out[i] = (uint8_t)(((const uint32_t *)x)[i] >> 23);
}

static inline TARGET uint32_t NAME(sum_bytes)(const NAME(bytes) *bytes) {
    const NAME(totals) pairs = ((NAME(totals))*bytes & 0x00ff00ff00ff00ffu) + ((NAME(totals))*bytes >> 8 & 0x00ff00ff00ff00ffu);
    const NAME(totals) sums = pairs * 0x0001000100010001u >> 48;
    uint32_t total = 0;
    for (int j = 0; j < LANES / 8; j++) total += (uint32_t)sums[j];
    return total;
}

/* How often each of the wanted exponents occurs. count is a multiple of LANES. */
static TARGET void NAME(occurrences)(const uint8_t *exponents, size_t count, const uint8_t *wanted, uint32_t *out) {
    NAME(bytes) same[TOGETHER], found[TOGETHER];
    for (int k = 0; k < TOGETHER; k++) {
        same[k] = (NAME(bytes)){0} + wanted[k];
        out[k] = 0;
    }
    for (size_t i = 0; i < count;) {
        const size_t stop = count - i > LANES * 255 ? i + LANES * 255 : count; /* before a byte runs over */
        for (int k = 0; k < TOGETHER; k++) found[k] = (NAME(bytes)){0};
        for (; i < stop; i += LANES) {
            const NAME(bytes) here = *(const NAME(bytes) *)(exponents + i);
            for (int k = 0; k < TOGETHER; k++) found[k] -= (NAME(bytes))(here == same[k]);
        }
        for (int k = 0; k < TOGETHER; k++) out[k] += NAME(sum_bytes)(&found[k]);
    }
}

/* Counts the exponents from next downward, and zero, until none of the `left` elements is missing. */
static TARGET void NAME(remaining)(const uint8_t *exponents, size_t count, size_t left, int next, uint64_t *out) {
    for (int round = 0; left > 0 && round < WIDEST / TOGETHER; round++) {
        uint8_t wanted[TOGETHER];
        uint32_t found[TOGETHER];
        for (int k = 0; k < TOGETHER; k++) wanted[k] = (uint8_t)(next > k ? next - k : 0);
        if (round == 0) wanted[TOGETHER - 1] = 0; /* zeros are common and far from the rest */
        NAME(occurrences)(exponents, count, wanted, found);
        for (int k = 0; k < TOGETHER; k++) {
            if (wanted[k] == 0 && (round > 0 || k < TOGETHER - 1)) continue;
            out[wanted[k]] += found[k];
            left -= found[k];
        }
        next -= round == 0 ? TOGETHER - 1 : TOGETHER;
    }
    if (left > 0)
        for (size_t i = 0; i < count; i++)
            if (exponents[i] != 0 && exponents[i] <= next) out[exponents[i]]++;
}

/* exponents: count bytes, aligned, with room up to the next multiple of LANES. Returns the highest. */
static TARGET uint8_t NAME(histogram)(uint8_t *exponents, size_t count, uint64_t *out) {
    const size_t padded = (count + LANES - 1) / LANES * LANES;
    memset(exponents + count, 0, padded - count);
    uint8_t top = 0;
    for (size_t i = 0; i < padded; i++) top = exponents[i] > top ? exponents[i] : top;
    NAME(remaining)(exponents, padded, padded, top, out);
    out[0] -= padded - count;
    return top;
}
