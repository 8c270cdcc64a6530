"""The Triton programs: one measures a chunk of a tensor, one repairs, one merges the chunks of each tensor.

A chunk is read once, in tiles of whole rows of 1024 elements. Moments are sums of float32, of deviations from a
pivot near the mean, scaled by a power of two near their spread: both are guessed from a sample spread over the
chunk, and a chunk whose guess turns out wrong, or that holds a value that is not finite, is measured again in
float64. The sketch is always summed in float64, since differences of sketches matter. Exponents are counted in a
window of 32 powers of two around the sample's, eight to a word; what lies outside is added by a second look.

Numbers are summed in a fixed order, atomics are for counts only: the same input gives the same bits.
"""

# What follows is Triton's language rather than Python: constants are capitals, types and branches are its own.
# ruff: noqa: N803, N806, RET505, RUF059, SIM300
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from undertow.measure import signs

WORD_OFFSET = tl.constexpr(signs.WORD_OFFSET)
FIRST_FACTOR = tl.constexpr(signs.FIRST_FACTOR)
SECOND_FACTOR = tl.constexpr(signs.SECOND_FACTOR)
WINDOW = tl.constexpr(32)
INFINITY = tl.constexpr(float("inf"))
# Scaled deviations between these leave room in float32 for the fourth powers of all that matters to the sums.
SMALLEST_PEAK = tl.constexpr(2.0**-16)
LARGEST_PEAK = tl.constexpr(2.0**24)
USUAL_SPREAD = tl.constexpr(2.0**-20)  # of gradients
USUAL_EXPONENT = tl.constexpr(107)


@triton.jit(do_not_specialize=["number"])
def measure_chunks(
    addresses, tensor_of, start_of, length_of, order, moments, exponents, sketches, trusted, number,
    FORMAT: tl.constexpr, BYTES: tl.constexpr, LANES: tl.constexpr,
    MOMENTS: tl.constexpr, EXPONENTS: tl.constexpr, SKETCH: tl.constexpr,
):  # fmt: skip
    """`number` is that of all chunks; `order` names those of this format."""
    chunk, start, length, address = _find(addresses, tensor_of, start_of, length_of, order + tl.program_id(0), BYTES)
    good = address % 16 == 0
    if good:
        pivot, scale, lowest = _guess(address, length, FORMAT)
        good = _measure_fast(
            address, length, (start // 32).to(tl.uint32), pivot, scale, lowest,
            chunk, moments, exponents, sketches, number, FORMAT, LANES, MOMENTS, EXPONENTS, SKETCH,
        )  # fmt: skip
    tl.store(trusted + chunk, good.to(tl.int8))


@triton.jit(do_not_specialize=["number", "listed"])
def repair_chunks(
    addresses, tensor_of, start_of, length_of, order, moments, exponents, sketches, trusted, number, listed,
    FORMAT: tl.constexpr, BYTES: tl.constexpr, LANES: tl.constexpr,
    MOMENTS: tl.constexpr, EXPONENTS: tl.constexpr, SKETCH: tl.constexpr,
):  # fmt: skip
    """Measure in float64 what `measure_chunks` could not: seldom any of the `listed` chunks, so programs are few."""
    for at in range(tl.program_id(0), listed, tl.num_programs(0)):
        chunk, start, length, address = _find(addresses, tensor_of, start_of, length_of, order + at, BYTES)
        bad = length > 0
        if FORMAT != tl.float64:
            bad = tl.load(trusted + chunk) == 0
        if bad:
            pivot, scale, lowest = _guess(address, length, FORMAT)
            _measure_exactly(
                address, length, (start // 32).to(tl.uint32), pivot,
                chunk, moments, exponents, sketches, number, FORMAT, LANES, MOMENTS, EXPONENTS, SKETCH,
            )  # fmt: skip


@triton.jit
def _find(addresses, tensor_of, start_of, length_of, order, BYTES: tl.constexpr):
    chunk = tl.load(order).to(tl.int64)
    start = tl.load(start_of + chunk)
    return chunk, start, tl.load(length_of + chunk), tl.load(addresses + tl.load(tensor_of + chunk)) + start * BYTES


@triton.jit
def _guess(address, length, FORMAT: tl.constexpr):
    """A pivot near the mean, a scale near one over the spread and the window's first exponent, from 1024 elements."""
    step = tl.maximum(length // 1024 * 128, 128)
    place = tl.arange(0, 8)[:, None] * step + tl.arange(0, 128)[None, :]
    present = place < length
    x = _wide(tl.load(address.to(tl.pointer_type(FORMAT)) + place, mask=present, other=0))
    finite = present & (tl.abs(x) < INFINITY)
    share = 1.0 / tl.maximum(tl.sum(finite.to(tl.int32)), 1).to(tl.float64)
    pivot = tl.sum(tl.where(finite, x.to(tl.float64) * share, 0.0)).to(tl.float32)
    narrow = tl.where(finite, x.to(tl.float32), 0.0)
    spread = tl.max(tl.where(finite, tl.abs(narrow - pivot), 0.0))
    spread = tl.where(spread > 0.0, spread, tl.max(tl.abs(narrow)))
    spread = tl.where(spread > 0.0, spread, USUAL_SPREAD)  # nothing but zeros in the sample
    power = 254 - ((spread.to(tl.int32, bitcast=True) >> 23) & 255)
    scale = (tl.minimum(tl.maximum(power, 1), 253) << 23).to(tl.float32, bitcast=True)
    exponent = (narrow.to(tl.int32, bitcast=True) >> 23) & 255
    usual = tl.sum(exponent) // tl.maximum(tl.sum((exponent > 0).to(tl.int32)), 1)
    usual = tl.where(usual > 0, usual, USUAL_EXPONENT)
    return pivot, scale, tl.minimum(tl.maximum(usual - 22, 1), 223)


@triton.jit
def _measure_fast(
    address, length, word, pivot, scale, lowest, chunk, moments, exponents, sketches, number,
    FORMAT: tl.constexpr, LANES: tl.constexpr,
    MOMENTS: tl.constexpr, EXPONENTS: tl.constexpr, SKETCH: tl.constexpr,
):  # fmt: skip
    """Whether the result can be trusted; only then it is stored."""
    THREADS: tl.constexpr = 1024 // LANES  # each of them reads neighbours, 16 bytes
    pointer = tl.multiple_of(address.to(tl.pointer_type(FORMAT)), 16)
    places = tl.arange(0, THREADS)[:, None]
    offsets = places * LANES + tl.arange(0, LANES)[None, :]
    words, bits = places // (32 // LANES), offsets % 32
    one = tl.zeros((THREADS, LANES), tl.float32)
    two, three, four, total = one, one, one, one
    low, high = one + INFINITY, one - INFINITY
    zeros = tl.zeros((THREADS, LANES), tl.int32)
    histogram = tl.zeros((WINDOW,), tl.int32)
    sketch = tl.zeros((THREADS, LANES), tl.float64)
    whole = length // 4096
    TILES: tl.constexpr = 255 // (4 * LANES)  # as many as a byte can count
    for stretch in range(0, whole, TILES):
        bytes = tl.zeros((THREADS, 2, 2, 2), tl.uint32)
        for tile in range(stretch, tl.minimum(stretch + TILES, whole)):
            x0 = _wide(tl.load(pointer + tile * 4096 + offsets))
            x1 = _wide(tl.load(pointer + (tile * 4096 + 1024) + offsets))
            x2 = _wide(tl.load(pointer + (tile * 4096 + 2048) + offsets))
            x3 = _wide(tl.load(pointer + (tile * 4096 + 3072) + offsets))
            for row in tl.static_range(4):
                x = x0 if row == 0 else x1 if row == 1 else x2 if row == 2 else x3
                one, two, three, four, total, low, high, zeros, sketch = _add_row(
                    x, x == x, word + (tile * 4 + row) * 32 + words, bits, pivot, scale,
                    one, two, three, four, total, low, high, zeros, sketch, False, MOMENTS, EXPONENTS, SKETCH,
                )  # fmt: skip
            if EXPONENTS:
                bytes += _count_rows(x0, x1, lowest) + _count_rows(x2, x3, lowest)
        if EXPONENTS:
            histogram += _histogram(bytes)
    rows = (length + 1023) // 1024
    for row in range(whole * 4, rows):
        present = row * 1024 + offsets < length
        x = _wide(tl.load(pointer + row * 1024 + offsets, mask=present, other=0))
        one, two, three, four, total, low, high, zeros, sketch = _add_row(
            x, present, word + row * 32 + words, bits, pivot, scale,
            one, two, three, four, total, low, high, zeros, sketch, True, MOMENTS, EXPONENTS, SKETCH,
        )  # fmt: skip
        if EXPONENTS:
            histogram += _histogram(_count_rows(x, x * 0.0, lowest))
    trusted = length > 0
    zero_count = tl.sum(zeros)
    if MOMENTS:
        smallest, largest, fourth, absolute = tl.min(low), tl.max(high), tl.sum(four), tl.sum(total)
        peak = tl.maximum(tl.abs((smallest - pivot) * scale), tl.abs((largest - pivot) * scale))
        trusted = (fourth < INFINITY) & (absolute < INFINITY)
        trusted = trusted & (peak <= LARGEST_PEAK) & ((peak >= SMALLEST_PEAK) | (peak == 0.0))
    elif SKETCH:
        trusted = tl.sum(tl.abs(sketch)) < INFINITY
    if trusted:
        if MOMENTS:
            unit = 1.0 / scale.to(tl.float64)
            first, second = tl.sum(one).to(tl.float64) * unit, tl.sum(two).to(tl.float64) * unit * unit
            third = tl.sum(three).to(tl.float64) * unit * unit * unit
            center, count = pivot.to(tl.float64), length.to(tl.float64)
            none = count * 0.0
            _store_moments(
                moments + chunk, number, count, none, none, none, zero_count.to(tl.float64),
                smallest.to(tl.float64), largest.to(tl.float64), center,
                first, second, third, fourth.to(tl.float64) * unit * unit * unit * unit,
                absolute.to(tl.float64),
                second + 2.0 * center * first + count * center * center,
            )  # fmt: skip
        if EXPONENTS:
            _store_window(exponents + chunk * 256, histogram, lowest, zero_count)
            if tl.sum(histogram) + zero_count < length:
                tl.debug_barrier()  # what has just been stored is added to
                _add_outside(pointer, length, lowest, exponents + chunk * 256, LANES)
        if SKETCH:
            _store_sketch(sketches + chunk * 1024, sketch, LANES)
    return trusted


@triton.jit
def _add_row(
    x, present, words, bits, pivot, scale, one, two, three, four, total, low, high, zeros, sketch,
    MASKED: tl.constexpr, MOMENTS: tl.constexpr, EXPONENTS: tl.constexpr, SKETCH: tl.constexpr,
):  # fmt: skip
    if MOMENTS:
        deviation = (x - pivot) * scale
        if MASKED:
            deviation = tl.where(present, deviation, 0.0)
        square = deviation * deviation
        one += deviation
        two += square
        three += square * deviation
        four += square * square
        total += tl.abs(x)
        low = tl.minimum(low, tl.where(present, x, INFINITY) if MASKED else x)
        high = tl.maximum(high, tl.where(present, x, -INFINITY) if MASKED else x)
    if MOMENTS or EXPONENTS:
        zeros += ((x == 0.0) & present if MASKED else x == 0.0).to(tl.int32)
    if SKETCH:
        flip = (_mix(words) << (31 - bits).to(tl.uint32)) & 0x80000000
        signed = (x.to(tl.uint32, bitcast=True) ^ flip).to(tl.float32, bitcast=True)
        sketch += signed.to(tl.float64)
    return one, two, three, four, total, low, high, zeros, sketch


@triton.jit
def _count_rows(x, y, lowest):
    """How many exponents of two rows lie where in the window: 32 bytes for each thread, in eight words.

    A row has four words of eight counts of four bits; neighbours are added before the counts are spread to bytes.
    """
    first, second = _nibbles(x, lowest), _nibbles(y, lowest)
    if x.shape[1] * 2 < 16:
        first += second
        return tl.join(first & 0x0F0F0F0F, (first >> 4) & 0x0F0F0F0F)
    else:
        even = (first & 0x0F0F0F0F) + (second & 0x0F0F0F0F)
        return tl.join(even, ((first >> 4) & 0x0F0F0F0F) + ((second >> 4) & 0x0F0F0F0F))


@triton.jit
def _histogram(bytes):
    """Over all threads: two sums of sixteen bits in a word, which 256 threads of 255 cannot fill."""
    words = tl.sum(tl.join(bytes & 0x00FF00FF, (bytes >> 8) & 0x00FF00FF), 0)
    return tl.reshape(tl.join(words & 0xFFFF, words >> 16), (WINDOW,)).to(tl.int32)


@triton.jit
def _nibbles(x, lowest):
    place = ((x.to(tl.int32, bitcast=True) >> 21) & 0x3FC) - lowest * 4  # four bits for each exponent
    count = tl.full(x.shape, 1, tl.uint32) << (place & 28).to(tl.uint32)
    group = place & -32
    first = tl.join(tl.where(group == 0, count, 0), tl.where(group == 32, count, 0))
    second = tl.join(tl.where(group == 64, count, 0), tl.where(group == 96, count, 0))
    return tl.sum(tl.join(first, second), 1)


@triton.jit
def _store_window(out, histogram, lowest, zeros):
    """The order of `histogram` is that in which `_count_rows` and its callers joined the halves of words."""
    tl.store(out + tl.arange(0, 256), tl.where(tl.arange(0, 256) == 0, zeros, 0))
    tl.debug_barrier()  # the next store overwrites some of what other threads have just written
    index = tl.arange(0, WINDOW)
    word = ((index >> 4) & 1) + 2 * ((index >> 3) & 1)
    nibble = ((index >> 2) & 1) + 2 * ((index >> 1) & 1) + 4 * (index & 1)
    tl.store(out + lowest + word * 8 + nibble, histogram)


@triton.jit
def _add_outside(pointer, length, lowest, out, LANES: tl.constexpr):
    """The few exponents outside the window, one by one; the chunk still lies in the cache."""
    offsets = tl.arange(0, 1024 // LANES)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    for row in range((length + 1023) // 1024):
        x = _wide(tl.load(pointer + row * 1024 + offsets, mask=row * 1024 + offsets < length, other=0))
        exponent = (x.to(tl.int32, bitcast=True) >> 23) & 255
        outside = (x != 0.0) & ((exponent < lowest) | (exponent >= lowest + WINDOW))
        tl.atomic_add(out + exponent, 1, mask=outside, sem="relaxed", scope="cta")


@triton.jit
def _wide(x):
    """As float32, or float64 if it is that. The bits of a bfloat16 are the upper half of a float32's."""
    if x.dtype == tl.uint16:
        return (x.to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    elif x.dtype == tl.float16:
        return x.to(tl.float32)
    else:
        return x


@triton.jit
def _mix(index):
    """Thirty-two signs, as `measure.signs` defines them."""
    word = index.to(tl.uint32) + WORD_OFFSET
    word = (word ^ (word >> 16)) * FIRST_FACTOR
    word = (word ^ (word >> 13)) * SECOND_FACTOR
    return word ^ (word >> 16)


@triton.jit
def _measure_exactly(
    address, length, word, pivot, chunk, moments, exponents, sketches, number,
    FORMAT: tl.constexpr, LANES: tl.constexpr,
    MOMENTS: tl.constexpr, EXPONENTS: tl.constexpr, SKETCH: tl.constexpr,
):  # fmt: skip
    """Any address, any value, in float64, a row at a time."""
    THREADS: tl.constexpr = 1024 // LANES
    pointer = address.to(tl.pointer_type(FORMAT))
    places = tl.arange(0, THREADS)[:, None]
    offsets = places * LANES + tl.arange(0, LANES)[None, :]
    words, bits = places // (32 // LANES), offsets % 32
    center = pivot.to(tl.float64)
    one = tl.zeros((THREADS, LANES), tl.float64)
    two, three, four, total, squares = one, one, one, one, one
    low, high = one + INFINITY, one - INFINITY
    zeros = tl.zeros((THREADS, LANES), tl.int32)
    nans, above, below = zeros, zeros, zeros
    histogram = tl.zeros((256,), tl.int32)
    sketch = tl.zeros((THREADS, LANES), tl.float64)
    rows = (length + 1023) // 1024
    for row in range(rows):
        present = row * 1024 + offsets < length
        x = _wide(tl.load(pointer + row * 1024 + offsets, mask=present, other=0)).to(tl.float64)
        finite = present & (tl.abs(x) < INFINITY)
        calm = tl.where(finite, x, 0.0)
        if MOMENTS:
            deviation = tl.where(finite, calm - center, 0.0)
            square = deviation * deviation
            one += deviation
            two += square
            three += square * deviation
            four += square * square
            total += tl.abs(calm)
            squares += calm * calm
            low = tl.minimum(low, tl.where(finite, x, INFINITY))
            high = tl.maximum(high, tl.where(finite, x, -INFINITY))
            zeros += (present & (x == 0.0)).to(tl.int32)
            nans += (x != x).to(tl.int32)
            above += (x == INFINITY).to(tl.int32)
            below += (x == -INFINITY).to(tl.int32)
        if EXPONENTS:
            # The eleven bits of a float64's exponent, moved from its bias (1023) to that of float32 (127).
            stored = ((x.to(tl.int64, bitcast=True) >> 52) & 0x7FF).to(tl.int32)
            biased = tl.where(stored == 0x7FF, 255, tl.minimum(tl.maximum(stored - 896, 0), 254))
            histogram += tl.histogram(tl.reshape(biased, (1024,)), 256)
        if SKETCH:
            flip = (_mix(word + row * 32 + words) >> bits.to(tl.uint32)) & 1
            sketch += tl.where(flip == 1, -calm, calm)
    if MOMENTS:
        nan, positive, negative = tl.sum(nans), tl.sum(above), tl.sum(below)
        _store_moments(
            moments + chunk, number, (length - nan - positive - negative).to(tl.float64),
            nan.to(tl.float64), positive.to(tl.float64), negative.to(tl.float64), tl.sum(zeros).to(tl.float64),
            tl.min(low), tl.max(high), center,
            tl.sum(one), tl.sum(two), tl.sum(three), tl.sum(four), tl.sum(total), tl.sum(squares),
        )  # fmt: skip
    if EXPONENTS:
        columns = tl.arange(0, 256)
        tl.store(exponents + chunk * 256 + columns, histogram - tl.where(columns == 0, rows * 1024 - length, 0))
    if SKETCH:
        _store_sketch(sketches + chunk * 1024, sketch, LANES)


@triton.jit
def _store_sketch(out, sketch, LANES: tl.constexpr):
    places = tl.arange(0, 1024 // LANES)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    tl.store(out + places, sketch)


@triton.jit
def _store_moments(
    out, number, count, nan, positive, negative, zero, low, high, pivot, one, two, three, four, total, squares
):
    """One column after the other, each over all chunks; in the order of `Moment`, with the finite ones as COUNT."""
    tl.store(out, count)
    tl.store(out + number, nan)
    tl.store(out + number * 2, positive)
    tl.store(out + number * 3, negative)
    tl.store(out + number * 4, zero)
    tl.store(out + number * 5, low)
    tl.store(out + number * 6, high)
    tl.store(out + number * 7, pivot)
    tl.store(out + number * 8, one)
    tl.store(out + number * 9, two)
    tl.store(out + number * 10, three)
    tl.store(out + number * 11, four)
    tl.store(out + number * 12, total)
    tl.store(out + number * 13, squares)


@triton.jit(do_not_specialize=["tensors", "number"])
def merge_chunks(
    first_of, moments, exponents, sketches, block, tensors, number,
    COLUMNS: tl.constexpr, HEIGHT: tl.constexpr,
    MOMENTS: tl.constexpr, EXPONENTS: tl.constexpr, SKETCH: tl.constexpr,
):  # fmt: skip
    """The second index of a program says which columns of its tensor it merges: sketch, exponents, then moments."""
    tensor = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    first, last = tl.load(first_of + tensor), tl.load(first_of + tensor + 1)
    sketch_parts: tl.constexpr = 1024 // COLUMNS if SKETCH else 0
    exponent_parts: tl.constexpr = 256 // COLUMNS if EXPONENTS else 0
    at_exponents = tensors.to(tl.int64) * (14 if MOMENTS else 0)
    at_sketches = at_exponents + tensors.to(tl.int64) * (256 if EXPONENTS else 0)
    if part < sketch_parts:
        _merge_columns(
            sketches, block + at_sketches + tensor * 1024, first, last, part * COLUMNS, 1024, COLUMNS, HEIGHT
        )
    elif part < sketch_parts + exponent_parts:
        part -= sketch_parts
        _merge_columns(
            exponents, block + at_exponents + tensor * 256, first, last, part * COLUMNS, 256, COLUMNS, HEIGHT
        )
    elif MOMENTS:
        _merge_moments(moments, block + tensor * 14, first, last, number)


@triton.jit
def _merge_columns(chunks, out, first, last, start, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, HEIGHT: tl.constexpr):
    columns = start + tl.arange(0, COLUMNS)
    total = tl.zeros((HEIGHT, COLUMNS), tl.float64)
    for at in range(first, last, HEIGHT):
        rows = at + tl.arange(0, HEIGHT)
        place = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
        total += tl.load(chunks + place, mask=(rows < last)[:, None], other=0).to(tl.float64)
    tl.store(out + columns, tl.sum(total, 0))


@triton.jit
def _merge_moments(moments, out, first, last, number):
    """All chunks are moved to the mean of the tensor."""
    lanes = tl.arange(0, 128)
    counts = tl.zeros((128,), tl.float64)
    firsts = counts
    for at in range(first, last, 128):
        place, here = moments + at + lanes, at + lanes < last
        count = tl.load(place, mask=here, other=0.0)
        counts += count
        firsts += count * tl.load(place + number * 7, mask=here, other=0.0)
        firsts += tl.load(place + number * 8, mask=here, other=0.0)
    count = tl.sum(counts)
    mean = tl.sum(firsts) / tl.maximum(count, 1.0)
    nan, positive, negative, zero = counts * 0.0, counts * 0.0, counts * 0.0, counts * 0.0
    one, two, three, four, total, squares = nan, nan, nan, nan, nan, nan
    low, high = nan + INFINITY, nan - INFINITY
    for at in range(first, last, 128):
        place, here = moments + at + lanes, at + lanes < last
        part = tl.load(place, mask=here, other=0.0)
        nan += tl.load(place + number, mask=here, other=0.0)
        positive += tl.load(place + number * 2, mask=here, other=0.0)
        negative += tl.load(place + number * 3, mask=here, other=0.0)
        zero += tl.load(place + number * 4, mask=here, other=0.0)
        low = tl.minimum(low, tl.load(place + number * 5, mask=here, other=INFINITY))
        high = tl.maximum(high, tl.load(place + number * 6, mask=here, other=-INFINITY))
        shift = tl.where(part > 0.0, tl.load(place + number * 7, mask=here, other=0.0) - mean, 0.0)
        first_sum = tl.load(place + number * 8, mask=here, other=0.0)
        second_sum = tl.load(place + number * 9, mask=here, other=0.0)
        third_sum = tl.load(place + number * 10, mask=here, other=0.0)
        square = shift * shift
        one += first_sum + part * shift
        two += second_sum + 2.0 * shift * first_sum + part * square
        three += third_sum + 3.0 * shift * second_sum + 3.0 * square * first_sum + part * square * shift
        four += tl.load(place + number * 11, mask=here, other=0.0) + 4.0 * shift * third_sum
        four += 6.0 * square * second_sum + 4.0 * square * shift * first_sum + part * square * square
        total += tl.load(place + number * 12, mask=here, other=0.0)
        squares += tl.load(place + number * 13, mask=here, other=0.0)
    nothing = tl.where(count > 0.0, 0.0, float("nan"))
    _store_moments(
        out, 1, count, tl.sum(nan), tl.sum(positive), tl.sum(negative), tl.sum(zero),
        tl.min(low) + nothing, tl.max(high) + nothing, mean,
        tl.sum(one), tl.sum(two), tl.sum(three), tl.sum(four), tl.sum(total), tl.sum(squares),
    )  # fmt: skip
