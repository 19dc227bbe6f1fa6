"""Triton code of attention with short sequences, by content and gated; see `short_seq` for the formulas.

There is one program per head of an image. The tile holds the tokens from BESIDE on; token 0 stands beside it where BESIDE is
one. Names that end in `_0` belong to token 0: `p_0` is the column of P for its key, `z` is its row, and `z_0` is their common
entry. Tokens past the end are read as zeros; their columns of P are zero, and so are all gradients of their rows.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# The arguments of Triton code have Triton's own types.

from softbias.kernels.gated_program import position_softmax, sigmoid, total
from softbias.kernels.triton_api import jit, tl


@jit
def tile(where, i, token, inside):
    """The tokens i, each a row of channels; `token` is the distance between rows"""
    return tl.load(where[None, :] + i * token, mask=inside, other=0.0)


@jit
def vector(where, c, channels):
    """The channels of one token, in float32"""
    return tl.load(where, mask=c < channels, other=0.0).to(tl.float32)


@jit
def weights(q, k, s_0, scale, tokens: tl.constexpr, BESIDE: tl.constexpr, TOKENS: tl.constexpr):
    """The rows of the tile: P, and its column of token 0, in float32"""
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    s = tl.where((BESIDE + tl.arange(0, TOKENS))[None, :] < tokens, s, float("-inf"))
    top = tl.max(s, 1)
    if BESIDE:
        top = tl.maximum(top, s_0)
        p_0 = tl.exp(s_0 - top)
    else:
        p_0 = tl.full((TOKENS,), 0.0, tl.float32)
    p = tl.exp(s - top[:, None])
    total = tl.sum(p, 1) + p_0
    return p / total[:, None], p_0 / total


@jit
def row(z, z_0):
    """The row of token 0: softmax of the scores z and z_0"""
    top = tl.maximum(tl.max(z, 0), z_0)
    z, z_0 = tl.exp(z - top), tl.exp(z_0 - top)
    total = tl.sum(z, 0) + z_0
    return z / total, z_0 / total


@jit
def forward_program(
    qkv, out,
    qkv_image, qkv_token, qkv_part, qkv_head, out_image, out_token, out_head, scale,
    heads: tl.constexpr, tokens: tl.constexpr, channels: tl.constexpr, BESIDE: tl.constexpr, TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """out = P V"""
    image = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    kind: tl.constexpr = qkv.dtype.element_ty
    scale = tl.cast(scale, tl.float32)  # torch.compile hands over a double
    i = (BESIDE + tl.arange(0, TOKENS))[:, None]
    c = tl.arange(0, CHANNELS)
    inside = (i < tokens) & (c[None, :] < channels)
    qkv += image * qkv_image + head * qkv_head + c
    out += image * out_image + head * out_head + c
    q = tile(qkv, i, qkv_token, inside)
    k = tile(qkv + qkv_part, i, qkv_token, inside)
    v = tile(qkv + 2 * qkv_part, i, qkv_token, inside)
    s_0 = tl.full((TOKENS,), 0.0, tl.float32)
    if BESIDE:
        q_0 = vector(qkv, c, channels)
        k_0 = vector(qkv + qkv_part, c, channels)
        v_0 = vector(qkv + 2 * qkv_part, c, channels)
        s_0 = tl.sum(q.to(tl.float32) * k_0[None, :], 1) * scale
        z, z_0 = row(tl.sum(k.to(tl.float32) * q_0[None, :], 1) * scale, tl.sum(q_0 * k_0, 0) * scale)
        tl.store(out, (tl.sum(z[:, None] * v.to(tl.float32), 0) + z_0 * v_0).to(kind), mask=c < channels)
    p, p_0 = weights(q, k, s_0, scale, tokens, BESIDE, TOKENS)
    o = tl.dot(p.to(kind), v, input_precision="ieee")
    if BESIDE:
        o += p_0[:, None] * v_0[None, :]
    tl.store(out[None, :] + i * out_token, o.to(kind), mask=inside)


@jit
def backward_program(
    qkv, dout, dqkv,
    qkv_image, qkv_token, qkv_part, qkv_head, dout_image, dout_token, dout_head, dqkv_image, dqkv_token, dqkv_part, dqkv_head,
    scale,
    heads: tl.constexpr, tokens: tl.constexpr, channels: tl.constexpr, BESIDE: tl.constexpr, TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """The gradients of queries, keys and values"""
    image = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    kind: tl.constexpr = qkv.dtype.element_ty
    scale = tl.cast(scale, tl.float32)  # torch.compile hands over a double
    i = (BESIDE + tl.arange(0, TOKENS))[:, None]
    c = tl.arange(0, CHANNELS)
    inside = (i < tokens) & (c[None, :] < channels)
    qkv += image * qkv_image + head * qkv_head + c
    dout += image * dout_image + head * dout_head + c
    dqkv += image * dqkv_image + head * dqkv_head + c
    q = tile(qkv, i, qkv_token, inside)
    k = tile(qkv + qkv_part, i, qkv_token, inside)
    v = tile(qkv + 2 * qkv_part, i, qkv_token, inside)
    do = tile(dout, i, dout_token, inside)
    s_0 = tl.full((TOKENS,), 0.0, tl.float32)
    if BESIDE:  # first the terms that follow from the inputs alone, so that the inputs need not stay in registers
        q_0 = vector(qkv, c, channels)
        k_0 = vector(qkv + qkv_part, c, channels)
        v_0 = vector(qkv + 2 * qkv_part, c, channels)
        do_0 = vector(dout, c, channels)
        s_0 = tl.sum(q.to(tl.float32) * k_0[None, :], 1) * scale
        dp_0 = tl.sum(do.to(tl.float32) * v_0[None, :], 1)
        z, z_0 = row(tl.sum(k.to(tl.float32) * q_0[None, :], 1) * scale, tl.sum(q_0 * k_0, 0) * scale)
        dz, dz_0 = tl.sum(v.to(tl.float32) * do_0[None, :], 1), tl.sum(do_0 * v_0, 0)
        t_0 = tl.sum(z * dz, 0) + z_0 * dz_0
        dz, dz_0 = z * (dz - t_0) * scale, z_0 * (dz_0 - t_0) * scale
        dq_0 = tl.sum(dz[:, None] * k.to(tl.float32), 0) + dz_0 * k_0
        tl.store(dqkv, dq_0.to(kind), mask=c < channels)
    p, p_0 = weights(q, k, s_0, scale, tokens, BESIDE, TOKENS)
    dv = tl.dot(tl.trans(p.to(kind)), do, input_precision="ieee")
    if BESIDE:
        dv += z[:, None] * do_0[None, :]
    tl.store((dqkv + 2 * dqkv_part)[None, :] + i * dqkv_token, dv.to(kind), mask=inside)
    dp = tl.dot(do, tl.trans(v), input_precision="ieee")
    t = tl.sum(p * dp, 1)
    if BESIDE:
        t += p_0 * dp_0
    ds = (p * (dp - t[:, None]) * scale).to(kind)
    dq = tl.dot(ds, k, input_precision="ieee")
    if BESIDE:
        ds_0 = p_0 * (dp_0 - t) * scale
        dq += ds_0[:, None] * k_0[None, :]
    tl.store(dqkv[None, :] + i * dqkv_token, dq.to(kind), mask=inside)
    dk = tl.dot(tl.trans(ds), q, input_precision="ieee")
    if BESIDE:
        dk += dz[:, None] * q_0[None, :]
    tl.store((dqkv + dqkv_part)[None, :] + i * dqkv_token, dk.to(kind), mask=inside)
    if BESIDE:  # read once more, from the cache
        do = tl.load(dout[None, :] + i * dout_token, mask=inside, other=0.0, cache_modifier=".ca").to(tl.float32)
        tl.store(dqkv + 2 * dqkv_part, (tl.sum(p_0[:, None] * do, 0) + z_0 * do_0).to(kind), mask=c < channels)
        q = tl.load(qkv[None, :] + i * qkv_token, mask=inside, other=0.0, cache_modifier=".ca").to(tl.float32)
        tl.store(dqkv + dqkv_part, (tl.sum(ds_0[:, None] * q, 0) + dz_0 * q_0).to(kind), mask=c < channels)


@jit
def gated_forward_program(
    qkv, weight, gate, out,
    qkv_image, qkv_token, qkv_part, qkv_head, out_image, out_token, out_head, scale,
    heads: tl.constexpr, tokens: tl.constexpr, channels: tl.constexpr, width: tl.constexpr, TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """out = ((1 − g) A + g P) V"""
    image = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    kind: tl.constexpr = qkv.dtype.element_ty
    scale = tl.cast(scale, tl.float32)  # torch.compile hands over a double
    j = tl.arange(0, TOKENS)
    i, c = j[:, None], tl.arange(0, CHANNELS)
    inside = (i < tokens) & (c[None, :] < channels)
    qkv += image * qkv_image + head * qkv_head + c
    q = tile(qkv, i, qkv_token, inside)
    k = tile(qkv + qkv_part, i, qkv_token, inside)
    v = tile(qkv + 2 * qkv_part, i, qkv_token, inside)
    x = tl.load(gate + head).to(tl.float32)
    a, _ = weights(q, k, tl.full((TOKENS,), 0.0, tl.float32), scale, tokens, 0, TOKENS)
    p, _, _ = position_softmax(weight, head, j, j, tokens, width)
    o = tl.dot((sigmoid(-x) * a + sigmoid(x) * p).to(kind), v, input_precision="ieee")
    where = out + image * out_image + head * out_head + i * out_token + c[None, :]
    tl.store(where, o.to(kind), mask=inside)


@jit
def gated_backward_program(
    qkv, weight, gate, dout, dqkv, sums,
    qkv_image, qkv_token, qkv_part, qkv_head, dout_image, dout_token, dout_head, dqkv_image, dqkv_token, dqkv_part, dqkv_head,
    scale, images,
    heads: tl.constexpr, tokens: tl.constexpr, channels: tl.constexpr, width: tl.constexpr, TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """The gradients of queries, keys and values; and this image's share in those of gate and weight, sums[·, h, b]"""
    image = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    kind: tl.constexpr = qkv.dtype.element_ty
    scale = tl.cast(scale, tl.float32)  # torch.compile hands over a double
    j = tl.arange(0, TOKENS)
    i, c = j[:, None], tl.arange(0, CHANNELS)
    inside = (i < tokens) & (c[None, :] < channels)
    qkv += image * qkv_image + head * qkv_head + c
    dout += image * dout_image + head * dout_head + c
    dqkv += image * dqkv_image + head * dqkv_head + c
    q = tile(qkv, i, qkv_token, inside)
    k = tile(qkv + qkv_part, i, qkv_token, inside)
    v = tile(qkv + 2 * qkv_part, i, qkv_token, inside)
    do = tile(dout, i, dout_token, inside)
    x = tl.load(gate + head).to(tl.float32)
    dm = tl.dot(do, tl.trans(v), input_precision="ieee")  # the gradient of the mixed map
    p, across, down = position_softmax(weight, head, j, j, tokens, width)
    of_rows = tl.sum(p * dm, 1)
    e = p * (dm - of_rows[:, None])
    sums += head * images + image
    tl.store(sums + heads * images, tl.sum(tl.sum(e * across, 1), 0))
    tl.store(sums + 2 * heads * images, tl.sum(tl.sum(e * down, 1), 0))
    tl.store(sums + 3 * heads * images, tl.sum(tl.sum(e * (across * across + down * down), 1), 0))
    a, _ = weights(q, k, tl.full((TOKENS,), 0.0, tl.float32), scale, tokens, 0, TOKENS)
    mixed = (sigmoid(-x) * a + sigmoid(x) * p).to(kind)
    dv = tl.dot(tl.trans(mixed), do, input_precision="ieee")
    tl.store((dqkv + 2 * dqkv_part)[None, :] + i * dqkv_token, dv.to(kind), mask=inside)
    t = tl.sum(a * dm, 1)
    tl.store(sums, tl.sum(of_rows - t, 0))
    ds = (a * (dm - t[:, None]) * (sigmoid(-x) * scale)).to(kind)
    dq = tl.dot(ds, k, input_precision="ieee")
    tl.store(dqkv[None, :] + i * dqkv_token, dq.to(kind), mask=inside)
    dk = tl.dot(tl.trans(ds), q, input_precision="ieee")
    tl.store((dqkv + dqkv_part)[None, :] + i * dqkv_token, dk.to(kind), mask=inside)


@jit
def gated_parameters_program(sums, gate, dweight, dbias, dgate, images, heads: tl.constexpr, BLOCK: tl.constexpr):
    """One head's gradients of weight, bias (zero) and gate, from the shares of the images"""
    head = tl.program_id(0)
    x = tl.load(gate + head).to(tl.float32)
    sums += head * images
    tl.store(dgate + head, (sigmoid(x) * sigmoid(-x) * total(sums, images, BLOCK)).to(dgate.dtype.element_ty))
    tl.store(dbias + head, tl.full((), 0.0, dbias.dtype.element_ty))
    for number in tl.static_range(3):
        share = total(sums + (number + 1) * heads * images, images, BLOCK)
        tl.store(dweight + head * 3 + number, (sigmoid(x) * share).to(dweight.dtype.element_ty))
