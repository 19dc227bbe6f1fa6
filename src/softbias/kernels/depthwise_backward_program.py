"""Triton code of the depth-wise convolution between two GELUs, backward; see `depthwise` for the formulas, and
`depthwise_program` for how the work is cut and what a row is.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"
# The arguments of Triton code have Triton's own types, and a row is a tuple that grows.
# ruff: noqa: RUF005
# Triton joins tuples, but does not unpack them.

from softbias.kernels.depthwise_program import (
    between,
    columns_inside,
    convolve,
    first_channels,
    load_row,
    nine_numbers,
    normal,
    number,
    plus_shift,
    zeros,
)
from softbias.kernels.triton_api import jit, tl


@jit
def slope_of_gelu(x):
    below, density = normal(x)
    return below + x * density


@jit
def gelu_and_slope_row(row, COUNT: tl.constexpr):
    hidden = ()
    slope = ()
    for k in tl.static_range(COUNT):
        below, density = normal(row[k])
        hidden = hidden + (row[k] * below,)
        slope = slope + (below + row[k] * density,)
    return hidden, slope


@jit
def correlate(total, dz, row, offset: tl.constexpr, BESIDE: tl.constexpr, COLUMNS: tl.constexpr):
    """`total` and the sum of dz times h at an offset, over the strip's own columns"""
    for k in tl.static_range(COLUMNS):
        if (k + 2 * BESIDE + offset >= 0) & (k + offset < COLUMNS + 2 * BESIDE):
            total += dz[k + BESIDE] * row[k + 2 * BESIDE + offset]
    return total


@jit
def backward_row(dout, above, here, below, taps, bias, sums, BESIDE: tl.constexpr, COLUMNS: tl.constexpr):
    """dz of a row, and the sums of the nine weights and of the bias, grown by this row"""
    dz = ()
    for k in tl.static_range(COLUMNS + 2 * BESIDE):
        z = convolve(above, here, below, taps, bias, k + BESIDE, COLUMNS + 4 * BESIDE)
        dz = dz + (dout[k] * slope_of_gelu(z),)
    grown = ()
    for j in tl.static_range(9):
        row = above if j < 3 else (here if j < 6 else below)
        grown = grown + (correlate(sums[j], dz, row, j % 3 - 1, BESIDE, COLUMNS),)
    total = sums[9]
    for k in tl.static_range(COLUMNS):
        total += dz[k + BESIDE]
    return dz, grown + (total,)


@jit
def spread(dh, dz, taps, row: tl.constexpr, BESIDE: tl.constexpr, COLUMNS: tl.constexpr):
    """`dh` and what dz adds to it, where it is the row of h that this row of the weights looks at"""
    result = ()
    for k in tl.static_range(COLUMNS):
        total = dh[k]
        for j in tl.static_range(3):
            if (k + BESIDE + 1 - j >= 0) & (k + 1 - j < COLUMNS + BESIDE):
                total += dz[k + BESIDE + 1 - j] * taps[3 * row + j]
        result = result + (total,)
    return result


@jit
def plus_own(dh, dout, BESIDE: tl.constexpr, COLUMNS: tl.constexpr):
    result = ()
    for k in tl.static_range(COLUMNS):
        result = result + (dh[k] + dout[k + BESIDE],)
    return result


@jit
def write_row(
    where, inside, there, dh, slope, total, token: tl.constexpr, BESIDE: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Write dx = dh ⊙ slope of one row, if it is `there`; returns `total`, grown by it"""
    for k in tl.static_range(COLUMNS):
        dx = tl.where(inside[k + 2 * BESIDE], dh[k] * slope[k + 2 * BESIDE], 0.0)
        tl.store(where + k * token, dx.to(where.dtype.element_ty), mask=inside[k + 2 * BESIDE] & there)
        total += dx
    return total


@jit
def backward_program(
    dout, x, shift, weight, bias, dx, sums,
    dout_image, x_image, dx_image, images,
    dout_token: tl.constexpr, x_token: tl.constexpr, dx_token: tl.constexpr, channels: tl.constexpr, prefix: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, STRIPS: tl.constexpr, COLUMNS: tl.constexpr, IMAGES: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """dx, and this program's share in the gradients of the parameters: sums[program, 11, channels], the nine weights, the bias
    and the shift

    When row y of dz is known, so is row y − 1 of dh: `before` is that row without what dz adds now, and `next` is what row y
    has got before. The slope of a row above the first is zero, so that row adds nothing to the sums.
    """
    BESIDE: tl.constexpr = 1 if STRIPS > 1 else 0  # columns of dz on either side of the strip; h has twice as many
    COUNT: tl.constexpr = COLUMNS + 4 * BESIDE
    start = tl.program_id(0) // STRIPS * IMAGES
    strip = tl.program_id(0) % STRIPS
    first = strip * COLUMNS
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    within = first_channels(c, channels, CHANNELS)
    inside = columns_inside(first - 2 * BESIDE, within, width, STRIPS, COUNT, CHANNELS)
    s = number(shift, c, within)
    b = number(bias, c, within)
    taps = nine_numbers(weight, c, within)
    nothing = zeros(COUNT, CHANNELS)
    of_taps = zeros(10, CHANNELS)
    of_shift = tl.full((CHANNELS,), 0.0, tl.float32)
    for image in range(start, tl.minimum(start + IMAGES, images)):
        image = tl.cast(image, tl.int64)  # offsets may pass 2³¹
        x_here = x + image * x_image + c
        dout_here = dout + image * dout_image + c
        dx_here = dx + image * dx_image + c
        for token in range(prefix):
            once = between(strip, 0, 1, within, CHANNELS)  # by one strip alone
            gradient = number(dout_here, token * dout_token, once)
            gradient *= slope_of_gelu(number(x_here, token * x_token, once) + s)
            tl.store(dx_here + token * dx_token, gradient.to(dx.dtype.element_ty), mask=once)
            of_shift += gradient
        x_here += (prefix + first - 2 * BESIDE) * x_token
        dout_here += (prefix + first - BESIDE) * dout_token
        dx_here += (prefix + first - width) * dx_token  # one row behind
        row = load_row(x_here, inside, x_token, 0, COUNT)
        here, slope = gelu_and_slope_row(plus_shift(row, s, inside, COUNT), COUNT)
        above = nothing
        slope_above = nothing
        before = zeros(COLUMNS, CHANNELS)
        next = zeros(COLUMNS, CHANNELS)
        for y in range(height - 1):
            x_here += width * x_token
            row = load_row(x_here, inside, x_token, 0, COUNT)
            given = load_row(dout_here, inside, dout_token, BESIDE, COLUMNS + 2 * BESIDE)
            below, slope_below = gelu_and_slope_row(plus_shift(row, s, inside, COUNT), COUNT)
            dz, of_taps = backward_row(given, above, here, below, taps, b, of_taps, BESIDE, COLUMNS)
            dh = spread(before, dz, taps, 0, BESIDE, COLUMNS)
            of_shift = write_row(dx_here, inside, y > 0, dh, slope_above, of_shift, dx_token, BESIDE, COLUMNS)
            before = spread(plus_own(next, given, BESIDE, COLUMNS), dz, taps, 1, BESIDE, COLUMNS)
            next = spread(zeros(COLUMNS, CHANNELS), dz, taps, 2, BESIDE, COLUMNS)
            dout_here += width * dout_token
            dx_here += width * dx_token
            above = here
            here = below
            slope_above = slope
            slope = slope_below
        given = load_row(dout_here, inside, dout_token, BESIDE, COLUMNS + 2 * BESIDE)
        dz, of_taps = backward_row(given, above, here, nothing, taps, b, of_taps, BESIDE, COLUMNS)
        dh = spread(before, dz, taps, 0, BESIDE, COLUMNS)
        of_shift = write_row(dx_here, inside, height > 1, dh, slope_above, of_shift, dx_token, BESIDE, COLUMNS)
        dh = spread(plus_own(next, given, BESIDE, COLUMNS), dz, taps, 1, BESIDE, COLUMNS)
        dx_here += width * dx_token
        of_shift = write_row(dx_here, inside, True, dh, slope, of_shift, dx_token, BESIDE, COLUMNS)
    where = sums + tl.program_id(0).to(tl.int64) * (11 * channels) + c
    for k in tl.static_range(10):
        tl.store(where + k * channels, of_taps[k], mask=within)
    tl.store(where + 10 * channels, of_shift, mask=within)


@jit
def parameters_program(
    sums, dweight, dbias, dshift, how_many, channels: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):
    """The gradient of one number per channel, from the shares of all programs, always added in one order"""
    which = tl.program_id(0)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    part = tl.arange(0, ROWS)
    within = c < channels
    where = sums + which * channels + part.to(tl.int64)[:, None] * (11 * channels) + c[None, :]
    totals = tl.full((ROWS, CHANNELS), 0.0, tl.float32)
    for start in range(0, how_many, ROWS):
        totals += tl.load(where, mask=(start + part < how_many)[:, None] & within[None, :], other=0.0)
        where += ROWS * 11 * channels
    total = tl.sum(totals, 0)
    if which < 9:
        tl.store(dweight + c * 9 + which, total.to(dweight.dtype.element_ty), mask=within)
    elif which == 9:
        tl.store(dbias + c, total.to(dbias.dtype.element_ty), mask=within)
    else:
        tl.store(dshift + c, total.to(dshift.dtype.element_ty), mask=within)
