/* Many readings of one list of tensors, each an object of bytes as _native_plain.h makes them, with everything in it:
 * what a batch of frames says, in one call for all and without the interpreter's lock. */

struct packed {
    size_t readings, n, width; /* n tensors; width: numbers in all sketches of a reading */
    const char **at;
};

static size_t packed_size(size_t n, size_t width) { return 8 * (n * (MARKS + MOMENTS + EXPONENTS) + width); }

static const double *packed_moments(const struct packed *of, size_t reading) {
    return (const double *)(of->at[reading] + 8 * MARKS * of->n);
}

static const int64_t *packed_exponents(const struct packed *of, size_t reading) {
    return (const int64_t *)(of->at[reading] + 8 * (MARKS + MOMENTS) * of->n);
}

static const double *packed_sketches(const struct packed *of, size_t reading) {
    return (const double *)(of->at[reading] + 8 * (MARKS + MOMENTS + EXPONENTS) * of->n);
}

/* Returns 0, with an error set, unless the list holds readings of this size only. Free `at` in any case. */
static int packed_find(PyObject *list, size_t n, size_t width, struct packed *of) {
    of->readings = (size_t)PyList_Size(list);
    of->n = n;
    of->width = width;
    of->at = malloc((of->readings ? of->readings : 1) * sizeof *of->at);
    if (!of->at) {
        PyErr_NoMemory();
        return 0;
    }
    for (size_t i = 0; i < of->readings; i++) {
        PyObject *data = PyList_GetItem(list, (Py_ssize_t)i);
        if (!data || !PyBytes_Check(data) || (size_t)PyBytes_Size(data) != packed_size(n, width)) {
            PyErr_SetString(PyExc_ValueError, "packed readings: not all are of these tensors");
            return 0;
        }
        of->at[i] = PyBytes_AsString(data);
    }
    return 1;
}

/* (readings, number of tensors, numbers in their sketches, out: readings × statistics × tensors) */
static PyObject *python_packed_statistics(PyObject *self, PyObject *arguments) {
    PyObject *list, *answer = NULL;
    Py_ssize_t n, width;
    Py_buffer out;
    struct packed of = {0};
    (void)self;
    if (!PyArg_ParseTuple(arguments, "O!nnw*", &PyList_Type, &list, &n, &width, &out)) return NULL;
    if (n >= 0 && width >= 0 && packed_find(list, (size_t)n, (size_t)width, &of)) {
        const size_t each = STATISTICS * of.n;
        if ((size_t)out.len == of.readings * each * 8) {
            Py_BEGIN_ALLOW_THREADS
            for (size_t i = 0; i < of.readings; i++)
                statistics_of_all(packed_moments(&of, i), packed_exponents(&of, i), of.n, (double *)out.buf + i * each);
            Py_END_ALLOW_THREADS
            answer = Py_NewRef(Py_None);
        } else {
            PyErr_SetString(PyExc_ValueError, "packed_statistics: the array has the wrong length for these readings");
        }
    } else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "packed_statistics: a number is below zero");
    }
    free(of.at);
    PyBuffer_Release(&out);
    return answer;
}

/* (gradients, weights, offsets, sums, changes, gradient before, weight before, change before, start): readings that
 * follow one another; sums are readings × directions × tensors, changes the last two, in turn. */
static PyObject *python_packed_directions(PyObject *self, PyObject *arguments) {
    enum { OFFSETS, SUMS, CHANGES, SKETCHES, ALL = SKETCHES + 4, DIRECTIONS = 8 };
    PyObject *lists[2], *answer = NULL;
    Py_buffer b[ALL];
    struct packed gradients = {0}, weights = {0};
    (void)self;
    if (!PyArg_ParseTuple(arguments, "O!O!y*w*w*y*y*y*y*", &PyList_Type, &lists[0], &PyList_Type, &lists[1], &b[0], &b[1],
                          &b[2], &b[3], &b[4], &b[5], &b[6]))
        return NULL;
    const int64_t *offsets = b[OFFSETS].buf;
    const size_t n = (size_t)b[OFFSETS].len / 8 - 1;
    int fits = b[OFFSETS].len >= 8 && offsets[0] == 0;
    for (size_t t = 0; fits && t < n; t++) fits = offsets[t] <= offsets[t + 1];
    const size_t width = fits ? (size_t)offsets[n] : 0;
    for (int i = SKETCHES; fits && i < ALL; i++) fits = (size_t)b[i].len == width * 8;
    fits = fits && (size_t)b[CHANGES].len == 2 * width * 8;
    if (fits && packed_find(lists[0], n, width, &gradients) && packed_find(lists[1], n, width, &weights)) {
        fits = gradients.readings == weights.readings && (size_t)b[SUMS].len == gradients.readings * DIRECTIONS * n * 8;
        if (fits) {
            Py_BEGIN_ALLOW_THREADS
            struct frame_sketches of = {NULL, b[3].buf, NULL, b[4].buf, b[5].buf, b[6].buf, NULL};
            for (size_t i = 0; i < gradients.readings; i++) {
                of.gradient = packed_sketches(&gradients, i);
                of.weight = packed_sketches(&weights, i);
                of.change = (double *)b[CHANGES].buf + (i % 2) * width;
                direction_sums(&of, offsets, n, (double *)b[SUMS].buf + i * DIRECTIONS * n);
                of.gradient_before = of.gradient;
                of.weight_before = of.weight;
                of.change_before = of.change;
            }
            Py_END_ALLOW_THREADS
            answer = Py_NewRef(Py_None);
        }
    }
    if (!answer && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "packed_directions: an array has the wrong length for these readings");
    free(gradients.at);
    free(weights.at);
    for (int i = 0; i < ALL; i++) PyBuffer_Release(&b[i]);
    return answer;
}
