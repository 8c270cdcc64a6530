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
