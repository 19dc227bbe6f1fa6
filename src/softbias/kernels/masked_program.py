"""Triton code of masked attention; see `masked` for the formulas, and `factors_program` for the mask itself.

Forward and backward take one program per head of an image, so that the norm of the whole map is known before anything is
written. The gradient of the mask is a sum over images: there, a program owns a tile of it and walks over a part of the batch.
Tokens past the end are read as zeros, which makes their part of Y, of the norm and of every gradient zero. The rows of M, of
its transpose and of its gradient are padded with zeros to a multiple of 16, which lets several entries be read at once.

For short sequences, backward takes one program per head and share of the batch: it takes one image after the other, reads the
next meanwhile, and keeps its part of ∂l/∂M. As in `short_seq_program`, the tile holds the tokens from BESIDE on, and token 0
stands beside it where BESIDE is one. Names that end in `_0` belong to token 0: `y_0` is the column of Y for its key, `z` is its
row, and `z_0` is their common entry; so are `m_0`, `n` and `n_0` of the mask, and `s_0`, `r` and `r_0` of the scores.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# The arguments of Triton code have Triton's own types.

from softbias.kernels.factors_program import rolled
from softbias.kernels.short_seq_program import tile, vector
from softbias.kernels.triton_api import jit, tl


@jit
def forward_program(
    qkv, masks, out, norms,
    qkv_image, qkv_token, qkv_part, qkv_head, out_image, out_token, out_head, scale,
    heads: tl.constexpr, tokens: tl.constexpr, padded: tl.constexpr, channels: tl.constexpr, TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """O and n: all queries i at once, walking over blocks of keys j."""
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
    qkv, masks, out, norms, dout, dqkv, ratios,
    qkv_image, qkv_token, qkv_part, qkv_head, out_image, out_token, out_head, dout_image, dout_token, dout_head, dqkv_image,
    dqkv_token, dqkv_part, dqkv_head, scale,
    heads: tl.constexpr, tokens: tl.constexpr, padded: tl.constexpr, channels: tl.constexpr, TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients of queries, keys and values: all keys j at once, walking over blocks of queries i. Maps are kept
    transposed, (j, i), as `masks[1]` is: the products that sum over i then take them from registers. It also writes the
    ratios[b, h] = ⟨dO, O⟩ / ‖Y‖ for the gradient of the mask."""
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
    qkv, masks, norms, ratios, dout, parts,
    qkv_image, qkv_token, qkv_part, qkv_head, dout_image, dout_token, dout_head, scale, images, share_of_batch,
    heads: tl.constexpr, tokens: tl.constexpr, padded: tl.constexpr, channels: tl.constexpr, prefix: tl.constexpr,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """parts[part, h, i, rolled j] = Σ_b S_ij ∂l/∂Y_ij over the images of that part of the batch; tiles are (j, i), the longer
    side first, which suits the matrix units"""
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


@jit
def mask_of(mask, tokens: tl.constexpr, padded: tl.constexpr, BESIDE: tl.constexpr, TOKENS: tl.constexpr):
    """M as the tile, the column and the row of token 0, and their common entry"""
    i = BESIDE + tl.arange(0, TOKENS)
    m = tl.load(mask + i[:, None] * padded + i[None, :], mask=(i[:, None] < tokens) & (i[None, :] < padded), other=0.0)
    m_0 = tl.load(mask + i * padded, mask=i < tokens, other=0.0)
    n = tl.load(mask + i, mask=i < padded, other=0.0)
    return m, m_0, n, tl.load(mask).to(tl.float32)


@jit
def short_seq_backward_program(
    qkv, masks, out, norms, dout, dqkv, parts,
    qkv_image, qkv_token, qkv_part, qkv_head, out_image, out_token, out_head, dout_image, dout_token, dout_head, dqkv_image,
    dqkv_token, dqkv_part, dqkv_head, scale, images, share_of_batch,
    heads: tl.constexpr, tokens: tl.constexpr, padded: tl.constexpr, channels: tl.constexpr, prefix: tl.constexpr,
    BESIDE: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The gradients of queries, keys and values; and parts[part, h, i, rolled j] = Σ_b S_ij ∂l/∂Y_ij over this share"""
    head = tl.program_id(0)
    kind: tl.constexpr = qkv.dtype.element_ty
    scale = tl.cast(scale, tl.float32)  # torch.compile hands over a double
    m, m_0, n, n_0 = mask_of(masks + head * (tokens * padded), tokens, padded, BESIDE, TOKENS)
    i = (BESIDE + tl.arange(0, TOKENS))[:, None]
    c = tl.arange(0, CHANNELS)
    inside = (i < tokens) & (c[None, :] < channels)
    dm = tl.full((TOKENS, TOKENS), 0.0, tl.float32)
    dm_0 = tl.full((TOKENS,), 0.0, tl.float32)
    dn = tl.full((TOKENS,), 0.0, tl.float32)
    dn_0 = 0.0
    first = tl.program_id(1).to(tl.int64) * share_of_batch
    for step in tl.range(0, tl.minimum(share_of_batch, images - first), disable_licm=True):
        own = qkv + (first + step) * qkv_image + head * qkv_head + c
        of_out = dout + (first + step) * dout_image + head * dout_head + c
        to = dqkv + (first + step) * dqkv_image + head * dqkv_head + c
        q = tile(own, i, qkv_token, inside)
        k = tile(own + qkv_part, i, qkv_token, inside)
        v = tile(own + 2 * qkv_part, i, qkv_token, inside)
        do = tile(of_out, i, dout_token, inside)
        given = out + (first + step) * out_image + head * out_head + c
        o = tile(given, i, out_token, inside)
        products = tl.sum(tl.sum(o.to(tl.float32) * do.to(tl.float32), 1), 0)
        norm = tl.load(norms + (first + step) * heads + head)
        share = 1.0 / (norm + 1e-8)
        if BESIDE:
            do_0 = vector(of_out, c, channels)
            products += tl.sum(vector(given, c, channels) * do_0, 0)
        ratio = products / tl.where(norm > 0.0, norm, 1.0)  # an empty map has no gradient, not NaN
        if BESIDE:  # first the terms that do not need the tile
            q_0 = vector(own, c, channels)
            k_0 = vector(own + qkv_part, c, channels)
            v_0 = vector(own + 2 * qkv_part, c, channels)
            s_0 = tl.sum(q.to(tl.float32) * k_0[None, :], 1) * scale
            r, r_0 = tl.sum(k.to(tl.float32) * q_0[None, :], 1) * scale, tl.sum(q_0 * k_0, 0) * scale
            y_0, z, z_0 = s_0 * m_0, r * n, r_0 * n_0
            dy_0 = (tl.sum(do.to(tl.float32) * v_0[None, :], 1) - ratio * y_0) * share
            dz = (tl.sum(v.to(tl.float32) * do_0[None, :], 1) - ratio * z) * share
            dz_0 = (tl.sum(do_0 * v_0, 0) - ratio * z_0) * share
            dm_0, dn, dn_0 = dm_0 + s_0 * dy_0, dn + r * dz, dn_0 + r_0 * dz_0
            ds_0, dr, dr_0 = dy_0 * m_0 * scale, dz * n * scale, dz_0 * n_0 * scale
            dq_0 = tl.sum(dr[:, None] * k.to(tl.float32), 0) + dr_0 * k_0
            dk_0 = tl.sum(ds_0[:, None] * q.to(tl.float32), 0) + dr_0 * q_0
            dv_0 = tl.sum(y_0[:, None] * do.to(tl.float32), 0) + z_0 * do_0
            tl.store(to, dq_0.to(kind), mask=c < channels)
            tl.store(to + dqkv_part, dk_0.to(kind), mask=c < channels)
            tl.store(to + 2 * dqkv_part, (dv_0 * share).to(kind), mask=c < channels)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        y = s * m.to(tl.float32)
        dv = tl.dot(tl.trans((y * share).to(kind)), do, input_precision="ieee")
        if BESIDE:  # read once more, from the cache
            do_0 = tl.load(of_out, mask=c < channels, other=0.0, cache_modifier=".ca").to(tl.float32)
            dv += (z * share)[:, None] * do_0[None, :]
        tl.store((to + 2 * dqkv_part)[None, :] + i * dqkv_token, dv.to(kind), mask=inside)
        dy = (tl.dot(do, tl.trans(v), input_precision="ieee") - ratio * y) * share
        dm += s * dy
        ds = (dy * m.to(tl.float32) * scale).to(kind)
        dq = tl.dot(ds, k, input_precision="ieee")
        if BESIDE:
            k_0 = tl.load(own + qkv_part, mask=c < channels, other=0.0, cache_modifier=".ca").to(tl.float32)
            dq += ds_0[:, None] * k_0[None, :]
        tl.store(to[None, :] + i * dqkv_token, dq.to(kind), mask=inside)
        dk = tl.dot(tl.trans(ds), q, input_precision="ieee")
        if BESIDE:
            q_0 = tl.load(own, mask=c < channels, other=0.0, cache_modifier=".ca").to(tl.float32)
            dk += dr[:, None] * q_0[None, :]
        tl.store((to + dqkv_part)[None, :] + i * dqkv_token, dk.to(kind), mask=inside)
    parts += (tl.program_id(1) * heads + head) * (tokens * padded)
    j = BESIDE + tl.arange(0, TOKENS)
    position = rolled(i, j[None, :], tokens, prefix)
    tl.store(parts + i * padded + position, dm, mask=(i < tokens) & (j[None, :] < padded))
    if BESIDE:
        tl.store(parts + j * padded + rolled(j, 0 * j, tokens, prefix), dm_0, mask=j < tokens)
        tl.store(parts + rolled(0 * j, j, tokens, prefix), dn, mask=j < tokens)
        tl.store(parts, dn_0)
        past = tokens + tl.arange(0, 16)
        nothing = tl.full((TOKENS, 16), 0.0, tl.float32)
        tl.store(parts + i * padded + past[None, :], nothing, mask=(i < tokens) & (past[None, :] < padded))
        tl.store(parts + past, tl.full((16,), 0.0, tl.float32), mask=past < padded)
