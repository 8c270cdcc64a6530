/* One pass over many tensors on the CPU: moments, histogram of exponents and sketch.
 *
 * The caller (native.py) hands over addresses, lengths and formats of contiguous tensors and the arrays to fill.
 * A tensor is cut into tasks by size alone, and the results of tasks are merged in order, so the answer does not
 * depend on the number of threads. The interpreter lock is released for the whole pass, unless that takes less time
 * than getting the lock back from another thread.
 */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1024, ROWS = 4, BLOCK = ROWS * BUCKETS, TASK = 64 * BLOCK, EXPONENTS = 256, MOMENTS = 14 };
enum { MOST_THREADS = 64, WORTH_A_THREAD = 1 << 19, WORTH_THE_LOCK = 1 << 16 };
enum { TOGETHER = 4, WIDEST = 40 }; /* exponents counted at once; exponents counted that way at all */
enum { WANT_MOMENTS = 1, WANT_EXPONENTS = 2, WANT_SKETCH = 4, WANT_ALL = 7 };
enum format { FLOAT32, BFLOAT16, FLOAT16, FLOAT64 };

#include "_native_moments.h"

struct result {
    struct central central;
    double absolute, square, minimum, maximum;
    uint64_t nan, positive_infinity, negative_infinity, zeros;
    uint64_t exponents[EXPONENTS];
};

struct passes {
    size_t width;
    void (*sweep)(const float *, size_t, size_t, struct sums *, const uint32_t *, double *);
    void (*centred)(const float *, size_t, double, struct sums *);
    size_t (*zeros)(const float *, size_t);
    int (*all_finite)(const float *, size_t);
    void (*exponents)(const float *, size_t, uint8_t *);
    uint8_t (*histogram)(uint8_t *, size_t, uint64_t *);
};

#include "_native_formats.h"

/* flips[bits] has the sign bit of lane j set where bit j is. */
static uint64_t flips[16][4] __attribute__((aligned(32)));

/* ---- the passes, once per instruction set ---- */

#if defined(__x86_64__)
#include <immintrin.h>

#define NAME(x) x##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define WIDTH 8
#define LOWER(a, b) ((floats_avx2)_mm256_min_ps((__m256)(a), (__m256)(b)))
#define HIGHER(a, b) ((floats_avx2)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define WIDEN(at) ((doubles_avx2)_mm256_cvtps_pd(_mm_loadu_ps(at)))
#define FLIP(a, bits) ((doubles_avx2)((longs_avx2)(a) ^ *(const longs_avx2 *)flips[(bits) & 15]))
#define LANES 32
#define HISTOGRAM exponents_avx2, histogram_avx2
#include "_native_histogram.h"
#include "_native_pass.h"
#undef NAME
#undef TARGET
#undef WIDTH
#undef LOWER
#undef HIGHER
#undef WIDEN
#undef FLIP

#define NAME(x) x##_avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define WIDTH 16
#define LOWER(a, b) ((floats_avx512)_mm512_min_ps((__m512)(a), (__m512)(b)))
#define HIGHER(a, b) ((floats_avx512)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define WIDEN(at) ((doubles_avx512)_mm512_cvtps_pd(_mm256_loadu_ps(at)))
#define FLIP(a, bits) \
    ((doubles_avx512)_mm512_mask_xor_pd((__m512d)(a), (__mmask8)(bits), (__m512d)(a), _mm512_set1_pd(-0.0)))
#undef HISTOGRAM
#define HISTOGRAM exponents_avx2, histogram_avx512
#include "_native_histogram512.h"
#include "_native_pass.h"
#undef NAME
#undef TARGET
#undef WIDTH
#undef LOWER
#undef HIGHER
#undef WIDEN
#undef FLIP
#undef HISTOGRAM
#undef LANES
#endif

#define NAME(x) x##_generic
#define TARGET
#define WIDTH 4
#define BLEND(where, a, b) \
    ((floats_generic)(((words_generic)(where) & (words_generic)(a)) | (~(words_generic)(where) & (words_generic)(b))))
#define LOWER(a, b) BLEND((a) < (b), a, b)
#define HIGHER(a, b) BLEND((a) > (b), a, b)
#define WIDEN(at) __builtin_convertvector(*(const half_floats_generic *)(at), doubles_generic)
#define FLIP(a, bits) ((doubles_generic)((longs_generic)(a) ^ *(const longs_generic *)flips[(bits) & 3]))
#define LANES 16
#define HISTOGRAM exponents_generic, histogram_generic
#include "_native_histogram.h"
#include "_native_pass.h"

static const struct passes *passes = &passes_generic;

static const char *choose_passes(const char *forced) {
    const char *chosen = "generic";
    for (int bits = 0; bits < 16; bits++)
        for (int j = 0; j < 4; j++) flips[bits][j] = (uint64_t)(bits >> j & 1) << 63;
    passes = &passes_generic;
#if defined(__x86_64__)
    const int any = forced[0] == 0;
    __builtin_cpu_init();
    const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512 && (any || strcmp(forced, "avx512") == 0)) {
        passes = &passes_avx512;
        chosen = "avx512";
    } else if (avx2 && (any || strcmp(forced, "avx2") == 0)) {
        passes = &passes_avx2;
        chosen = "avx2";
    }
#else
    (void)forced;
#endif
    return chosen;
}

/* ---- one block ---- */

/* A well-mixed word for every 32 elements; its bits are the signs. */
static uint32_t sign_word(uint32_t index) {
    uint32_t x = index + 0x9e3779b9u;
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

static void add_element(struct sums *sums, double x) {
    const double square = x * x;
    sums->first += x;
    sums->second += square;
    sums->third += square * x;
    sums->fourth += square * square;
    sums->absolute += fabs(x);
    if (x < sums->minimum) sums->minimum = x;
    if (x > sums->maximum) sums->maximum = x;
}

static const struct sums no_sums = {0, 0, 0, 0, 0, INFINITY, -INFINITY};

/* sums or buckets may be NULL: then that half is left out. */
static void sweep_float(const float *x, size_t count, struct sums *sums, const uint32_t *signs, double *buckets) {
    const size_t rows = count / BUCKETS, rest = count % BUCKETS, whole = rest - rest % passes->width;
    if (sums) *sums = no_sums;
    if (rows) passes->sweep(x, rows, BUCKETS, sums, signs, buckets);
    x += rows * BUCKETS;
    signs += rows * (BUCKETS / 32);
    if (whole) passes->sweep(x, 1, whole, sums, signs, buckets);
    for (size_t i = whole; i < rest; i++) {
        if (sums) add_element(sums, x[i]);
        if (buckets) buckets[i] += signs[i / 32] >> (i % 32) & 1 ? -(double)x[i] : (double)x[i];
    }
}

/* Eight sums side by side, so that one addition need not wait for the one before. */
static void sums_double(const double *x, size_t count, struct sums *sums) {
    enum { SIDE = 8 };
    const size_t whole = count - count % SIDE;
    struct sums lanes[SIDE];
    for (int j = 0; j < SIDE; j++) lanes[j] = no_sums;
    for (size_t i = 0; i < whole; i += SIDE)
        for (int j = 0; j < SIDE; j++) add_element(&lanes[j], x[i + (size_t)j]);
    for (size_t i = whole; i < count; i++) add_element(&lanes[0], x[i]);
    *sums = no_sums;
    for (int j = 0; j < SIDE; j++) {
        sums->first += lanes[j].first;
        sums->second += lanes[j].second;
        sums->third += lanes[j].third;
        sums->fourth += lanes[j].fourth;
        sums->absolute += lanes[j].absolute;
        sums->minimum = fmin(sums->minimum, lanes[j].minimum);
        sums->maximum = fmax(sums->maximum, lanes[j].maximum);
    }
}

static void sweep_double(const double *x, size_t count, struct sums *sums, const uint32_t *signs, double *buckets) {
    if (sums) sums_double(x, count, sums);
    if (!buckets) return;
    for (size_t i = 0; i < count; i++) {
        union { double value; uint64_t bits; } number = {x[i]};
        number.bits ^= (uint64_t)(signs[i / 32] >> (i % 32) & 1) << 63;
        buckets[i % BUCKETS] += number.value;
    }
}

static void centred_float(const float *x, size_t count, double pivot, struct sums *sums) {
    const size_t whole = count - count % passes->width;
    *sums = no_sums;
    if (whole) passes->centred(x, whole, pivot, sums);
    for (size_t i = whole; i < count; i++) add_element(sums, x[i] - pivot);
}

static void centred_double(const double *x, size_t count, double pivot, struct sums *sums) {
    *sums = no_sums;
    for (size_t i = 0; i < count; i++) add_element(sums, x[i] - pivot);
}

static size_t zeros_float(const float *x, size_t count) {
    const size_t whole = count - count % passes->width;
    size_t total = passes->zeros(x, whole);
    for (size_t i = whole; i < count; i++) total += x[i] == 0.0f;
    return total;
}

static size_t zeros_double(const double *x, size_t count) {
    size_t total = 0;
    for (size_t i = 0; i < count; i++) total += x[i] == 0.0;
    return total;
}

static int all_finite_float(const float *x, size_t count) {
    const size_t whole = count - count % passes->width;
    int finite = passes->all_finite(x, whole);
    for (size_t i = whole; i < count; i++) finite &= isfinite(x[i]) != 0;
    return finite;
}

static int all_finite_double(const double *x, size_t count) {
    int finite = 1;
    for (size_t i = 0; i < count; i++) finite &= isfinite(x[i]) != 0;
    return finite;
}

static void exponents_float(const float *x, size_t count, uint8_t *out) { passes->exponents(x, count, out); }

#define ELEMENT float
#define OF(x) x##_float
#include "_native_block.h"
#undef ELEMENT
#undef OF
#define ELEMENT double
#define OF(x) x##_double
#include "_native_block.h"

/* ---- tasks and threads ---- */

struct task {
    size_t tensor, start, count;
    struct result *result;
    double *buckets;
};

struct job {
    const uint64_t *addresses;
    const uint8_t *formats;
    const struct task *tasks;
    size_t task_count;
    int want;
    atomic_size_t next;
};

static void clear_result(struct result *result, int want) {
    memset(result, 0, want & WANT_EXPONENTS ? sizeof *result : offsetof(struct result, exponents));
    result->minimum = INFINITY;
    result->maximum = -INFINITY;
}

static void run_task(const struct job *job, const struct task *task) {
    float wide[BLOCK];
    const char *base = (const char *)(uintptr_t)job->addresses[task->tensor];
    clear_result(task->result, job->want);
    if (task->buckets) memset(task->buckets, 0, (task->start + task->count < BUCKETS ? task->count : BUCKETS) * sizeof(double));
    for (size_t at = task->start, end = task->start + task->count; at < end; at += BLOCK) {
        const size_t count = end - at < BLOCK ? end - at : BLOCK;
        switch (job->formats[task->tensor]) {
        case FLOAT32:
            measure_block_float((const float *)base + at, count, at, job->want, task->result, task->buckets);
            break;
        case BFLOAT16:
            widen_brain((const uint16_t *)base + at, count, wide);
            measure_block_float(wide, count, at, job->want, task->result, task->buckets);
            break;
        case FLOAT16:
            widen_half((const uint16_t *)base + at, count, wide);
            measure_block_float(wide, count, at, job->want, task->result, task->buckets);
            break;
        case FLOAT64:
            measure_block_double((const double *)base + at, count, at, job->want, task->result, task->buckets);
            break;
        }
    }
}

/* Works in the default floating-point environment: a user's flush-to-zero would lose denormals. */
static void *work(void *argument) {
    struct job *job = argument;
    fenv_t environment;
    fegetenv(&environment);
    fesetenv(FE_DFL_ENV);
    for (size_t i; (i = atomic_fetch_add(&job->next, 1)) < job->task_count;) run_task(job, &job->tasks[i]);
    fesetenv(&environment);
    return NULL;
}

static void run_job(struct job *job, int threads) {
    pthread_t started[MOST_THREADS];
    int count = 0;
    while (count < threads - 1 && count < MOST_THREADS && pthread_create(&started[count], NULL, work, job) == 0) count++;
    work(job); /* whatever could not be started, this thread does */
    for (int i = 0; i < count; i++) pthread_join(started[i], NULL);
}

static void merge_result(struct result *into, const struct result *part, int want) {
    merge_central(&into->central, &part->central);
    into->absolute += part->absolute;
    into->square += part->square;
    into->minimum = fmin(into->minimum, part->minimum);
    into->maximum = fmax(into->maximum, part->maximum);
    into->nan += part->nan;
    into->positive_infinity += part->positive_infinity;
    into->negative_infinity += part->negative_infinity;
    into->zeros += part->zeros;
    if (want & WANT_EXPONENTS)
        for (int e = 0; e < EXPONENTS; e++) into->exponents[e] += part->exponents[e];
}

/* In the order of undertow.measure.partials.Moment. */
static void write_moments(const struct result *result, size_t count, double *out) {
    const int some = result->central.count > 0;
    const double row[MOMENTS] = {
        (double)count,
        (double)result->nan,
        (double)result->positive_infinity,
        (double)result->negative_infinity,
        (double)result->zeros,
        some ? result->minimum : NAN,
        some ? result->maximum : NAN,
        result->central.mean,
        0.0,
        result->central.second,
        result->central.third,
        result->central.fourth,
        result->absolute,
        result->square,
    };
    memcpy(out, row, sizeof row);
}

struct request {
    size_t tensors;
    const uint64_t *addresses;
    const int64_t *counts;
    const uint8_t *formats;
    int want, threads;
    double *moments;
    int64_t *exponents;
    double *sketches;
    const int64_t *offsets;
};

static size_t tasks_of(int64_t count) { return (size_t)count / TASK + ((size_t)count % TASK != 0); }

/* Returns 0 when memory is short. */
static int measure_all(const struct request *request) {
    size_t task_count = 0, extra = 0, elements = 0;
    for (size_t t = 0; t < request->tensors; t++) {
        const size_t tasks = tasks_of(request->counts[t]);
        task_count += tasks;
        extra += tasks > 1 ? tasks - 1 : 0; /* the first task of a tensor adds straight into its sketch */
        elements += (size_t)request->counts[t];
    }
    struct task *tasks = malloc((task_count + 1) * sizeof *tasks);
    struct result *results = malloc((task_count + 1) * sizeof *results);
    double *buckets = request->want & WANT_SKETCH ? malloc((extra + 1) * BUCKETS * sizeof *buckets) : NULL;
    if (tasks && results && (buckets || !(request->want & WANT_SKETCH))) {
        size_t k = 0, spare = 0;
        for (size_t t = 0; t < request->tensors; t++)
            for (size_t i = 0, all = (size_t)request->counts[t]; i * TASK < all; i++, k++) {
                double *target = NULL;
                if (request->want & WANT_SKETCH)
                    target = i == 0 ? request->sketches + request->offsets[t] : buckets + BUCKETS * spare++;
                tasks[k] = (struct task){t, i * TASK, all - i * TASK < TASK ? all - i * TASK : TASK, &results[k], target};
            }
        struct job job = {request->addresses, request->formats, tasks, task_count, request->want, 0};
        const size_t useful = elements / WORTH_A_THREAD;
        run_job(&job, (size_t)request->threads > useful ? (int)useful : request->threads);
        k = 0;
        for (size_t t = 0; t < request->tensors; t++) {
            const size_t first = k, number = tasks_of(request->counts[t]);
            struct result *whole = number ? &results[first] : &results[task_count];
            if (number == 0) clear_result(whole, request->want);
            for (k += number > 0; k < first + number; k++) {
                merge_result(whole, &results[k], request->want);
                if (request->want & WANT_SKETCH)
                    for (int b = 0; b < BUCKETS; b++) tasks[first].buckets[b] += tasks[k].buckets[b];
            }
            if (request->want & WANT_MOMENTS)
                write_moments(whole, (size_t)request->counts[t], request->moments + t * MOMENTS);
            if (request->want & WANT_EXPONENTS)
                for (int e = 0; e < EXPONENTS; e++)
                    request->exponents[t * EXPONENTS + e] = (int64_t)whole->exponents[e];
        }
    }
    const int done = tasks && results && (buckets || !(request->want & WANT_SKETCH));
    free(tasks);
    free(results);
    free(buckets);
    return done;
}

/* ---- smaller questions ---- */

/* active[u] = 1 where any element of unit u of an (outer × units × inner) array is not ±0. */
#define DEFINE_ACTIVITY(bits, type)                                                                                \
    static void activity_##bits(const type *x, size_t outer, size_t units, size_t inner, uint8_t *active) {       \
        for (size_t o = 0; o < outer; o++) {                                                                      \
            if (inner == 1) {                                                                                     \
                for (size_t u = 0; u < units; u++) active[u] |= (type)(x[u] << 1) != 0;                           \
            } else {                                                                                              \
                for (size_t u = 0; u < units; u++) {                                                              \
                    type any = 0;                                                                                 \
                    if (!active[u])                                                                               \
                        for (size_t i = 0; i < inner; i++) any |= (type)(x[u * inner + i] << 1);                  \
                    active[u] |= any != 0;                                                                        \
                }                                                                                                 \
            }                                                                                                     \
            x += units * inner;                                                                                   \
        }                                                                                                         \
    }

DEFINE_ACTIVITY(16, uint16_t)
DEFINE_ACTIVITY(32, uint32_t)
DEFINE_ACTIVITY(64, uint64_t)

/* One number from at most 32 elements spread over a tensor; 0 exactly when all of those are zero. */
static double fingerprint_of(const void *data, size_t count, int format) {
    uint64_t hash = 0x9e3779b97f4a7c15u ^ count, any = 0;
    const uint64_t sign = format == FLOAT32 ? 1u << 31 : format == FLOAT64 ? (uint64_t)1 << 63 : 1u << 15;
    const size_t stride = count > 32 ? count / 32 : 1;
    for (size_t i = 0, at = 0; i < 32 && at < count; i++, at += stride) {
        const uint64_t bits = format == FLOAT32   ? ((const uint32_t *)data)[at]
                              : format == FLOAT64 ? ((const uint64_t *)data)[at]
                                                  : ((const uint16_t *)data)[at];
        any |= bits & ~sign;
        hash = (hash ^ bits) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    return any ? (double)(hash >> 11 | 1) : 0.0;
}

#include "_native_sketches.h"
#include "_native_statistics.h"
#include "_native_shards.h"

#include "_native_module.h"
