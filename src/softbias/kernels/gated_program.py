"""Triton code of the gated mixture; see `gated` for the formulas.

The images of a batch are columns of one product per head: column n is channel n % D of image n // D, so 48 channels fill tiles
of 128 as well as 64 would. All strides are multiples of 8 and come divided by 8: they are multiplied by 8 here, so that the
compiler knows that eight channels may be read at once. Tokens past the end are read as zeros; rows of maps are padded with
zeros to a multiple of 16. `heads` is a constant, like all sizes except the batch.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# The arguments of Triton code have Triton's own types.

from softbias.kernels.triton_api import jit, tl


@jit
def position_softmax(weight, head, i, j, tokens: tl.constexpr, width: tl.constexpr):
    """softmax over j of w₀ δ_column + w₁ δ_row + w₂ ‖δ‖², zero past the end, and the two offsets, in float32"""
    across = (j[None, :] % width - i[:, None] % width).to(tl.float32)
    down = (j[None, :] // width - i[:, None] // width).to(tl.float32)
    for_across = tl.load(weight + head * 3).to(tl.float32)
    for_down = tl.load(weight + head * 3 + 1).to(tl.float32)
    for_square = tl.load(weight + head * 3 + 2).to(tl.float32)
    scores = for_across * across + for_down * down + for_square * (across * across + down * down)
    scores = tl.where(j[None, :] < tokens, scores, float("-inf"))
    shares = tl.exp(scores - tl.max(scores, 1)[:, None])
    return shares / tl.sum(shares, 1)[:, None], across, down


@jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@jit
def map_program(
    weight, maps,
    tokens: tl.constexpr, padded: tl.constexpr, width: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """maps[h, i, j]: a few rows of one head"""
    head = tl.program_id(1)
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.arange(0, TOKENS)
    p, _, _ = position_softmax(weight, head, i, j, tokens, width)
    where = maps + (head * tokens + i[:, None]) * padded + j[None, :]
    tl.store(where, p.to(maps.dtype.element_ty), mask=(i[:, None] < tokens) & (j[None, :] < padded))


@jit
def mix_program(
    content_out, v, maps, gate, out,
    content_out_image, content_out_head, content_out_token, v_image, v_head, v_token, images,
    heads: tl.constexpr, tokens: tl.constexpr, padded: tl.constexpr, channels: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """out = (1 − g) content_out + g P V: a tile of queries i and columns; programs that read the same values are neighbors"""
    tiles: tl.constexpr = (tokens + ROWS - 1) // ROWS
    kind: tl.constexpr = v.dtype.element_ty
    head = tl.program_id(0) // tiles % heads
    i = (tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS)
    n = (tl.program_id(0) // (tiles * heads)) * COLUMNS + tl.arange(0, COLUMNS)
    image, c = (n // channels).to(tl.int64), n % channels
    real = n < images * channels
    x = tl.load(gate + head).to(tl.float32)
    maps += head * (tokens * padded)
    of_v = v + head * (v_head * 8) + (image * (v_image * 8) + c)[None, :]
    sums = tl.full((ROWS, COLUMNS), 0.0, tl.float32)
    for start in range(0, tokens, DEPTH):
        j = start + tl.arange(0, DEPTH)
        p = tl.load(maps + i[:, None] * padded + j[None, :], mask=(i[:, None] < tokens) & (j[None, :] < padded), other=0.0)
        values = tl.load(of_v + j[:, None] * (v_token * 8), mask=(j[:, None] < tokens) & real[None, :], other=0.0)
        sums = tl.dot(p, values, sums, input_precision="ieee")
    inside = (i[:, None] < tokens) & real[None, :]
    where = (
        head * (content_out_head * 8) + i[:, None] * (content_out_token * 8) + (image * (content_out_image * 8) + c)[None, :]
    )
    a = tl.load(content_out + where, mask=inside, other=0.0).to(tl.float32)
    where = (head + i[:, None] * heads) * channels + (image * (tokens * heads * channels) + c)[None, :]
    tl.store(out + where, (sigmoid(-x) * a + sigmoid(x) * sums).to(kind), mask=inside)


@jit
def values_program(
    dout, content_out, maps, gate, dcontent_out, dv, products,
    dout_image, dout_token, dout_head, content_out_image, content_out_head, content_out_token, dcontent_out_image,
    dcontent_out_head, dcontent_out_token, images,
    heads: tl.constexpr, tokens: tl.constexpr, padded: tl.constexpr, channels: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """dv = g Pᵀ dO for a tile of keys j and columns, and for the same tile dcontent_out = (1 − g) dO and
    products[h, tile] = ⟨dO, content_out⟩"""
    tiles: tl.constexpr = (tokens + ROWS - 1) // ROWS
    kind: tl.constexpr = dv.dtype.element_ty
    head = tl.program_id(0) // tiles % heads
    j = (tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS)
    n = (tl.program_id(0) // (tiles * heads)) * COLUMNS + tl.arange(0, COLUMNS)
    image, c = (n // channels).to(tl.int64), n % channels
    real = n < images * channels
    x = tl.load(gate + head).to(tl.float32)
    maps += head * (tokens * padded)
    of_dout = dout + head * (dout_head * 8) + (image * (dout_image * 8) + c)[None, :]
    sums = tl.full((ROWS, COLUMNS), 0.0, tl.float32)
    for start in range(0, tokens, DEPTH):
        i = start + tl.arange(0, DEPTH)
        p = tl.load(maps + i[:, None] * padded + j[None, :], mask=(i[:, None] < tokens) & (j[None, :] < padded), other=0.0)
        do = tl.load(of_dout + i[:, None] * (dout_token * 8), mask=(i[:, None] < tokens) & real[None, :], other=0.0)
        sums = tl.dot(tl.trans(p), do, sums, input_precision="ieee")
    inside = (j[:, None] < tokens) & real[None, :]
    where = (head + j[:, None] * heads) * channels + (image * (tokens * heads * channels) + c)[None, :]
    tl.store(dv + where, (sigmoid(x) * sums).to(kind), mask=inside)
    do = tl.load(of_dout + j[:, None] * (dout_token * 8), mask=inside, other=0.0).to(tl.float32)
    where = (
        head * (content_out_head * 8) + j[:, None] * (content_out_token * 8) + (image * (content_out_image * 8) + c)[None, :]
    )
    a = tl.load(content_out + where, mask=inside, other=0.0).to(tl.float32)
    where = (
        head * (dcontent_out_head * 8) + j[:, None] * (dcontent_out_token * 8) + (image * (dcontent_out_image * 8) + c)[None, :]
    )
    tl.store(dcontent_out + where, (sigmoid(-x) * do).to(kind), mask=inside)
    each = tl.num_programs(0) // heads
    tile = tl.program_id(0) // (tiles * heads) * tiles + tl.program_id(0) % tiles
    tl.store(products + head * each + tile, tl.sum(tl.sum(do * a, 1), 0))


@jit
def pairs_program(
    dout, v, parts,
    dout_image, dout_token, dout_head, v_image, v_head, v_token, images, share_of_batch,
    heads: tl.constexpr, tokens: tl.constexpr, padded: tl.constexpr, channels: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """parts[part, h, i, j] = Σ dO_i · V_j over the images of that part of the batch, which are a whole number of steps"""
    across: tl.constexpr = (tokens + COLUMNS - 1) // COLUMNS
    head = tl.program_id(1)
    i = (tl.program_id(0) // across) * ROWS + tl.arange(0, ROWS)
    j = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
    of_dout = dout + head * (dout_head * 8) + i[:, None] * (dout_token * 8)
    of_v = v + head * (v_head * 8) + j[:, None] * (v_token * 8)
    all_of_them = images * channels
    first = tl.program_id(2) * share_of_batch * channels
    sums = tl.full((ROWS, COLUMNS), 0.0, tl.float32)
    for start in range(first, tl.minimum(first + share_of_batch * channels, all_of_them), DEPTH):
        n = start + tl.arange(0, DEPTH)
        image, c = (n // channels).to(tl.int64), n % channels
        real = n[None, :] < all_of_them
        do = tl.load(of_dout + (image * (dout_image * 8) + c)[None, :], mask=(i[:, None] < tokens) & real, other=0.0)
        values = tl.load(of_v + (image * (v_image * 8) + c)[None, :], mask=(j[:, None] < tokens) & real, other=0.0)
        sums = tl.dot(do, tl.trans(values), sums, input_precision="ieee")
    where = parts + ((tl.program_id(2) * heads + head).to(tl.int64) * tokens + i[:, None]) * padded + j[None, :]
    tl.store(where, sums, mask=(i[:, None] < tokens) & (j[None, :] < padded))


@jit
def scores_program(
    parts, weight, rows, how_many,
    heads: tl.constexpr, tokens: tl.constexpr, padded: tl.constexpr, width: tl.constexpr, TOKENS: tl.constexpr,
    ROWS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """rows[·, h, block] = Σ P ⊙ G and, with E = P ⊙ (G − rowsum(P ⊙ G)), Σ E δ_column, Σ E δ_row, Σ E ‖δ‖²: of a few rows.
    The parts of G are read several at a time: one after the other they would take longer than everything else here."""
    head = tl.program_id(1)
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.arange(0, TOKENS)
    part = tl.arange(0, PARTS)[:, None, None]
    inside = (i[:, None] < tokens) & (j[None, :] < padded)
    where = parts + (part.to(tl.int64) * heads + head) * (tokens * padded) + (i[:, None] * padded + j[None, :])[None, :, :]
    sums = tl.full((PARTS, ROWS, TOKENS), 0.0, tl.float32)
    for start in range(0, how_many, PARTS):
        sums += tl.load(where, mask=(start + part < how_many) & inside[None, :, :], other=0.0)
        where += PARTS * heads * tokens * padded
    g = tl.sum(sums, 0)
    p, across, down = position_softmax(weight, head, i, j, tokens, width)
    of_rows = tl.sum(p * g, 1)
    e = p * (g - of_rows[:, None])  # zero in rows past the end, where g is
    blocks = tl.num_programs(0)
    where = rows + head * blocks + tl.program_id(0)
    tl.store(where, tl.sum(of_rows, 0))
    tl.store(where + heads * blocks, tl.sum(tl.sum(e * across, 1), 0))
    tl.store(where + 2 * heads * blocks, tl.sum(tl.sum(e * down, 1), 0))
    tl.store(where + 3 * heads * blocks, tl.sum(tl.sum(e * (across * across + down * down), 1), 0))


@jit
def total(numbers, how_many, BLOCK: tl.constexpr):
    sums = tl.full((BLOCK,), 0.0, tl.float32)
    for start in range(0, how_many, BLOCK):
        n = start + tl.arange(0, BLOCK)
        sums += tl.load(numbers + n, mask=n < how_many, other=0.0)
    return tl.sum(sums, 0)


@jit
def parameters_program(
    products, rows, gate, dweight, dbias, dgate, tiles, blocks,
    heads: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One head's gradients of weight, bias (zero) and gate, from the sums of the other programs"""
    head = tl.program_id(0)
    x = tl.load(gate + head).to(tl.float32)
    g = sigmoid(x)
    rows += head * blocks
    by_position = total(rows, blocks, BLOCK)
    by_content = total(products + head * tiles, tiles, BLOCK)
    tl.store(dgate + head, (g * sigmoid(-x) * (by_position - by_content)).to(dgate.dtype.element_ty))
    tl.store(dbias + head, tl.full((), 0.0, dbias.dtype.element_ty))
    kind: tl.constexpr = dweight.dtype.element_ty
    tl.store(dweight + head * 3, (g * total(rows + heads * blocks, blocks, BLOCK)).to(kind))
    tl.store(dweight + head * 3 + 1, (g * total(rows + 2 * heads * blocks, blocks, BLOCK)).to(kind))
    tl.store(dweight + head * 3 + 2, (g * total(rows + 3 * heads * blocks, blocks, BLOCK)).to(kind))
