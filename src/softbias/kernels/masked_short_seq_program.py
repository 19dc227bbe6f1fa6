"""Triton code of the backward of masked attention among few tokens; see `masked` for the formulas.

One program per head and share of the batch: it takes one image after the other, reads the next meanwhile, and keeps its part
of ∂l/∂M. As in `few`, the tile holds the tokens from BESIDE on, and token 0 stands beside it where BESIDE is one. Names that
end in `_0` belong to token 0: `y_0` is the column of Y for its key, `z` is its row, and `z_0` is where both meet; so are `m_0`,
`n` and `n_0` of the mask, and `s_0`, `r` and `r_0` of the scores. Tokens past the end are read as zeros, which makes their part
of every gradient zero.
"""

from softbias.kernels.factors_program import rolled
from softbias.kernels.language import jit, tl
from softbias.kernels.short_seq_program import tile, vector


@jit
def mask_of(mask, tokens: tl.constexpr, padded: tl.constexpr, BESIDE: tl.constexpr, TOKENS: tl.constexpr):
    """M as the tile, the column and the row of token 0, and where both meet"""
    i = BESIDE + tl.arange(0, TOKENS)
    m = tl.load(mask + i[:, None] * padded + i[None, :], mask=(i[:, None] < tokens) & (i[None, :] < padded), other=0.0)
    m_0 = tl.load(mask + i * padded, mask=i < tokens, other=0.0)
    n = tl.load(mask + i, mask=i < padded, other=0.0)
    return m, m_0, n, tl.load(mask).to(tl.float32)


@jit
def backward_program(
    qkv,
    masks,
    out,
    norms,
    dout,
    dqkv,
    parts,
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
    images,
    share_of_batch,
    heads: tl.constexpr,
    tokens: tl.constexpr,
    padded: tl.constexpr,
    channels: tl.constexpr,
    prefix: tl.constexpr,
    BESIDE: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
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
        if BESIDE:  # first what the tile is not needed for
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
    place = rolled(i, j[None, :], tokens, prefix)
    tl.store(parts + i * padded + place, dm, mask=(i < tokens) & (j[None, :] < padded))
    if BESIDE:
        tl.store(parts + j * padded + rolled(j, 0 * j, tokens, prefix), dm_0, mask=j < tokens)
        tl.store(parts + rolled(0 * j, j, tokens, prefix), dn, mask=j < tokens)
        tl.store(parts, dn_0)
        past = tokens + tl.arange(0, 16)
        nothing = tl.full((TOKENS, 16), 0.0, tl.float32)
        tl.store(parts + i * padded + past[None, :], nothing, mask=(i < tokens) & (past[None, :] < padded))
        tl.store(parts + past, tl.full((16,), 0.0, tl.float32), mask=past < padded)
