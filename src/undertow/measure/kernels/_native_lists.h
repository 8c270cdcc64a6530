/* Lists of tensors that are asked about at every step: what they are, where they lie, and whether they have changed.
 * Everything here goes through the attributes that Python sees, so that no header of torch is needed. */

static struct {
    PyObject *dtype, *layout, *is_cpu, *is_contiguous, *data_ptr, *version, *numel, *grad, *requires_grad, *is_neg;
    PyObject *untyped_storage, *nbytes, *get_device;
} names;

static int make_names(void) {
    const struct {
        PyObject **name;
        const char *text;
    } all[] = {
        {&names.dtype, "dtype"},       {&names.layout, "layout"},     {&names.is_cpu, "is_cpu"},
        {&names.data_ptr, "data_ptr"}, {&names.version, "_version"},  {&names.is_contiguous, "is_contiguous"},
        {&names.numel, "numel"},       {&names.grad, "grad"},         {&names.requires_grad, "requires_grad"},
        {&names.is_neg, "is_neg"},     {&names.nbytes, "nbytes"},     {&names.untyped_storage, "untyped_storage"},
        {&names.get_device, "get_device"},
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

/* Where a contiguous tensor lies, in its last moment before it is read; 0 when its memory does not hold all of it any
 * more: it was given back, or made smaller. */
static uint64_t address_of(PyObject *tensor, uint64_t count, int format) {
    const uint64_t bytes = count << (format == FLOAT64 ? 3 : format == FLOAT32 ? 2 : 1);
    PyObject *storage = PyObject_CallMethodObjArgs(tensor, names.untyped_storage, NULL);
    if (!storage) return 0;
    const uint64_t held = number_of(PyObject_CallMethodObjArgs(storage, names.nbytes, NULL));
    const uint64_t begin = number_of(PyObject_CallMethodObjArgs(storage, names.data_ptr, NULL));
    Py_DECREF(storage);
    const uint64_t address = number_of(PyObject_CallMethodObjArgs(tensor, names.data_ptr, NULL));
    return begin && address >= begin && bytes <= held && address - begin <= held - bytes ? address : 0;
}

/* Whether it is on the processor, or on the device of this number if that is not negative. */
static int is_on(PyObject *tensor, int device) {
    if (device < 0) return attribute_is(tensor, names.is_cpu, Py_True);
    return number_of(PyObject_CallMethodObjArgs(tensor, names.get_device, NULL)) == (uint64_t)device && !PyErr_Occurred();
}

/* Address and version of a plain tensor with so many elements. Returns 0 when it is none. */
static int describe(PyObject *tensor, PyObject *type, PyObject *strided, int device, int64_t count, int format,
                    uint64_t *address, uint64_t *version) {
    if (!attribute_is(tensor, names.dtype, type) || !attribute_is(tensor, names.layout, strided) ||
        !is_on(tensor, device) || !says_yes(tensor, names.is_contiguous))
        return 0;
    if (number_of(PyObject_CallMethodObjArgs(tensor, names.numel, NULL)) != (uint64_t)count) return 0;
    *address = address_of(tensor, (uint64_t)count, format);
    *version = number_of(PyObject_GetAttr(tensor, names.version));
    return (*address || !count) && !PyErr_Occurred();
}

/* What a list of weak references has in one place, as a new reference; NULL, without an error, when it is gone. Tensors
 * are the user's: nothing here keeps them alive between two calls. */
static PyObject *referred(PyObject *references, Py_ssize_t i) {
    PyObject *reference = PyList_GetItem(references, i), *tensor = reference ? PyWeakref_GetObject(reference) : NULL;
    PyErr_Clear();
    return tensor && tensor != Py_None ? Py_NewRef(tensor) : NULL;
}

/* One byte per weak reference of a list: 1 where the attribute is neither None nor False, and the tensor is there. */
static PyObject *flags_of(PyObject *references, PyObject *name) {
    const Py_ssize_t n = PyList_Size(references);
    PyObject *answer = n < 0 ? NULL : PyBytes_FromStringAndSize(NULL, n);
    for (Py_ssize_t i = 0; answer && i < n; i++) {
        PyObject *tensor = referred(references, i), *value = tensor ? PyObject_GetAttr(tensor, name) : Py_NewRef(Py_None);
        Py_XDECREF(tensor);
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

/* Where a tensor of float32 lies that is neither a view of another sign nor anything but plain memory; NULL, without an
 * error, for any other. */
static const float *plain_floats(PyObject *tensor, PyObject *type, uint64_t *count) {
    const float *data = NULL;
    if (attribute_is(tensor, names.dtype, type) && attribute_is(tensor, names.is_cpu, Py_True) &&
        says_yes(tensor, names.is_contiguous) && !says_yes(tensor, names.is_neg)) {
        *count = number_of(PyObject_CallMethodObjArgs(tensor, names.numel, NULL));
        data = (const float *)(uintptr_t)address_of(tensor, *count, FLOAT32);
    }
    if (PyErr_Occurred()) data = NULL; /* what has no memory of its own says so */
    PyErr_Clear();
    return data;
}

/* (tensor, torch.float32) → the value of a single number, or None: without the many layers that `item()` goes through. */
static PyObject *python_single(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    uint64_t count = 0;
    (void)self;
    const float *data = given == 2 ? plain_floats(arguments[0], arguments[1], &count) : NULL;
    return data && count == 1 ? PyFloat_FromDouble(*data) : Py_NewRef(Py_None);
}

/* (tensor, torch.float32, wanted) → about so many evenly spaced elements as float64 in bytes, or None. */
static PyObject *python_sample(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    uint64_t count = 0;
    (void)self;
    const uint64_t wanted = given == 3 ? PyLong_AsUnsignedLongLongMask(arguments[2]) : 0;
    const float *data = wanted ? plain_floats(arguments[0], arguments[1], &count) : NULL;
    if (!data || !count) return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    const uint64_t stride = count / wanted ? count / wanted : 1, some = (count + stride - 1) / stride;
    PyObject *answer = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(some * sizeof(double)));
    if (answer)
        for (uint64_t i = 0; i < some; i++) ((double *)PyBytes_AsString(answer))[i] = data[i * stride];
    return answer;
}
