"""Masked attention normalized by the Frobenius norm (IBiT), without a map in memory.

    Y = (scale · Q Kᵀ) ⊙ M,   O = Y V / (n + ε),   n = ‖Y‖_F, one number per image and head

    with G = ∂l/∂O and t = ⟨G, O⟩:
    ∂l/∂Y = (G Vᵀ − t/n · Y) / (n + ε)          t/n · Y is what the norm adds
    ∂l/∂V = Yᵀ G / (n + ε),   ∂l/∂S = M ⊙ ∂l/∂Y,   ∂l/∂Q = scale · ∂l/∂S K,   ∂l/∂K = scale · (∂l/∂S)ᵀ Q
    ∂l/∂M = Σ_b S ⊙ ∂l/∂Y                        S = scale · Q Kᵀ

Kept for backward are the inputs, O and n. The sum over images for ∂l/∂M is made in parts, one program per tile and part, and
the parts are added at the end: the same bits every time, which atomic additions do not give.

What it costs, at least, for B = 256, H = 3, N = 197, D = 64 in bfloat16 (`ibit_tiny`), one layer. Products, padded to 256
tokens: forward two of N × N × D, 13 GFLOP, backward seven, 45 GFLOP (two of them to form S and G Vᵀ again for ∂l/∂M).
Memory: forward Q, K, V and O, 77 MB, 0.02 ms; backward reads five such arrays and writes three, 155 MB, 0.04 ms. Plain PyTorch
writes and reads maps of 60 MB some fifteen times.

The mask's low rank does not help: (Q Kᵀ ⊙ a bᵀ) V = diag(a) Q (Kᵀ diag(b) V) would need no map at all, but costs D per rank
where a map costs N, and rank 9 × 64 > 197; and the roll turns M into N shifted rows, so that M itself has full rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from softbias.kernels.operation import operation
from softbias.kernels.tiles import Tiles, block, launch

FORWARD = Tiles(size=32, warps=8, stages=2)
BACKWARD = Tiles(size=16, warps=8, stages=2)
MASK = Tiles(size=64, other=64, warps=8, stages=2)
PROGRAMS = 528  # at least so many for ∂l/∂M: four for each of the 132 multiprocessors of an H200


def masked_attention(qkv: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Queries, keys and values as one projection gives them, (B, N, 3, H, D), and a mask (H, N, N) for all images.

    At most 256 tokens of 64 channels per head. Returns (B, N, H, D).
    """
    return attention(qkv, mask, scale)[0]


def plain_masked_attention(qkv: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The same in plain PyTorch, with the map in memory."""
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    y = ((q * scale) @ k.mT) * mask.to(q.dtype)
    norm = torch.linalg.vector_norm(y, dim=(-2, -1), keepdim=True, dtype=torch.promote_types(y.dtype, torch.float32))
    return ((y @ v) / (norm + 1e-8).to(v.dtype)).transpose(1, 2)


def check(qkv: Tensor, mask: Tensor) -> None:
    if qkv.ndim != 5 or qkv.shape[2] != 3 or mask.shape != (qkv.shape[3], qkv.shape[1], qkv.shape[1]):
        raise ValueError(
            "masked_attention takes a projection (B, N, 3, H, D) and a mask (H, N, N), "
            f"but got {tuple(qkv.shape)} and {tuple(mask.shape)}"
        )


def with_contiguous_channels(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def with_padded_rows(mask: Tensor) -> Tensor:
    return torch.nn.functional.pad(mask, (0, -mask.shape[-1] % 16)).contiguous()


def run_forward(qkv: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """O and n."""
    from softbias.kernels.masked_program import forward_program

    check(qkv, mask)
    qkv, padded = with_contiguous_channels(qkv), with_padded_rows(mask)
    images, tokens, _, heads, channels = qkv.shape
    out, norms = empty_results(qkv)
    launch(
        forward_program,
        (images * heads,),
        FORWARD.for_tokens(tokens),
        (qkv, padded, out, norms),
        (*qkv.stride()[:4], *out.stride()[:3], scale, heads),
        tokens=tokens,
        padded=padded.shape[-1],
        channels=channels,
        TOKENS=block(tokens),
        CHANNELS=block(channels),
        BLOCK=min(FORWARD.size, block(tokens)),
    )
    return out, norms


def run_backward(dout: Tensor, qkv: Tensor, mask: Tensor, out: Tensor, norms: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The gradients of the projection and of the mask."""
    from softbias.kernels.masked_program import backward_program, mask_program

    qkv, padded, dout = with_contiguous_channels(qkv), with_padded_rows(mask.mT), with_contiguous_channels(dout)
    images, tokens, _, heads, channels = qkv.shape
    dqkv, ratios = torch.empty_like(qkv, memory_format=torch.contiguous_format), torch.empty_like(norms)
    shapes = {"tokens": tokens, "padded": padded.shape[-1], "channels": channels, "CHANNELS": block(channels)}
    launch(
        backward_program,
        (images * heads,),
        BACKWARD.for_tokens(tokens),
        (qkv, padded, out, norms, dout, dqkv, ratios),
        (*qkv.stride()[:4], *out.stride()[:3], *dout.stride()[:3], *dqkv.stride()[:4], scale, heads),
        TOKENS=block(tokens),
        BLOCK=min(BACKWARD.size, block(tokens)),
        **shapes,
    )
    rows = min(32 if 64 < tokens <= 96 else MASK.size, block(tokens))  # 65 tokens: 3 × 32 rows, not 2 × 64
    columns = min(MASK.other, block(tokens))
    tiles = -(-tokens // rows) * -(-tokens // columns)
    share_of_batch = -(-images // min(images, -(-PROGRAMS // (tiles * heads))))
    parts = mask.new_empty(-(-images // share_of_batch), *mask.shape, dtype=torch.float32)
    launch(
        mask_program,
        (tiles, heads, parts.shape[0]),
        MASK,
        (qkv, padded, norms, ratios, dout, parts),
        (*qkv.stride()[:4], *dout.stride()[:3], scale, images, heads, share_of_batch),
        ROWS=rows,
        COLUMNS=columns,
        **shapes,
    )
    return dqkv, parts.sum(0).to(mask.dtype)


def empty_results(qkv: Tensor) -> tuple[Tensor, Tensor]:
    images, tokens, _, heads, channels = qkv.shape
    return qkv.new_empty(images, tokens, heads, channels), qkv.new_empty(images, heads, dtype=torch.float32)


def empty_gradients(qkv: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (qkv, mask))  # type: ignore[return-value]


def keep(ctx, inputs, output):
    qkv, mask, ctx.scale = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(qkv, mask, *output)


def differentiate(ctx, backward, dout, _):
    if dout is None:
        return None, None, None
    return *backward(dout, *ctx.saved_tensors, ctx.scale), None


attention = operation(
    "masked_attention",
    run_forward,
    run_backward,
    like_forward=lambda qkv, mask, scale: empty_results(qkv),
    like_backward=lambda dout, qkv, mask, out, norms, scale: empty_gradients(qkv, mask),
    keep=keep,
    differentiate=differentiate,
)
