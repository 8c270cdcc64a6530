/* The sixteen highest exponents of a block at once, with AVX-512.
 *
 * A table turns the distance from the highest exponent into one bit of a byte, so a vector of 64 bytes holds 64
 * marks in eight columns. Columns are counted by adding vectors bit by bit, as on paper: three vectors make a sum
 * and a carry, carries are added among themselves, and only at the end the bits of each place are counted.
 */

#define TARGET512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,popcnt")))

enum { PLACES = 8 }; /* of a binary count up to BLOCK / 64 = 64 */

/* Adds three vectors bit by bit: `*sum` keeps the sum, the carry is returned. */
static inline __attribute__((always_inline)) TARGET512 __m512i add_bits(__m512i *sum, __m512i a, __m512i b) {
    const __m512i carry = _mm512_ternarylogic_epi64(*sum, a, b, 0xe8);
    *sum = _mm512_ternarylogic_epi64(*sum, a, b, 0x96);
    return carry;
}

static inline __attribute__((always_inline)) TARGET512 void add_marks(__m512i *places, const __m512i *marks) {
    const __m512i two = add_bits(&places[1], add_bits(&places[0], marks[0], marks[1]),
                                 add_bits(&places[0], marks[2], marks[3]));
    const __m512i other = add_bits(&places[1], add_bits(&places[0], marks[4], marks[5]),
                                   add_bits(&places[0], marks[6], marks[7]));
    __m512i carry = add_bits(&places[2], two, other);
    for (int p = 3; p < PLACES; p++) {
        const __m512i next = _mm512_and_si512(places[p], carry);
        places[p] = _mm512_xor_si512(places[p], carry);
        carry = next;
    }
}

/* Counts the exponents top … top − 15 of count bytes (a multiple of 512, at most BLOCK). */
static TARGET512 void leading_exponents(const uint8_t *exponents, size_t count, uint8_t top, uint32_t *found) {
    /* Index 0x70 + distance: beyond fifteen its highest bit is set, and a shuffle then gives no mark. */
    const __m512i near = _mm512_set_epi64(0, 0x8040201008040201, 0, 0x8040201008040201, 0, 0x8040201008040201, 0,
                                          0x8040201008040201);
    const __m512i far = _mm512_bslli_epi128(near, 8), highest = _mm512_set1_epi8((char)top);
    __m512i places[2][PLACES];
    for (int p = 0; p < PLACES; p++) places[0][p] = places[1][p] = _mm512_setzero_si512();
    for (size_t i = 0; i < count; i += 512) {
        __m512i marks[2][8];
        for (int v = 0; v < 8; v++) {
            const __m512i here = _mm512_load_si512(exponents + i + 64 * v);
            const __m512i distance = _mm512_adds_epu8(_mm512_sub_epi8(highest, here), _mm512_set1_epi8(0x70));
            marks[0][v] = _mm512_shuffle_epi8(near, distance);
            marks[1][v] = _mm512_shuffle_epi8(far, distance);
        }
        add_marks(places[0], marks[0]);
        add_marks(places[1], marks[1]);
    }
    for (int half = 0; half < 2; half++)
        for (int bit = 0; bit < 8; bit++) {
            const __m512i column = _mm512_set1_epi8((char)(1 << bit));
            uint32_t total = 0;
            for (int p = 0; p < PLACES - 1; p++)
                total += (uint32_t)__builtin_popcountll(_mm512_test_epi8_mask(places[half][p], column)) << p;
            found[8 * half + bit] = total;
        }
}

static TARGET512 uint8_t histogram_avx512(uint8_t *exponents, size_t count, uint64_t *out) {
    if (count < BLOCK || count % 512) return histogram_avx2(exponents, count, out);
    __m512i most = _mm512_setzero_si512();
    for (size_t i = 0; i < count; i += 64) most = _mm512_max_epu8(most, _mm512_load_si512(exponents + i));
    uint8_t lanes[64], top = 0;
    _mm512_storeu_si512(lanes, most);
    for (int j = 0; j < 64; j++) top = lanes[j] > top ? lanes[j] : top;
    uint32_t found[16];
    leading_exponents(exponents, count, top, found);
    size_t left = count;
    for (int k = 0; k < 16 && k <= top; k++) {
        out[top - k] += found[k];
        left -= found[k];
    }
    if (left > 0) remaining_avx2(exponents, count, left, top - 16, out);
    return top;
}
