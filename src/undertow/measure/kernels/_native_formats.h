/* Reading a block: number formats, non-finite elements, exponents. Plain C; the compiler vectorises what matters. */

/* Exact for every value, denormals included, as long as flush-to-zero is off. */
static void widen_half(const uint16_t *in, size_t count, float *out) {
    for (size_t i = 0; i < count; i++) {
        const uint32_t sign = (uint32_t)(in[i] & 0x8000u) << 16;
        union { uint32_t bits; float value; } number = {(uint32_t)(in[i] & 0x7fffu) << 13};
        const uint32_t special = number.bits >= 0x0f800000u ? 0x7f800000u : 0;
        number.value *= 0x1p112f;
        number.bits |= special | sign;
        out[i] = number.value;
    }
}

static void widen_brain(const uint16_t *in, size_t count, float *out) {
    uint32_t *bits = (uint32_t *)out;
    for (size_t i = 0; i < count; i++) bits[i] = (uint32_t)in[i] << 16;
}

/* The exponent float32 would have; finite values beyond its range count in its last finite bucket. */
static void exponents_double(const double *x, size_t count, uint8_t *out) {
    const uint64_t *bits = (const uint64_t *)x;
    for (size_t i = 0; i < count; i++) {
        const int biased = (int)(bits[i] >> 52 & 0x7ff), moved = biased - 1023 + 127;
        out[i] = (uint8_t)(biased == 0x7ff ? 255 : moved < 0 ? 0 : moved > 254 ? 254 : moved);
    }
}

/* Without a way out of the loops: they are short, and so the compiler vectorises them. */
static int any_nonfinite(const void *data, size_t count, int format) {
    uint64_t bad = 0;
    if (format == FLOAT64) {
        for (size_t i = 0; i < count; i++) bad |= (((const uint64_t *)data)[i] >> 52 & 0x7ff) == 0x7ff;
    } else if (format == FLOAT32) {
        uint32_t found = 0;
        for (size_t i = 0; i < count; i++) found |= (((const uint32_t *)data)[i] & 0x7f800000u) == 0x7f800000u;
        bad = found;
    } else {
        const uint16_t exponent = format == BFLOAT16 ? 0x7f80 : 0x7c00;
        uint16_t found = 0;
        for (size_t i = 0; i < count; i++) found |= (((const uint16_t *)data)[i] & exponent) == exponent;
        bad = found;
    }
    return bad != 0;
}
