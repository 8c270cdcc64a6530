/* The sketch of a block of a larger tensor. What counts is the place of an element in the whole: shards then add up. */

static void add_one(double value, size_t place, double *buckets) {
    if (!isfinite(value)) return;
    const uint32_t bit = sign_word((uint32_t)(place / 32)) >> (place % 32) & 1;
    buckets[place % BUCKETS] += bit ? -value : value;
}

static double element_of(const char *base, size_t at, int format) {
    float wide;
    switch (format) {
    case FLOAT32: return ((const float *)base)[at];
    case FLOAT64: return ((const double *)base)[at];
    case BFLOAT16: widen_brain((const uint16_t *)base + at, 1, &wide); return wide;
    default: widen_half((const uint16_t *)base + at, 1, &wide); return wide;
    }
}

/* `count` elements from `at` on, which follow each other in the whole from `place` on. */
static void sketch_run(const char *base, size_t at, size_t count, int format, size_t place, double *buckets) {
    struct result unused;
    float wide[BLOCK];
    for (const size_t end = at + count; at < end;) {
        const size_t column = place % BUCKETS, left = end - at;
        size_t some = column ? BUCKETS - column : BLOCK; /* rows are swept from their first bucket on */
        if (some > left) some = left;
        if (place % 32) { /* signs come in words of 32 */
            const size_t before = 32 - place % 32;
            if (some > before) some = before;
            for (size_t i = 0; i < some; i++) add_one(element_of(base, at + i, format), place + i, buckets);
        } else if (format == FLOAT64) {
            measure_block_double((const double *)base + at, some, place, WANT_SKETCH, &unused, buckets + column);
        } else {
            const float *x = (const float *)base + at;
            if (format == BFLOAT16) widen_brain((const uint16_t *)base + at, some, wide);
            if (format == FLOAT16) widen_half((const uint16_t *)base + at, some, wide);
            measure_block_float(format == FLOAT32 ? x : wide, some, place, WANT_SKETCH, &unused, buckets + column);
        }
        at += some;
        place += some;
    }
}

static PyObject *python_sketch_runs(PyObject *self, PyObject *arguments) {
    unsigned long long address;
    Py_ssize_t length;
    int format;
    Py_buffer starts, out;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "Kiny*w*", &address, &format, &length, &starts, &out)) return NULL;
    const size_t runs = (size_t)starts.len / 8, width = (size_t)out.len / 8;
    const int64_t *places = starts.buf;
    int fits = format >= 0 && format <= FLOAT64 && length >= 0 && width <= BUCKETS;
    for (size_t r = 0; fits && r < runs; r++) /* a tensor with fewer elements than buckets has a bucket for each */
        fits = places[r] >= 0 && (width == BUCKETS || (size_t)places[r] + (size_t)length <= width);
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        fenv_t environment;
        fegetenv(&environment);
        fesetenv(FE_DFL_ENV);
        memset(out.buf, 0, width * sizeof(double));
        for (size_t r = 0; r < runs; r++)
            sketch_run((const char *)(uintptr_t)address, r * (size_t)length, (size_t)length, format, (size_t)places[r],
                       out.buf);
        fesetenv(&environment);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&starts);
    PyBuffer_Release(&out);
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "sketch_runs: a run does not lie inside the tensor");
        return NULL;
    }
    return Py_NewRef(Py_None);
}
