"""Triton code for a rolled mask of low rank: M from its factors, and their gradients from that of M; see `masked`.

Only the block of the patches is rolled: `prefix` is the number of tokens before it, or of all tokens where nothing is rolled.
`shift` is the number of columns by which the released code reads the block too far left, and zero for the other rolls. Rows
are padded with zeros to a multiple of 16, which lets several entries be read at once.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# The arguments of Triton code have Triton's own types.

from softbias.kernels.triton_api import jit, tl


@jit
def rolled(i, j, tokens: tl.constexpr, prefix: tl.constexpr):
    """The position of M[i, j] in its row once rolled back: (j − i) mod P behind the prefix. Padding stays where it is."""
    moved = prefix + j - i + tl.where(j < i, tokens - prefix, 0)
    return tl.where((i < prefix) | (j < prefix) | (j >= tokens), j, moved)


@jit
def column(i, position, prefix: tl.constexpr, shift: tl.constexpr):
    """The column of W that is read for this position in row i"""
    return tl.where((i < prefix) | (position < prefix), position, position - shift)


@jit
def unroll_program(
    a, b, masks,
    ranks: tl.constexpr, heads: tl.constexpr, tokens: tl.constexpr, padded: tl.constexpr, prefix: tl.constexpr,
    shift: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """masks[0, h, i, j] = masks[1, h, j, i] = M[i, j] = Σ_ρ a[h, ρ, i] b[h, ρ, column]: a tile of one head"""
    across: tl.constexpr = (padded + BLOCK - 1) // BLOCK
    kind: tl.constexpr = masks.dtype.element_ty
    head = tl.program_id(1)
    i = (tl.program_id(0) // across * BLOCK + tl.arange(0, BLOCK))[:, None]
    j = (tl.program_id(0) % across * BLOCK + tl.arange(0, BLOCK))[None, :]
    where = column(i, rolled(i, j, tokens, prefix), prefix, shift)
    inside = (i < tokens) & (j < tokens)
    a += head * (ranks * tokens)
    b += head * (ranks * tokens)
    sums = tl.full((BLOCK, BLOCK), 0.0, tl.float32)
    for rank in range(ranks):
        left = tl.load(a + rank * tokens + i, mask=i < tokens, other=0.0).to(tl.float32)
        right = tl.load(b + rank * tokens + where, mask=inside, other=0.0).to(tl.float32)
        sums += left * right
    m = sums.to(kind)
    masks += head * (tokens * padded)
    tl.store(masks + i * padded + j, m, mask=(i < tokens) & (j < padded))
    tl.store(masks + heads * (tokens * padded) + j * padded + i, m, mask=(j < tokens) & (i < padded))


@jit
def summed(where, inside, how_many, distance, PARTS: tl.constexpr):
    """A tile summed over all parts. Several parts are read at a time, because one after the other takes long."""
    part = tl.arange(0, PARTS)[:, None, None]
    sums = tl.full((PARTS, inside.shape[0], inside.shape[1]), 0.0, tl.float32)
    for start in range(0, how_many, PARTS):
        these = (start + part < how_many) & inside[None, :, :]
        sums += tl.load(where[None, :, :] + (start + part) * distance, mask=these, other=0.0)
    return tl.sum(sums, 0)


@jit
def rows_gradient(
    parts, b, da, block, how_many,
    distance: tl.constexpr, ranks: tl.constexpr, tokens: tl.constexpr, padded: tl.constexpr, prefix: tl.constexpr,
    shift: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """da[ρ, i] of a few rows i"""
    i = block * ROWS + tl.arange(0, ROWS)
    row, position = i[:, None], tl.arange(0, TOKENS)[None, :]
    g = summed(parts + row * padded + position, (row < tokens) & (position < padded), how_many, distance, PARTS)
    where = column(row, position, prefix, shift)
    for rank in range(tl.program_id(2), ranks, tl.num_programs(2)):
        right = tl.load(b + rank * tokens + where, mask=position < tokens, other=0.0).to(tl.float32)
        tl.store(da + rank * tokens + i, tl.sum(g * right, 1).to(da.dtype.element_ty), mask=i < tokens)


@jit
def columns_gradient(
    parts, a, db, block, how_many,
    distance: tl.constexpr, ranks: tl.constexpr, tokens: tl.constexpr, padded: tl.constexpr, prefix: tl.constexpr,
    shift: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """db[ρ, c] of a few columns c"""
    c = block * COLUMNS + tl.arange(0, COLUMNS)
    row, position = tl.arange(0, TOKENS)[:, None], c[None, :]
    inside = (row < tokens) & (position < padded)
    where = parts + row * padded + position
    if shift == 0:
        g = summed(where, inside, how_many, distance, PARTS)
    else:  # a column of W may be read for the prefix, and once more for the block
        g = summed(where, inside & ((row < prefix) | (position < prefix)), how_many, distance, PARTS)
        g += summed(where + shift, inside & (row >= prefix) & (position + shift < tokens), how_many, distance, PARTS)
    for rank in range(tl.program_id(2), ranks, tl.num_programs(2)):
        left = tl.load(a + rank * tokens + row, mask=row < tokens, other=0.0).to(tl.float32)
        tl.store(db + rank * tokens + c, tl.sum(g * left, 0).to(db.dtype.element_ty), mask=c < tokens)


@jit
def factors_program(
    parts, a, b, da, db, how_many,
    ranks: tl.constexpr, heads: tl.constexpr, tokens: tl.constexpr, padded: tl.constexpr, prefix: tl.constexpr,
    shift: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS_OF_ROWS: tl.constexpr,
    PARTS_OF_COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradients of both factors of a head, in one launch: first the programs with rows, then those with columns"""
    blocks: tl.constexpr = (tokens + ROWS - 1) // ROWS
    distance: tl.constexpr = heads * tokens * padded  # from part to part
    block, head = tl.program_id(0), tl.program_id(1)
    parts += head * (tokens * padded)
    own = head * (ranks * tokens)
    if block < blocks:
        rows_gradient(
            parts, b + own, da + own, block, how_many, distance, ranks, tokens, padded, prefix, shift, TOKENS, ROWS,
            PARTS_OF_ROWS,
        )  # fmt: skip
    else:
        columns_gradient(
            parts, a + own, db + own, block - blocks, how_many, distance, ranks, tokens, padded, prefix, shift, TOKENS,
            COLUMNS, PARTS_OF_COLUMNS,
        )  # fmt: skip
