/* Central moments that merge without loss: count, mean and sums of powers of (x − mean). */

struct sums {
    double first, second, third, fourth, absolute, minimum, maximum;
};

struct central {
    double count, mean, second, third, fourth;
};

/* From powers of (x − pivot). Safe while |mean − pivot| is not much larger than the spread. */
static struct central central_of(const struct sums *sums, double count, double pivot) {
    const double shift = sums->first / count, square = shift * shift;
    return (struct central){
        count,
        pivot + shift,
        fmax(sums->second - count * square, 0.0),
        sums->third - 3.0 * shift * sums->second + 2.0 * count * square * shift,
        sums->fourth - 4.0 * shift * sums->third + 6.0 * square * sums->second - 3.0 * count * square * square,
    };
}

/* Is the offset from the pivot so large against the spread that float64 would lose the fourth power? */
static int pivot_is_far(const struct sums *sums, double count) {
    const double shift = sums->first / count, variance = sums->second / count - shift * shift;
    return shift * shift > 900.0 * variance;
}

static void merge_central(struct central *into, const struct central *part) {
    if (part->count == 0) return;
    if (into->count == 0) {
        *into = *part;
        return;
    }
    const double a = into->count, b = part->count, n = a + b, delta = part->mean - into->mean, step = delta / n;
    const double step2 = step * step;
    into->fourth += part->fourth + delta * step * step2 * a * b * (a * a - a * b + b * b) +
                    6.0 * step2 * (a * a * part->second + b * b * into->second) +
                    4.0 * step * (a * part->third - b * into->third);
    into->third += part->third + delta * step2 * a * b * (a - b) +
                   3.0 * step * (a * part->second - b * into->second);
    into->second += part->second + delta * step * a * b;
    into->mean += step * b;
    into->count = n;
}
