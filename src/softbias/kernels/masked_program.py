"""Triton code of masked attention; see `masked` for the formulas, and `factors_program` for the mask itself.

Forward and backward: one program per head of an image, so that the norm of the whole map is known before anything is written.
The gradient of the mask is a sum over images: there, a program owns a tile of it and walks over a part of the batch. Tokens
past the end are read as zeros, which makes their part of Y, of the norm and of every gradient zero. The rows of M, of its
transpose and of its gradient are padded with zeros to a multiple of 16, which lets several entries be read at once.
"""

from softbias.kernels.factors_program import rolled
from softbias.kernels.language import jit, tl


@jit
def forward_program(
    qkv,
    masks,
    out,
    norms,
    qkv_image,
    qkv_token,
    qkv_part,
    qkv_head,
    out_image,
    out_token,
    out_head,
    scale,
    heads: tl.constexpr,
    tokens: tl.constexpr,
    padded: tl.constexpr,
    channels: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """All queries i at once, walking over blocks of keys j."""
    image = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    kind: tl.constexpr = qkv.dtype.element_ty
    scale = tl.cast(scale, tl.float32)  # torch.compile hands over a double
    i = tl.arange(0, TOKENS)
    c = tl.arange(0, CHANNELS)
    inside = (i[:, None] < tokens) & (c[None, :] < channels)
    qkv += image * qkv_image + head * qkv_head
    mask = masks + head * (tokens * padded)
    queries = tl.load(qkv + i[:, None] * qkv_token + c[None, :], mask=inside, other=0.0)
    squares = tl.full((TOKENS,), 0.0, tl.float32)
    sums = tl.full((TOKENS, CHANNELS), 0.0, tl.float32)
    for start in range(0, tokens, BLOCK):
        j = start + tl.arange(0, BLOCK)
        within = (j[:, None] < tokens) & (c[None, :] < channels)
        keys = tl.load(qkv + qkv_part + j[:, None] * qkv_token + c[None, :], mask=within, other=0.0)
        values = tl.load(qkv + 2 * qkv_part + j[:, None] * qkv_token + c[None, :], mask=within, other=0.0)
        m = tl.load(mask + i[:, None] * padded + j[None, :], mask=(i[:, None] < tokens) & (j[None, :] < padded), other=0.0)
        y = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale * m.to(tl.float32)
        squares += tl.sum(y * y, 1)
        sums = tl.dot(y.to(kind), values, sums, input_precision="ieee")
    norm = tl.sqrt(tl.sum(squares, 0))
    tl.store(norms + tl.program_id(0), norm)
    where = out + image * out_image + head * out_head + i[:, None] * out_token + c[None, :]
    tl.store(where, (sums * (1.0 / (norm + 1e-8))).to(kind), mask=inside)


@jit
def backward_program(
    qkv,
    masks,
    out,
    norms,
    dout,
    dqkv,
    ratios,
    qkv_image,
    qkv_token,
    qkv_part,
    qkv_head,
    out_image,
    out_token,
    out_head,
    dout_image,
    dout_token,
    dout_head,
    dqkv_image,
    dqkv_token,
    dqkv_part,
    dqkv_head,
    scale,
    heads: tl.constexpr,
    tokens: tl.constexpr,
    padded: tl.constexpr,
    channels: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """All keys j at once, walking over blocks of queries i. Maps are kept transposed, (j, i), as `masks[1]` is: the products
    that sum over i then take them from registers. Also writes ratios[b, h] = ⟨dO, O⟩ / ‖Y‖ for the gradient of the mask."""
    image = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    kind: tl.constexpr = qkv.dtype.element_ty
    scale = tl.cast(scale, tl.float32)  # torch.compile hands over a double
    j = tl.arange(0, TOKENS)
    c = tl.arange(0, CHANNELS)
    inside = (j[:, None] < tokens) & (c[None, :] < channels)
    qkv += image * qkv_image + head * qkv_head
    dqkv += image * dqkv_image + head * dqkv_head
    mask = masks + (heads + head) * (tokens * padded)
    out += image * out_image + head * out_head
    dout += image * dout_image + head * dout_head
    products = tl.full((BLOCK, CHANNELS), 0.0, tl.float32)
    for start in range(0, tokens, BLOCK):
        i = start + tl.arange(0, BLOCK)
        within = (i[:, None] < tokens) & (c[None, :] < channels)
        o = tl.load(out + i[:, None] * out_token + c[None, :], mask=within, other=0.0)
        do = tl.load(dout + i[:, None] * dout_token + c[None, :], mask=within, other=0.0)
        products += o.to(tl.float32) * do.to(tl.float32)
    norm = tl.load(norms + tl.program_id(0))
    ratio = tl.sum(tl.sum(products, 1), 0) / tl.where(norm > 0.0, norm, 1.0)  # an empty map has no gradient, not NaN
    tl.store(ratios + tl.program_id(0), ratio)
    share = 1.0 / (norm + 1e-8)
    keys = tl.load(qkv + qkv_part + j[:, None] * qkv_token + c[None, :], mask=inside, other=0.0)
    values = tl.load(qkv + 2 * qkv_part + j[:, None] * qkv_token + c[None, :], mask=inside, other=0.0)
    dk = tl.full((TOKENS, CHANNELS), 0.0, tl.float32)
    dv = tl.full((TOKENS, CHANNELS), 0.0, tl.float32)
    for start in range(0, tokens, BLOCK):
        i = start + tl.arange(0, BLOCK)
        within = (i[:, None] < tokens) & (c[None, :] < channels)
        queries = tl.load(qkv + i[:, None] * qkv_token + c[None, :], mask=within, other=0.0)
        do = tl.load(dout + i[:, None] * dout_token + c[None, :], mask=within, other=0.0)
        m = tl.load(mask + j[:, None] * padded + i[None, :], mask=(j[:, None] < tokens) & (i[None, :] < padded), other=0.0)
        m = m.to(tl.float32)
        y = tl.dot(keys, tl.trans(queries), input_precision="ieee") * scale * m
        dv = tl.dot(y.to(kind), do, dv, input_precision="ieee")
        dy = tl.dot(values, tl.trans(do), input_precision="ieee") - ratio * y
        ds = (dy * m * (share * scale)).to(kind)
        dk = tl.dot(ds, queries, dk, input_precision="ieee")
        dq = tl.dot(tl.trans(keys), ds, input_precision="ieee")  # (channels, i)
        where = dqkv + i[None, :] * dqkv_token + c[:, None]
        tl.store(where, dq.to(kind), mask=(i[None, :] < tokens) & (c[:, None] < channels))
    tl.store(dqkv + dqkv_part + j[:, None] * dqkv_token + c[None, :], dk.to(kind), mask=inside)
    tl.store(dqkv + 2 * dqkv_part + j[:, None] * dqkv_token + c[None, :], (dv * share).to(kind), mask=inside)


@jit
def mask_program(
    qkv,
    masks,
    norms,
    ratios,
    dout,
    parts,
    qkv_image,
    qkv_token,
    qkv_part,
    qkv_head,
    dout_image,
    dout_token,
    dout_head,
    scale,
    images,
    share_of_batch,
    heads: tl.constexpr,
    tokens: tl.constexpr,
    padded: tl.constexpr,
    channels: tl.constexpr,
    prefix: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """parts[part, h, i, rolled j] = Σ_b S_ij ∂l/∂Y_ij over the images of that part of the batch; tiles are (j, i), the longer
    side first, as the matrix units like it"""
    across: tl.constexpr = (tokens + COLUMNS - 1) // COLUMNS
    head = tl.program_id(1)
    scale = tl.cast(scale, tl.float32)  # torch.compile hands over a double
    i = (tl.program_id(0) // across) * ROWS + tl.arange(0, ROWS)
    j = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
    c = tl.arange(0, CHANNELS)
    of_rows = (i[:, None] < tokens) & (c[None, :] < channels)
    of_columns = (j[:, None] < tokens) & (c[None, :] < channels)
    m = tl.load(
        masks + (heads + head) * (tokens * padded) + j[:, None] * padded + i[None, :],
        mask=(j[:, None] < tokens) & (i[None, :] < padded),
        other=0.0,
    ).to(tl.float32)
    sums = tl.full((COLUMNS, ROWS), 0.0, tl.float32)
    first = tl.program_id(2).to(tl.int64) * share_of_batch
    for step in range(0, tl.minimum(share_of_batch, images - first)):
        image = first + step
        own = qkv + image * qkv_image + head * qkv_head
        of_out = dout + image * dout_image + head * dout_head
        queries = tl.load(own + i[:, None] * qkv_token + c[None, :], mask=of_rows, other=0.0)
        keys = tl.load(own + qkv_part + j[:, None] * qkv_token + c[None, :], mask=of_columns, other=0.0)
        values = tl.load(own + 2 * qkv_part + j[:, None] * qkv_token + c[None, :], mask=of_columns, other=0.0)
        do = tl.load(of_out + i[:, None] * dout_token + c[None, :], mask=of_rows, other=0.0)
        ratio = tl.load(ratios + image * heads + head)
        share = 1.0 / (tl.load(norms + image * heads + head) + 1e-8)
        s = tl.dot(keys, tl.trans(queries), input_precision="ieee") * scale
        dy = tl.dot(values, tl.trans(do), input_precision="ieee") - ratio * (s * m)
        sums += s * dy * share
    where = parts + (tl.program_id(2) * heads + head) * (tokens * padded)
    i, j = i[:, None], j[None, :]
    tl.store(where + i * padded + rolled(i, j, tokens, prefix), tl.trans(sums), mask=(i < tokens) & (j < padded))
