"""Triton code of gated attention among few tokens; see `gated_few` for the formulas. One program per head of an image."""

from softbias.kernels.gated_program import place_softmax, sigmoid, total
from softbias.kernels.language import jit, tl
from softbias.kernels.short_seq_program import tile, weights


@jit
def forward_program(
    qkv,
    weight,
    gate,
    out,
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
    channels: tl.constexpr,
    width: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
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
    p, _, _ = place_softmax(weight, head, j, j, tokens, width)
    o = tl.dot((sigmoid(-x) * a + sigmoid(x) * p).to(kind), v, input_precision="ieee")
    where = out + image * out_image + head * out_head + i * out_token + c[None, :]
    tl.store(where, o.to(kind), mask=inside)


@jit
def backward_program(
    qkv,
    weight,
    gate,
    dout,
    dqkv,
    sums,
    qkv_image,
    qkv_token,
    qkv_part,
    qkv_head,
    dout_image,
    dout_token,
    dout_head,
    dqkv_image,
    dqkv_token,
    dqkv_part,
    dqkv_head,
    scale,
    images,
    heads: tl.constexpr,
    tokens: tl.constexpr,
    channels: tl.constexpr,
    width: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
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
    p, across, down = place_softmax(weight, head, j, j, tokens, width)
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
def parameters_program(sums, gate, dweight, dbias, dgate, images, heads: tl.constexpr, BLOCK: tl.constexpr):
    """One head's gradients of weight, bias (zero) and gate, from the shares of the images"""
    head = tl.program_id(0)
    x = tl.load(gate + head).to(tl.float32)
    sums += head * images
    tl.store(dgate + head, (sigmoid(x) * sigmoid(-x) * total(sums, images, BLOCK)).to(dgate.dtype.element_ty))
    tl.store(dbias + head, tl.full((), 0.0, dbias.dtype.element_ty))
    for number in tl.static_range(3):
        share = total(sums + (number + 1) * heads * images, images, BLOCK)
        tl.store(dweight + head * 3 + number, (sigmoid(x) * share).to(dweight.dtype.element_ty))
