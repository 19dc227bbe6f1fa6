"""Low-rank masks that act like convolutions: rolling, target kernels, and fitting.

A convolution's attention map is Toeplitz-like: row i is row 0 moved by i. If every row is rolled back by its index, all rows
are nearly the same, so the map has low rank: a random 3 × 3 kernel has full rank on the grid, and rank 9 once rolled. IBiT
keeps a mask as two rolled factors, W = Aᵀ B with A, B of r rows, and un-rolls it before use:

    M[i, j] = W[i, (j − i) mod N]

The rows and columns of prefix tokens (a class token) are kept as they are, and only the P × P block of the patches is rolled,
so a 3 × 3 target has rank 10. `roll="released"` repeats a slip of the original code, which reads that block one column (one
prefix) too far left and so moves the mask by one patch; `roll="none"` keeps W as the mask. `factors_program` has the same
formulas in Triton.

Shapes: H heads, N tokens, P patches, r rank.
"""

from __future__ import annotations

import functools
import re

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from softbias.errors import SoftbiasError
from softbias.grid import Grid

NO_RANK = 1e-12  # a singular value below this share of the largest is rounding
ROLLS = ("paper", "released", "none")


def skew(block: Tensor) -> Tensor:
    """Row i moved right by i, cyclically: out[i, j] = block[i, (j − i) mod P].  # (…, P, P)

    Written twice side by side, a row contains all of its rotations. Reading the flat memory with a stride one shorter takes the
    right rotation of each row: views and one copy, without a gather and without an index to keep.
    """
    side = block.shape[-1]
    twice = torch.cat([block, block], dim=-1).flatten(-2)  # out[i, j] is the element i·2P + P + j − i
    rotated: Tensor = twice[..., side : side + side * (2 * side - 1)].unflatten(-1, (side, 2 * side - 1))
    return rotated[..., :side]


def unskew(block: Tensor) -> Tensor:
    """The inverse of `skew`: out[i, j] = block[i, (j + i) mod P].  # (…, P, P)"""
    return skew(block.flip(-1)).flip(-1)


def unroll(rolled: Tensor, prefix: int = 0, roll: str = "paper") -> Tensor:
    """The mask M that the rolled matrix W stands for.  # (…, N, N)"""
    if roll == "none":
        return rolled
    first = 0 if roll == "released" else prefix
    block = skew(rolled[..., prefix:, first : rolled.shape[-1] - prefix + first])
    if not prefix:
        return block
    below = torch.cat([rolled[..., prefix:, :prefix], block], dim=-1)
    return torch.cat([rolled[..., :prefix, :], below], dim=-2)


def roll_back(mask: Tensor, prefix: int = 0, roll: str = "paper") -> Tensor:
    """The inverse of `unroll`: the matrix W to factorize for a wanted mask.  # (…, N, N)

    The released code fits its factors to the right form and reads them wrongly, so "released" rolls like "paper".
    """
    if roll == "none":
        return mask
    rolled = mask.clone()
    rolled[..., prefix:, prefix:] = unskew(mask[..., prefix:, prefix:])
    return rolled


KERNELS = {
    "exp_l2": "exp(−‖δ‖₂ / 2), the paper's (which calls it Gaussian)",
    "gaussian(s)": "exp(−‖δ‖₂² / 2 s²)",
    "exp_l1": "exp(−‖δ‖₁ / 2)",
    "conv3x3": "1 on the 3 × 3 neighbours, 0 elsewhere",
    "ones": "no preference",
}


def kernel_map(grid: Grid, kernel: str = "exp_l2") -> Tensor:
    """The target mask of a kernel, un-rolled; rows and columns of prefix tokens are ones.  # (N, N)"""
    gaussian = re.fullmatch(r"gaussian(?:\((\d+\.?\d*|\.\d+)\))?", kernel)
    if kernel == "exp_l2":
        patches = torch.exp(-0.5 * grid.distances())
    elif gaussian and float(gaussian[1] or 1.0) > 0:
        patches = torch.exp(-0.5 * (grid.distances() / float(gaussian[1] or 1.0)).square())
    elif kernel == "exp_l1":
        patches = torch.exp(-0.5 * grid.distances("manhattan"))
    elif kernel == "conv3x3":
        patches = (grid.offsets().abs().amax(-1) <= 1).to(torch.get_default_dtype())
    elif kernel == "ones":
        patches = torch.ones(grid.patches, grid.patches)
    else:
        raise SoftbiasError(f"kernel must be one of {', '.join(KERNELS)}, but kernel={kernel!r}")
    target = torch.ones(len(grid), len(grid))
    target[grid.prefix :, grid.prefix :] = patches
    return target


def fit_svd(rolled: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The factors A, B that come closest to W in mean squared error, by truncated SVD.  # (…, N, N) -> 2 × (…, r, N)

    Where W has fewer ranks than r, the ranks left over have random rows in A and zeros in B: they add nothing, and can learn.
    With zeros in both, neither would ever have a gradient.
    """
    u, s, vh = torch.linalg.svd(rolled.double(), full_matrices=False)
    root = s[..., :rank].sqrt()[..., None]
    a = u[..., :rank].mT * root
    b = vh[..., :rank, :] * root
    unused = s[..., :rank, None] <= NO_RANK * s[..., :1, None]
    random = torch.randn(a.shape[-2:], generator=torch.Generator().manual_seed(0), dtype=a.dtype).to(a.device)
    a, b = torch.where(unused, random, a), torch.where(unused, 0, b)
    return a.to(rolled.dtype), b.to(rolled.dtype)


def fit_descent(
    rolled: Tensor, rank: int, *, optimizer: str = "adam", lr: float = 0.1, steps: int = 10_000, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """IBiT's Algorithm 1: factors by gradient descent on the mean squared error.  # (N, N) -> 2 × (r, N)

    The released code runs "adam", from N(0, .001), which reaches the error of the SVD for most seeds; a step as long as .1 can
    throw it far off at any time, so the best factors seen are kept. "sgd" is the algorithm as printed; after 10,000 steps its
    error is still ten times larger.
    """
    generator = torch.Generator().manual_seed(seed)
    start = 0.001 * torch.randn(2, rank, len(rolled), generator=generator, dtype=rolled.dtype, device="cpu")
    with torch.enable_grad():
        factors = start.to(rolled.device).requires_grad_()
        choices = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
        descent = choices[optimizer]([factors], lr=lr)
        best, least = factors.detach().clone(), torch.full((), torch.inf, dtype=rolled.dtype, device=rolled.device)
        for _ in range(steps):
            descent.zero_grad()
            error = mse_loss(factors[0].mT @ factors[1], rolled)
            best, least = torch.where(error < least, factors.detach(), best), torch.minimum(error.detach(), least)
            error.backward()
            descent.step()
    last = factors.detach()
    a, b = last if mse_loss(last[0].mT @ last[1], rolled) < least else best
    return a, b


FITS = ("svd", "adam", "sgd")


@functools.lru_cache(maxsize=64)
def fitted_factors(grid: Grid, kernel: str, rank: int, fit: str, roll: str) -> tuple[Tensor, Tensor]:
    """Factors for a kernel on a grid. They are kept, because all blocks of a model start from the same.  # 2 × (r, N)"""
    with torch.device("cpu"):
        rolled = roll_back(kernel_map(grid, kernel).double(), grid.prefix, roll)
        if fit == "svd":
            return fit_svd(rolled, rank)
        return fit_descent(rolled, rank, optimizer=fit)
