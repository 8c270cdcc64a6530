/* A list of tensors that is read at every step, where they lie. What stays the same between steps is kept here, so that
 * a look at all of them is one call.
 *
 * A reading is one object of bytes: where each tensor lies, its version, its fingerprint and which object it is (four
 * arrays, the mark by which a later change is noticed), then moments, exponents and sketches, as far as wanted. */

enum { MARKS = 4, MOST_KEPT = 8 << 20, MOST_READINGS = 512 };

struct plain {
    PyObject_HEAD
    PyObject *references, *types, *strided;
    int gradients;
    int device; /* negative: on the processor; else its number, and only a mark can be taken, without fingerprints */
    size_t n, elements;
    int64_t *counts, *offsets; /* offsets: n + 1 */
    uint8_t *formats;
    PyObject **kept; /* memory of earlier readings, the oldest first from `oldest` on */
    size_t kept_count, oldest;
};

static void plain_free(PyObject *object) {
    struct plain *self = (struct plain *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(self->references);
    Py_XDECREF(self->types);
    Py_XDECREF(self->strided);
    free(self->counts); /* one piece of memory for all three */
    for (size_t i = 0; i < self->kept_count; i++) Py_DECREF(self->kept[i]);
    free(self->kept);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* (weak references to tensors, dtypes, torch.strided, of_gradients, counts, formats, offsets, device = -1) */
static PyObject *plain_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *references, *types, *strided;
    int gradients, device = -1;
    Py_buffer counts, formats, offsets;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "O!O!Opy*y*y*|i", &PyList_Type, &references, &PyList_Type, &types, &strided,
                          &gradients, &counts, &formats, &offsets, &device))
        return NULL;
    const size_t n = (size_t)formats.len;
    struct plain *self = NULL;
    int fits = (size_t)PyList_Size(references) == n && (size_t)PyList_Size(types) == n && (size_t)counts.len == n * 8 &&
               (size_t)offsets.len == (n + 1) * 8 && ((const int64_t *)offsets.buf)[0] == 0;
    for (size_t t = 0; fits && t < n; t++) {
        const int64_t count = ((const int64_t *)counts.buf)[t], *at = (const int64_t *)offsets.buf + t;
        fits = count >= 0 && at[1] - at[0] == (count < BUCKETS ? count : BUCKETS) &&
               ((const uint8_t *)formats.buf)[t] <= FLOAT64;
    }
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "ReferredTensors: one type, count, format and place of a sketch per tensor");
    else if ((self = (struct plain *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0))) {
        self->references = Py_NewRef(references);
        self->types = Py_NewRef(types);
        self->strided = Py_NewRef(strided);
        self->gradients = gradients;
        self->device = device;
        self->n = n;
        if ((self->counts = malloc((2 * n + 1) * 8 + n))) {
            self->offsets = self->counts + n;
            self->formats = (uint8_t *)(self->offsets + n + 1);
            memcpy(self->counts, counts.buf, n * 8);
            memcpy(self->offsets, offsets.buf, (n + 1) * 8);
            memcpy(self->formats, formats.buf, n);
            for (size_t t = 0; t < n; t++) self->elements += (size_t)self->counts[t];
        } else {
            PyErr_NoMemory();
            Py_CLEAR(self);
        }
    }
    PyBuffer_Release(&counts);
    PyBuffer_Release(&formats);
    PyBuffer_Release(&offsets);
    return (PyObject *)self;
}

/* The tensor in question, as a new reference; NULL, without an error, when there is none. */
static PyObject *plain_tensor(const struct plain *self, size_t t) {
    PyObject *parameter = referred(self->references, (Py_ssize_t)t);
    if (!parameter || !self->gradients) return parameter;
    PyObject *gradient = PyObject_GetAttr(parameter, names.grad);
    Py_DECREF(parameter);
    if (gradient == Py_None) Py_CLEAR(gradient);
    PyErr_Clear();
    return gradient;
}

/* Address and version of a tensor that was found in its place; 0 when it cannot be read there. */
static int plain_describe(const struct plain *self, size_t t, PyObject *tensor, uint64_t *address, uint64_t *version) {
    PyObject *type = PyList_GetItem(self->types, (Py_ssize_t)t);
    return tensor && type &&
           describe(tensor, type, self->strided, self->device, self->counts[t], self->formats[t], address, version);
}

static double plain_fingerprint(const struct plain *self, size_t t, uint64_t address) {
    if (self->device >= 0) return 0.0;
    return fingerprint_of((const void *)(uintptr_t)address, (size_t)self->counts[t], self->formats[t]);
}

/* Returns 0 when any tensor is not plain memory of the expected type and size where expected, or is not there. The
 * tensors go into the list `held` if there is one: another thread may let go of them while they are read. */
static int plain_fill_mark(const struct plain *self, uint64_t *mark, PyObject *held) {
    uint64_t *address = mark, *version = mark + self->n, *identity = mark + 3 * self->n;
    double *fingerprint = (double *)(mark + 2 * self->n);
    for (size_t t = 0; t < self->n; t++) {
        PyObject *tensor = plain_tensor(self, t);
        identity[t] = (uint64_t)(uintptr_t)tensor;
        const int is_plain = plain_describe(self, t, tensor, &address[t], &version[t]);
        if (is_plain) fingerprint[t] = plain_fingerprint(self, t, address[t]);
        if (held && tensor) PyList_SetItem(held, (Py_ssize_t)t, Py_NewRef(tensor));
        Py_XDECREF(tensor);
        if (!is_plain) {
            PyErr_Clear(); /* a tensor that cannot even be asked is not plain */
            return 0;
        }
    }
    return 1;
}

static PyObject *plain_mark(PyObject *object, PyObject *nothing) {
    const struct plain *self = (struct plain *)object;
    PyObject *answer = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(self->n * MARKS * 8));
    (void)nothing;
    if (answer && !plain_fill_mark(self, (uint64_t *)PyBytes_AsString(answer), NULL)) {
        Py_DECREF(answer);
        return Py_NewRef(Py_None);
    }
    return answer;
}

/* Whether the tensors are where and as they were when a mark was taken. Of an object that is the same as then, in the
 * same place, the rest is not asked again. */
static PyObject *plain_unchanged(PyObject *object, PyObject *before) {
    const struct plain *self = (struct plain *)object;
    const size_t n = self->n;
    if (!PyBytes_Check(before) || (size_t)PyBytes_Size(before) < n * MARKS * 8) {
        PyErr_SetString(PyExc_ValueError, "is_unchanged: this is no mark of these tensors");
        return NULL;
    }
    const uint64_t *mark = (const uint64_t *)PyBytes_AsString(before);
    int same = 1;
    for (size_t t = 0; same && t < n; t++) {
        PyObject *tensor = plain_tensor(self, t);
        uint64_t address = 0, version = 0;
        if (tensor && (uint64_t)(uintptr_t)tensor == mark[3 * n + t]) {
            address = address_of(tensor, (uint64_t)self->counts[t], self->formats[t]);
            version = number_of(PyObject_GetAttr(tensor, names.version));
        } else {
            same = plain_describe(self, t, tensor, &address, &version);
        }
        same = same && !PyErr_Occurred() && address == mark[t] && version == mark[n + t];
        if (same) {
            const double fingerprint = plain_fingerprint(self, t, address);
            same = memcmp(&fingerprint, mark + 2 * n + t, sizeof fingerprint) == 0;
        }
        Py_XDECREF(tensor);
    }
    PyErr_Clear();
    return PyBool_FromLong(same);
}

/* Bytes for a reading. New memory has to be asked of the system and comes a page at a time, which takes as long as the
 * reading itself: so that of a full reading is used again once nobody but this list holds it. */
static PyObject *plain_memory(struct plain *self, int want, size_t size) {
    PyObject *oldest = want == WANT_ALL && self->kept_count ? self->kept[self->oldest] : NULL;
    if (oldest && Py_REFCNT(oldest) == 1) {
        self->oldest = (self->oldest + 1) % self->kept_count;
        return Py_NewRef(oldest);
    }
    PyObject *fresh = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    const int is_full = self->kept_count == MOST_READINGS || (self->kept_count + 1) * size > MOST_KEPT;
    if (!fresh || want != WANT_ALL || is_full) return fresh;
    if (!self->kept && !(self->kept = malloc(MOST_READINGS * sizeof *self->kept))) return fresh;
    memmove(self->kept + self->oldest + 1, self->kept + self->oldest,
            (self->kept_count++ - self->oldest) * sizeof *self->kept);
    self->kept[self->oldest] = Py_NewRef(fresh);
    self->oldest = (self->oldest + 1) % self->kept_count;
    return fresh;
}

/* (want, threads) → bytes, or None when any tensor is not plain. */
static PyObject *plain_read(PyObject *object, PyObject *arguments) {
    struct plain *self = (struct plain *)object;
    const size_t n = self->n;
    int want, threads;
    if (!PyArg_ParseTuple(arguments, "ii", &want, &threads)) return NULL;
    if (self->device >= 0) return Py_NewRef(Py_None);
    const size_t moments = want & WANT_MOMENTS ? n * MOMENTS : 0, exponents = want & WANT_EXPONENTS ? n * EXPONENTS : 0;
    const size_t sketches = want & WANT_SKETCH ? (size_t)self->offsets[n] : 0;
    PyObject *answer = plain_memory(self, want, (n * MARKS + moments + exponents + sketches) * 8);
    if (!answer) return NULL;
    uint64_t *mark = (uint64_t *)PyBytes_AsString(answer);
    PyObject *held = self->elements < WORTH_THE_LOCK ? NULL : PyList_New((Py_ssize_t)n);
    PyErr_Clear(); /* without a list the lock is kept */
    if (!plain_fill_mark(self, mark, held)) {
        Py_XDECREF(held);
        Py_DECREF(answer);
        return Py_NewRef(Py_None);
    }
    double *values = (double *)(mark + n * MARKS);
    const struct request request = {
        n, mark, self->counts, self->formats, want, threads, values, (int64_t *)(values + moments),
        values + moments + exponents, self->offsets,
    };
    int done;
    if (!held) {
        done = measure_all(&request);
    } else {
        Py_BEGIN_ALLOW_THREADS
        done = measure_all(&request);
        Py_END_ALLOW_THREADS
    }
    Py_XDECREF(held);
    if (done) return answer;
    Py_DECREF(answer);
    return PyErr_NoMemory();
}

/* None when any tensor is not plain. Exponents tell: one that is all ones is of NaN or an infinity. */
static PyObject *plain_any_nonfinite(PyObject *object, PyObject *nothing) {
    const struct plain *self = (struct plain *)object;
    int bad = 0;
    (void)nothing;
    if (self->device >= 0) return Py_NewRef(Py_None);
    for (size_t t = 0; t < self->n && !bad; t++) {
        PyObject *tensor = plain_tensor(self, t);
        uint64_t address, version;
        const int is_plain = plain_describe(self, t, tensor, &address, &version);
        if (is_plain) bad = any_nonfinite((const void *)(uintptr_t)address, (size_t)self->counts[t], self->formats[t]);
        Py_XDECREF(tensor);
        if (!is_plain) {
            PyErr_Clear();
            return Py_NewRef(Py_None);
        }
    }
    return PyBool_FromLong(bad);
}

/* (tensor, its dtype, torch.strided, format, threads) → the moments of a tensor that comes alone, as a bytearray; None
 * when it is not plain. */
static PyObject *python_moments(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    (void)module;
    if (given != 5) return PyErr_Format(PyExc_TypeError, "moments: five arguments");
    PyObject *tensor = arguments[0];
    const int format = (int)PyLong_AsLong(arguments[3]), threads = (int)PyLong_AsLong(arguments[4]);
    if (PyErr_Occurred()) return NULL;
    if (format < FLOAT32 || format > FLOAT64) return PyErr_Format(PyExc_ValueError, "moments: no such format");
    const int64_t count = (int64_t)number_of(PyObject_CallMethodObjArgs(tensor, names.numel, NULL));
    uint64_t address = 0, version;
    if (PyErr_Occurred() || says_yes(tensor, names.is_neg) ||
        !describe(tensor, arguments[1], arguments[2], -1, count, format, &address, &version)) {
        PyErr_Clear();
        return Py_NewRef(Py_None);
    }
    PyObject *answer = PyByteArray_FromStringAndSize(NULL, MOMENTS * sizeof(double));
    if (!answer) return NULL;
    const int64_t offsets[2] = {0, 0};
    const uint8_t formats[1] = {(uint8_t)format};
    double *moments = (double *)PyByteArray_AsString(answer);
    const struct request request = {1, &address, &count, formats, WANT_MOMENTS, threads, moments, NULL, NULL, offsets};
    int done;
    if (count < WORTH_THE_LOCK) {
        done = measure_all(&request);
    } else {
        Py_BEGIN_ALLOW_THREADS
        done = measure_all(&request);
        Py_END_ALLOW_THREADS
    }
    if (done) return answer;
    Py_DECREF(answer);
    return PyErr_NoMemory();
}

static PyMethodDef plain_methods[] = {
    {"any_nonfinite", plain_any_nonfinite, METH_NOARGS, "Whether any element is NaN or infinite; None as below."},
    {"mark", plain_mark, METH_NOARGS, "What identifies the tensors and their content; None when they are not plain."},
    {"is_unchanged", plain_unchanged, METH_O, "Whether they are as they were when a mark or a reading was taken."},
    {"read", plain_read, METH_VARARGS, "A mark and a measurement, as bytes; None when they are not plain."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot plain_slots[] = {
    {Py_tp_new, plain_new}, {Py_tp_dealloc, plain_free}, {Py_tp_methods, plain_methods}, {0, NULL},
};

static PyType_Spec plain_spec = {
    "undertow.measure.kernels._native.ReferredTensors", sizeof(struct plain), 0, Py_TPFLAGS_DEFAULT, plain_slots,
};
