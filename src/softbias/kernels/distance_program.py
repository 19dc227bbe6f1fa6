"""Triton code of the attention penalty; see `distance` for the formulas.

One program takes one head of one image and walks over blocks of queries i. All keys j stay on the chip, so every row of the
map is complete in one tile and its softmax needs one pass. The tile is kept transposed, (j, i): the product that sums over i
then takes it from registers.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# The arguments of Triton code have Triton's own types.

from softbias.kernels.triton_api import jit, tl


@jit
def penalty_program(
    q, k, penalty, weights, totals, dq, dk,
    q_image, q_head, q_token, k_image, k_head, k_token, d_image, d_head, d_token, scale, heads,
    tokens: tl.constexpr, channels: tl.constexpr, WEIGHTED: tl.constexpr, GRADIENT: tl.constexpr, TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """totals[b, h] = Σ_ij A_ij P_ij;  dq, dk = its gradient (· weights[b] / heads, where WEIGHTED), (B, N, H, D) in memory. The
    penalty comes transposed: the tile then lies in memory as it does on the chip."""
    image = (tl.program_id(0) // heads).to(tl.int64)  # offsets may pass 2³¹
    head = tl.program_id(0) % heads
    kind: tl.constexpr = q.dtype.element_ty
    j = tl.arange(0, TOKENS)
    c = tl.arange(0, CHANNELS)
    inside = (j[:, None] < tokens) & (c[None, :] < channels)
    q += image * q_image + head * q_head
    k += image * k_image + head * k_head
    keys = tl.load(k + j[:, None] * k_token + c[None, :], mask=inside, other=0.0)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    if GRADIENT:
        factor = scale / heads
        if WEIGHTED:
            factor *= tl.load(weights + image)
        dq += image * d_image + head * d_head
        dk += image * d_image + head * d_head
        of_keys = tl.full((TOKENS, CHANNELS), 0.0, tl.float32)
    for start in range(0, tokens, BLOCK):
        i = start + tl.arange(0, BLOCK)
        within = (i[:, None] < tokens) & (c[None, :] < channels)
        queries = tl.load(q + i[:, None] * q_token + c[None, :], mask=within, other=0.0)
        costs = tl.load(
            penalty + j[:, None] * tokens + i[None, :], mask=(j[:, None] < tokens) & (i[None, :] < tokens), other=0.0
        )
        costs = costs.to(tl.float32)
        scores = tl.dot(keys, tl.trans(queries), input_precision="ieee") * (scale * 1.4426950408889634)  # base 2
        if tokens != TOKENS:
            scores = tl.where(j[:, None] < tokens, scores, float("-inf"))
        powers = tl.exp2(scores - tl.max(scores, 0)[None, :])
        share = 1.0 / tl.sum(powers, 0)
        expected = tl.sum(powers * costs, 0) * share  # a padded query has penalty 0 everywhere, so it adds nothing below
        total += expected
        if GRADIENT:
            of_scores = (powers * share[None, :] * (costs - expected[None, :])).to(kind)
            of_keys = tl.dot(of_scores, queries, of_keys, input_precision="ieee")
            of_queries = tl.dot(tl.trans(keys), of_scores, input_precision="ieee") * factor  # (channels, i)
            where = dq + i[None, :] * d_token + c[:, None]
            tl.store(where, of_queries.to(kind), mask=(i[None, :] < tokens) & (c[:, None] < channels))
    if GRADIENT:
        tl.store(dk + j[:, None] * d_token + c[None, :], (of_keys * factor).to(kind), mask=inside)
    tl.store(totals + tl.program_id(0), tl.sum(total, 0))


@jit
def add_scaled_program(other, own, weights, result, each, BLOCK: tl.constexpr):
    """result[b] = other[b] + own[b] · weights[b], for arrays of `each` numbers per image, all in one order"""
    image = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = index < each
    index = image * each + index
    total = tl.load(other + index, inside).to(tl.float32) + tl.load(own + index, inside).to(tl.float32) * tl.load(
        weights + image
    )
    tl.store(result + index, total.to(result.dtype.element_ty), inside)
