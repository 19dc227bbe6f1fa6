"""Triton code of the depth-wise convolution between two GELUs; see `depthwise` for the formulas.

A program takes some channels of some images and walks over the rows of the grid. A row is a tuple of columns, and a column is a
vector of channels. Each thread holds all columns of its own channels, so neighbors are other registers of the same thread:
nothing is exchanged between threads, and sums over positions stay where they are until the end.

A wide grid is cut into strips of columns. A strip computes the columns beside it again: two of h and one of ∂l/∂z on either
side. Positions outside the grid are zeros.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"
# The arguments of Triton code have Triton's own types, and a row is a tuple that grows.
# ruff: noqa: RUF005
# Triton joins tuples, but does not unpack them.

from softbias.kernels.triton_api import jit, tl


@jit
def normal(x):
    """Φ(x) and φ(x) of the normal distribution, by formula 7.1.26 of Abramowitz and Stegun: the error of Φ is below 1e-7. Its
    exponential is the density, which a derivative needs as well."""
    power = tl.exp2(x * x * -0.7213475204444817)  # exp(−x²/2)
    t = 1.0 + tl.abs(x) * 0.23164189
    t = tl.rsqrt(t * t)  # one instruction, where a division is several
    tail = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
    tail *= power
    return tl.where(x < 0.0, tail, 1.0 - tail), power * 0.3989422804014327


@jit
def gelu(x):
    below, _ = normal(x)
    return x * below


@jit
def zeros(COUNT: tl.constexpr, CHANNELS: tl.constexpr):
    row = ()
    for _ in tl.static_range(COUNT):
        row = row + (tl.full((CHANNELS,), 0.0, tl.float32),)
    return row


@jit
def number(where, c, within):
    """One number for every channel"""
    return tl.load(where + c, mask=within, other=0.0).to(tl.float32)


@jit
def nine_numbers(where, c, within):
    taps = ()
    for k in tl.static_range(9):
        taps = taps + (tl.load(where + c * 9 + k, mask=within, other=0.0).to(tl.float32),)
    return taps


@jit
def first_channels(c, channels: tl.constexpr, CHANNELS: tl.constexpr):
    """Which of the channels c there are. Where all are, the compiler sees that and asks no more."""
    within = tl.full((CHANNELS,), True, tl.int1)
    if channels % CHANNELS != 0:
        within = c < channels
    return within


@jit
def between(column, start: tl.constexpr, end: tl.constexpr, within, CHANNELS: tl.constexpr):
    """`within`, if start ≤ column < end"""
    column = tl.full((CHANNELS,), column, tl.int32)  # the interpreter cannot spread a condition
    return within & (column >= start) & (column < end)


@jit
def columns_inside(
    first, within, width: tl.constexpr, STRIPS: tl.constexpr, COUNT: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """Which of COUNT columns from `first` on lie on the grid"""
    inside = ()
    for k in tl.static_range(COUNT):
        if STRIPS > 1:
            inside = inside + (between(first + k, 0, width, within, CHANNELS),)
        else:
            inside = inside + (within,)
    return inside


@jit
def load_row(where, inside, token: tl.constexpr, START: tl.constexpr, COUNT: tl.constexpr):
    """COUNT columns, in float32, of the row whose column START `where` points at"""
    row = ()
    for k in tl.static_range(COUNT):
        row = row + (tl.load(where + k * token, mask=inside[START + k], other=0.0).to(tl.float32),)
    return row


@jit
def plus_shift(row, shift, inside, COUNT: tl.constexpr):
    """x + s, but zero outside the grid, so that its GELU is zero, too"""
    result = ()
    for k in tl.static_range(COUNT):
        result = result + (tl.where(inside[k], row[k] + shift, 0.0),)
    return result


@jit
def gelu_row(row, COUNT: tl.constexpr):
    result = ()
    for k in tl.static_range(COUNT):
        result = result + (gelu(row[k]),)
    return result


@jit
def convolve(above, here, below, taps, bias, column: tl.constexpr, COUNT: tl.constexpr):
    """z of one column, from three rows of COUNT columns"""
    z = bias
    for j in tl.static_range(3):
        if (column + j >= 1) & (column + j <= COUNT):
            z += above[column + j - 1] * taps[j]
            z += here[column + j - 1] * taps[3 + j]
            z += below[column + j - 1] * taps[6 + j]
    return z


@jit
def forward_row(
    where, inside, above, here, below, taps, bias, token: tl.constexpr, BESIDE: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Write out = h + gelu(z) of one row; `where` points at the strip's own first column"""
    for k in tl.static_range(COLUMNS):
        z = convolve(above, here, below, taps, bias, k + BESIDE, COLUMNS + 2 * BESIDE)
        out = here[k + BESIDE] + gelu(z)
        tl.store(where + k * token, out.to(where.dtype.element_ty), mask=inside[k + BESIDE])


@jit
def forward_program(
    x, shift, weight, bias, out,
    x_image, out_image, images,
    x_token: tl.constexpr, out_token: tl.constexpr, channels: tl.constexpr, prefix: tl.constexpr, height: tl.constexpr,
    width: tl.constexpr, STRIPS: tl.constexpr, COLUMNS: tl.constexpr, IMAGES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """out = h + gelu(z)"""
    BESIDE: tl.constexpr = 1 if STRIPS > 1 else 0  # columns of h on either side of the strip
    COUNT: tl.constexpr = COLUMNS + 2 * BESIDE
    start = tl.program_id(0) // STRIPS * IMAGES
    strip = tl.program_id(0) % STRIPS
    first = strip * COLUMNS
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    within = first_channels(c, channels, CHANNELS)
    inside = columns_inside(first - BESIDE, within, width, STRIPS, COUNT, CHANNELS)
    s = number(shift, c, within)
    b = number(bias, c, within)
    taps = nine_numbers(weight, c, within)
    nothing = zeros(COUNT, CHANNELS)
    for image in range(start, tl.minimum(start + IMAGES, images)):
        image = tl.cast(image, tl.int64)  # offsets may pass 2³¹
        x_here = x + image * x_image + c
        out_here = out + image * out_image + c
        for token in range(prefix):
            once = between(strip, 0, 1, within, CHANNELS)  # by one strip alone
            value = number(x_here, token * x_token, once)
            tl.store(out_here + token * out_token, gelu(value + s).to(out.dtype.element_ty), mask=once)
        x_here += (prefix + first - BESIDE) * x_token
        out_here += (prefix + first) * out_token
        row = load_row(x_here, inside, x_token, 0, COUNT)
        here = gelu_row(plus_shift(row, s, inside, COUNT), COUNT)
        above = nothing
        for _ in range(height - 1):
            x_here += width * x_token
            row = load_row(x_here, inside, x_token, 0, COUNT)
            below = gelu_row(plus_shift(row, s, inside, COUNT), COUNT)
            forward_row(out_here, inside, above, here, below, taps, b, out_token, BESIDE, COLUMNS)
            out_here += width * out_token
            above = here
            here = below
        forward_row(out_here, inside, above, here, nothing, taps, b, out_token, BESIDE, COLUMNS)
