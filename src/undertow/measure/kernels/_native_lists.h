/* Lists of tensors that are asked about at every step: what they are, where they lie, and whether they have changed.
 * Everything here goes through the attributes that Python sees, so that no header of torch is needed. */

static struct {
    PyObject *dtype, *layout, *is_cpu, *is_contiguous, *data_ptr, *version, *numel, *grad, *requires_grad;
} names;

static int make_names(void) {
    const struct {
        PyObject **name;
        const char *text;
    } all[] = {
        {&names.dtype, "dtype"},       {&names.layout, "layout"},     {&names.is_cpu, "is_cpu"},
        {&names.data_ptr, "data_ptr"}, {&names.version, "_version"},  {&names.is_contiguous, "is_contiguous"},
        {&names.numel, "numel"},       {&names.grad, "grad"},         {&names.requires_grad, "requires_grad"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!(*all[i].name = PyUnicode_InternFromString(all[i].text))) return 0;
    return 1;
}

static int attribute_is(PyObject *object, PyObject *name, PyObject *expected) {
    PyObject *value = PyObject_GetAttr(object, name);
    Py_XDECREF(value); /* only its identity counts */
    return value && value == expected;
}

static int says_yes(PyObject *object, PyObject *method) {
    PyObject *value = PyObject_CallMethodObjArgs(object, method, NULL);
    Py_XDECREF(value);
    return value == Py_True;
}

/* What a method or an attribute says, as a number; 0 with an error set when it says none. */
static uint64_t number_of(PyObject *value) {
    const uint64_t number = value ? PyLong_AsUnsignedLongLongMask(value) : 0;
    Py_XDECREF(value);
    return number;
}

/* Address and version of a plain tensor with so many elements. Returns 0 when it is none. */
static int describe(PyObject *tensor, PyObject *type, PyObject *strided, int64_t count, uint64_t *address,
                    uint64_t *version) {
    if (!attribute_is(tensor, names.dtype, type) || !attribute_is(tensor, names.layout, strided) ||
        !attribute_is(tensor, names.is_cpu, Py_True) || !says_yes(tensor, names.is_contiguous))
        return 0;
    if (number_of(PyObject_CallMethodObjArgs(tensor, names.numel, NULL)) != (uint64_t)count) return 0;
    *address = number_of(PyObject_CallMethodObjArgs(tensor, names.data_ptr, NULL));
    *version = number_of(PyObject_GetAttr(tensor, names.version));
    return !PyErr_Occurred();
}

/* Three arrays end to end, as bytes: where each tensor lies, which version it is, and its fingerprint. None when any
 * of them is not plain memory of the expected type and size on the processor, or has no gradient where those are
 * asked for. Whatever was done to a tensor, through torch or past it, the answer is then most likely another. */
static PyObject *python_mark(PyObject *self, PyObject *arguments) {
    PyObject *tensors, *types, *strided, *answer = NULL;
    Py_buffer counts, formats;
    int gradients;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOpy*y*", &tensors, &types, &strided, &gradients, &counts, &formats)) return NULL;
    const Py_ssize_t n = PyList_Size(tensors);
    if (n >= 0 && PyList_Size(types) == n && counts.len == n * 8 && formats.len == n) {
        int plain = 1;
        if ((answer = PyBytes_FromStringAndSize(NULL, n * 24))) {
            uint64_t *address = (uint64_t *)PyBytes_AsString(answer), *version = address + n;
            double *fingerprint = (double *)(version + n);
            const int64_t *count = counts.buf;
            for (Py_ssize_t i = 0; plain && i < n; i++) {
                PyObject *item = PyList_GetItem(tensors, i), *type = PyList_GetItem(types, i); /* borrowed */
                PyObject *tensor = !item || !gradients ? Py_XNewRef(item) : PyObject_GetAttr(item, names.grad);
                plain = tensor && type && tensor != Py_None &&
                        describe(tensor, type, strided, count[i], &address[i], &version[i]);
                if (plain)
                    fingerprint[i] = fingerprint_of((const void *)(uintptr_t)address[i], (size_t)count[i],
                                                    ((const uint8_t *)formats.buf)[i]);
                Py_XDECREF(tensor);
            }
        }
        if (!plain) {
            PyErr_Clear(); /* a tensor that cannot even be asked is not plain */
            Py_DECREF(answer);
            answer = Py_NewRef(Py_None);
        }
    } else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "mark: one type, count and format per tensor");
    }
    PyBuffer_Release(&counts);
    PyBuffer_Release(&formats);
    return answer;
}

/* One byte per item of a list: 1 where the attribute is neither None nor False. */
static PyObject *flags_of(PyObject *items, PyObject *name) {
    const Py_ssize_t n = PyList_Size(items);
    PyObject *answer = n < 0 ? NULL : PyBytes_FromStringAndSize(NULL, n);
    for (Py_ssize_t i = 0; answer && i < n; i++) {
        PyObject *item = PyList_GetItem(items, i), *value = item ? PyObject_GetAttr(item, name) : NULL;
        if (!value) {
            Py_DECREF(answer);
            return NULL;
        }
        PyBytes_AsString(answer)[i] = value != Py_None && value != Py_False;
        Py_DECREF(value);
    }
    return answer;
}

static PyObject *python_have_gradient(PyObject *self, PyObject *tensors) {
    (void)self;
    return flags_of(tensors, names.grad);
}

static PyObject *python_are_trainable(PyObject *self, PyObject *tensors) {
    (void)self;
    return flags_of(tensors, names.requires_grad);
}
