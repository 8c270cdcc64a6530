/* What Python sees. native.py checks the arguments; the lengths are checked here once more, because a mistake
 * would write outside an array. */

#include "_native_lists.h"
#include "_native_plain.h"
#include "_native_packed.h"

static PyObject *python_measure(PyObject *self, PyObject *arguments) {
    Py_buffer addresses, counts, formats, moments, exponents, sketches, offsets;
    struct request request;
    PyObject *answer = NULL;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "y*y*y*iiw*w*w*y*", &addresses, &counts, &formats, &request.want, &request.threads,
                          &moments, &exponents, &sketches, &offsets))
        return NULL;
    const size_t n = request.tensors = (size_t)formats.len;
    request.addresses = addresses.buf;
    request.counts = counts.buf;
    request.formats = formats.buf;
    request.moments = moments.buf;
    request.exponents = exponents.buf;
    request.sketches = sketches.buf;
    request.offsets = offsets.buf;
    int fits = (size_t)addresses.len == n * 8 && (size_t)counts.len == n * 8;
    if (request.want & WANT_MOMENTS) fits &= (size_t)moments.len == n * MOMENTS * 8;
    if (request.want & WANT_EXPONENTS) fits &= (size_t)exponents.len == n * EXPONENTS * 8;
    if (request.want & WANT_SKETCH) fits &= (size_t)offsets.len == (n + 1) * 8;
    for (size_t t = 0; fits && t < n; t++) {
        fits = request.counts[t] >= 0 && request.formats[t] <= FLOAT64;
        if (fits && request.want & WANT_SKETCH) {
            const int64_t begin = request.offsets[t], width = request.counts[t] < BUCKETS ? request.counts[t] : BUCKETS;
            fits = begin >= 0 && begin + width <= (int64_t)(sketches.len / 8);
        }
    }
    if (fits) {
        int done;
        size_t elements = 0;
        for (size_t t = 0; t < n; t++) elements += (size_t)request.counts[t];
        if (elements < WORTH_THE_LOCK) {
            done = measure_all(&request);
        } else {
            Py_BEGIN_ALLOW_THREADS
            done = measure_all(&request);
            Py_END_ALLOW_THREADS
        }
        if (done)
            answer = Py_NewRef(Py_None);
        else
            PyErr_NoMemory();
    } else {
        PyErr_SetString(PyExc_ValueError, "measure: an array has the wrong length for these tensors");
    }
    Py_buffer *all[] = {&addresses, &counts, &formats, &moments, &exponents, &sketches, &offsets};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) PyBuffer_Release(all[i]);
    return answer;
}

static PyObject *python_activity(PyObject *self, PyObject *arguments) {
    unsigned long long address;
    Py_ssize_t outer, units, inner;
    int item_size;
    Py_buffer active;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "Kinnnw*", &address, &item_size, &outer, &units, &inner, &active)) return NULL;
    const void *data = (const void *)(uintptr_t)address;
    if (active.len != units || outer < 0 || inner < 0 || (item_size != 2 && item_size != 4 && item_size != 8)) {
        PyBuffer_Release(&active);
        PyErr_SetString(PyExc_ValueError, "unit_activity: sizes do not fit");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    if (item_size == 2) activity_16(data, (size_t)outer, (size_t)units, (size_t)inner, active.buf);
    if (item_size == 4) activity_32(data, (size_t)outer, (size_t)units, (size_t)inner, active.buf);
    if (item_size == 8) activity_64(data, (size_t)outer, (size_t)units, (size_t)inner, active.buf);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&active);
    return Py_NewRef(Py_None);
}

static PyObject *python_fingerprint(PyObject *self, PyObject *arguments) {
    Py_buffer addresses, counts, formats, out;
    PyObject *answer = NULL;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "y*y*y*w*", &addresses, &counts, &formats, &out)) return NULL;
    const size_t n = (size_t)formats.len;
    if ((size_t)addresses.len == n * 8 && (size_t)counts.len == n * 8 && (size_t)out.len == n * 8) {
        for (size_t t = 0; t < n; t++)
            ((double *)out.buf)[t] =
                fingerprint_of((const void *)(uintptr_t)((const uint64_t *)addresses.buf)[t],
                               (size_t)((const int64_t *)counts.buf)[t], ((const uint8_t *)formats.buf)[t]);
        answer = Py_NewRef(Py_None);
    } else {
        PyErr_SetString(PyExc_ValueError, "fingerprint: an array has the wrong length for these tensors");
    }
    Py_buffer *all[] = {&addresses, &counts, &formats, &out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) PyBuffer_Release(all[i]);
    return answer;
}

static PyObject *python_stretch_sums(PyObject *self, PyObject *arguments) {
    Py_buffer a, b, offsets, out;
    int differences;
    PyObject *answer = NULL;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "y*y*y*iw*", &a, &b, &offsets, &differences, &out)) return NULL;
    const int64_t *bounds = offsets.buf;
    const size_t tensors = (size_t)offsets.len / 8 - 1;
    int fits = offsets.len >= 8 && bounds[0] == 0;
    for (size_t t = 0; fits && t < tensors; t++) fits = bounds[t] <= bounds[t + 1];
    const size_t width = fits ? (size_t)bounds[tensors] : 0;
    const size_t rows = tensors ? (size_t)out.len / 8 / tensors : 0;
    fits = fits && (size_t)out.len == rows * tensors * 8 && (size_t)a.len == rows * width * 8 &&
           ((size_t)b.len == rows * width * 8 || (size_t)b.len == width * 8);
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        stretch_sums(a.buf, b.buf, (size_t)b.len == width * 8, bounds, rows, width, tensors, differences, out.buf);
        Py_END_ALLOW_THREADS
        answer = Py_NewRef(Py_None);
    } else {
        PyErr_SetString(PyExc_ValueError, "stretch_sums: an array has the wrong length for these sketches");
    }
    Py_buffer *all[] = {&a, &b, &offsets, &out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) PyBuffer_Release(all[i]);
    return answer;
}

static PyObject *python_statistics(PyObject *self, PyObject *arguments) {
    Py_buffer moments, exponents, out;
    PyObject *answer = NULL;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "y*z*w*", &moments, &exponents, &out)) return NULL;
    const size_t n = (size_t)moments.len / 8 / MOMENTS;
    if ((size_t)moments.len == n * MOMENTS * 8 && (size_t)out.len == n * STATISTICS * 8 &&
        (!exponents.buf || (size_t)exponents.len == n * EXPONENTS * 8)) {
        if (n < MANY_STATISTICS) {
            statistics_of_all(moments.buf, exponents.buf, n, out.buf);
        } else {
            Py_BEGIN_ALLOW_THREADS
            statistics_of_all(moments.buf, exponents.buf, n, out.buf);
            Py_END_ALLOW_THREADS
        }
        answer = Py_NewRef(Py_None);
    } else {
        PyErr_SetString(PyExc_ValueError, "statistics: an array has the wrong length for these tensors");
    }
    Py_buffer *all[] = {&moments, &exponents, &out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->obj) PyBuffer_Release(all[i]);
    return answer;
}

static PyObject *python_direction_sums(PyObject *self, PyObject *arguments) {
    enum { OFFSETS, OUT, CHANGE, SKETCHES, WEIGHT = SKETCHES + 2, ALL = SKETCHES + 6, DIRECTIONS = 8 };
    Py_buffer b[ALL];
    PyObject *answer = NULL;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "y*w*w*z*z*z*z*z*z*", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5], &b[6], &b[7], &b[8]))
        return NULL;
    const int64_t *offsets = b[OFFSETS].buf;
    const size_t tensors = (size_t)b[OFFSETS].len / 8 - 1;
    int fits = b[OFFSETS].len >= 8 && offsets[0] == 0 && (size_t)b[OUT].len == DIRECTIONS * tensors * 8;
    for (size_t t = 0; fits && t < tensors; t++) fits = offsets[t] <= offsets[t + 1];
    for (int i = SKETCHES; fits && i < ALL; i++) fits = !b[i].buf || b[i].len == offsets[tensors] * 8;
    fits = fits && (!b[WEIGHT].buf || b[CHANGE].len == offsets[tensors] * 8);
    if (fits) {
        const struct frame_sketches of = {b[3].buf, b[4].buf, b[5].buf, b[6].buf, b[7].buf, b[8].buf, b[CHANGE].buf};
        if (offsets[tensors] < WORTH_THE_LOCK) {
            direction_sums(&of, offsets, tensors, b[OUT].buf);
        } else {
            Py_BEGIN_ALLOW_THREADS
            direction_sums(&of, offsets, tensors, b[OUT].buf);
            Py_END_ALLOW_THREADS
        }
        answer = Py_NewRef(Py_None);
    } else {
        PyErr_SetString(PyExc_ValueError, "direction_sums: an array has the wrong length for these sketches");
    }
    for (int i = 0; i < ALL; i++)
        if (b[i].obj) PyBuffer_Release(&b[i]);
    return answer;
}

/* For tests: "" takes the best the processor has; "avx512", "avx2" or "generic" asks for one. */
static PyObject *python_choose(PyObject *self, PyObject *arguments) {
    const char *forced;
    (void)self;
    return PyArg_ParseTuple(arguments, "s", &forced) ? PyUnicode_FromString(choose_passes(forced)) : NULL;
}

/* All objects of a class, in one go. Python code would let other threads run while it goes through the list, which
 * refers to whatever they are just making: a tuple that anybody refers to cannot grow, and so ends in a SystemError. */
static PyObject *python_instances(PyObject *module, PyObject *kind)
{
    (void)module;
    if (!PyType_Check(kind)) return PyErr_Format(PyExc_TypeError, "%R is no class", kind);
    PyObject *collector = PyImport_ImportModule("gc"), *objects = NULL;
    PyObject *found = collector == NULL ? NULL : PyList_New(0);
    if (found != NULL) objects = PyObject_CallMethod(collector, "get_objects", NULL);
    if (objects == NULL) Py_CLEAR(found);
    for (Py_ssize_t i = 0; found != NULL && i < PyList_Size(objects); i++) {
        PyObject *one = PyList_GetItem(objects, i);
        if (PyType_IsSubtype(Py_TYPE(one), (PyTypeObject *)kind) && PyList_Append(found, one) < 0) Py_CLEAR(found);
    }
    Py_XDECREF(objects);
    Py_XDECREF(collector);
    return found;
}

static PyMethodDef methods[] = {
    {"statistics", python_statistics, METH_VARARGS, "Fill the statistics of many tensors from their partial values."},
    {"direction_sums", python_direction_sums, METH_VARARGS, "Fill the products of a frame's sketches with earlier ones."},
    {"packed_statistics", python_packed_statistics, METH_VARARGS, "Fill the statistics of many readings."},
    {"packed_directions", python_packed_directions, METH_VARARGS, "Fill the products of sketches that follow each other."},
    {"single", (PyCFunction)(void (*)(void))python_single, METH_FASTCALL, "The value of a tensor of one float32."},
    {"sample", (PyCFunction)(void (*)(void))python_sample, METH_FASTCALL, "Evenly spaced elements of a float32 tensor."},
    {"moments", (PyCFunction)(void (*)(void))python_moments, METH_FASTCALL, "The moments of one tensor where it lies."},
    {"which_have_gradient", python_have_gradient, METH_O, "Of weak references to tensors, a byte each."},
    {"which_are_trainable", python_are_trainable, METH_O, "Of weak references to tensors, a byte each."},
    {"instances", python_instances, METH_O, "All objects of a class that the collector knows."},
    {"measure", python_measure, METH_VARARGS, "Fill moments, exponents and sketches of many tensors."},
    {"unit_activity", python_activity, METH_VARARGS, "Mark the units that are not zero everywhere."},
    {"fingerprint", python_fingerprint, METH_VARARGS, "One number from a few elements of each tensor."},
    {"stretch_sums", python_stretch_sums, METH_VARARGS, "Sums of products or squared differences of sketches."},
    {"sketch_runs", python_sketch_runs, METH_VARARGS, "Sketch a block of a larger tensor by the places in the whole."},
    {"choose_instruction_set", python_choose, METH_VARARGS, "Choose and name the instruction set in use."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    choose_passes("");
    if (!make_names()) return NULL;
    PyObject *made = PyModule_Create(&module), *type = made ? PyType_FromSpec(&plain_spec) : NULL;
    if (!type || PyModule_AddObjectRef(made, "ReferredTensors", type) < 0 ||
        PyModule_AddIntConstant(made, "ON_DEVICES", 1) < 0) /* what Python knows sources by that can find those there */
        Py_CLEAR(made);
    Py_XDECREF(type);
    return made;
}
