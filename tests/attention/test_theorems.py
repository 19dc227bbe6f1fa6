"""Limits where one mechanism becomes another, or a convolution."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.functional import conv2d, pad

from softbias.attention import Attention, Full, Gated, Masked, Positional, Window
from softbias.grid import Grid

from .tensors import close, noise


def same_weights(layer: Attention) -> Full:
    """Full attention with the projections of another layer."""
    full = Full(layer.width, layer.heads, layer.grid, qkv_bias=layer.qkv.bias is not None).double()
    full.take_projections(layer.projections())
    return full


# Positional attention is a convolution


def convolution_as_attention(kernel: torch.Tensor, grid: Grid) -> Positional:
    """K² heads, one per tap. The picture is in the first C channels of K² C; each head reads it and moves it by its tap."""
    channels, _, side, _ = kernel.shape
    taps = list(itertools.product(range(side), range(side)))
    centers = [(row - side // 2, column - side // 2) for row, column in taps]
    width = len(taps) * channels
    layer = Positional(width, len(taps), grid, content=False, strength=1000.0, centers=centers).double()
    with torch.no_grad():
        for parameter in (*layer.qkv.parameters(), *layer.proj.parameters()):
            parameter.zero_()
        for head, (row, column) in enumerate(taps):
            its_own = slice(head * channels, (head + 1) * channels)
            layer.qkv.weight[its_own, :channels] = torch.eye(channels)
            layer.proj.weight[:channels, its_own] = kernel[:, :, row, column]
    return layer


def attend_to_picture(kernel: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
    grid = Grid(*image.shape[2:])
    layer = convolution_as_attention(kernel, grid)
    tokens = pad(grid.as_tokens(image), (0, layer.width - image.shape[1]))
    return grid.as_image(layer(tokens))[:, : image.shape[1]]


@pytest.mark.parametrize("side", [2, 3, 5])
def test_one_positional_head_per_tap_is_a_convolution_on_a_padded_grid(side):
    kernel, image = noise(2, 2, side, side), noise(3, 2, 6, 7, seed=1)
    ring = side // 2
    seen = attend_to_picture(kernel, pad(image, (ring,) * 4))[:, :, ring:-ring, ring:-ring]
    close(seen, conv2d(image, kernel, padding=ring)[:, :, :6, :7])  # an even kernel's last row and column are one more


@pytest.mark.parametrize("side", [2, 3, 5])
def test_without_padding_it_is_a_convolution_in_the_interior_and_not_at_the_border(side):
    kernel, image = noise(2, 2, side, side), noise(3, 2, 6, 7, seed=1)
    ring = side // 2
    seen = attend_to_picture(kernel, image)
    wanted = conv2d(image, kernel, padding=ring)[:, :, :6, :7]
    close(seen[:, :, ring:-ring, ring:-ring], wanted[:, :, ring:-ring, ring:-ring])
    assert (seen - wanted)[:, :, 0].abs().amin() > 1e-3
    assert (seen - wanted)[:, :, :, 0].abs().amin() > 1e-3


def test_a_strong_head_with_a_half_integer_center_averages_four_patches():
    layer = Positional(16, 4, Grid(5, 6), content=False, strength=1000.0).double()
    row = layer.attention_map(noise(1, 30, 16))[0, 3, 8]  # the last head, at (½, ½), from row 1 and column 2
    assert row.nonzero().flatten().tolist() == [8, 9, 14, 15]
    close(row[[8, 9, 14, 15]], torch.full((4,), 0.25, dtype=torch.float64))


# Gated attention


def test_a_closed_gate_is_full_attention():
    layer, x = Gated(16, 4, Grid(3, 5), gate=-50.0).double(), noise(2, 15, 16)
    full = same_weights(layer)
    close(layer.attention_map(x), full.attention_map(x))
    close(layer(x), full(x))


def test_an_open_gate_with_a_strong_position_looks_at_its_tap_alone():
    grid, centers = Grid(4, 5), [(0, 1), (1, 0), (0, 0), (-1, -1)]
    layer = Gated(16, 4, grid, gate=50.0, strength=1000.0, centers=centers).double()
    seen = layer.attention_map(noise(1, 20, 16))[0]
    for head, (down, across) in enumerate(centers):
        for row, column in itertools.product((1, 2), (1, 2, 3)):
            wanted = torch.zeros(20, dtype=torch.float64)
            wanted[(row + down) * 5 + column + across] = 1
            close(seen[head, row * 5 + column], wanted)


def test_the_product_of_rows_and_columns_is_the_softmax_over_positions():
    grid = Grid(3, 5)
    layer = Gated(16, 4, grid).double()
    with torch.no_grad():
        layer.position.weight.copy_(noise(4, 3))
        layer.position.bias.copy_(noise(4, seed=1))
    offsets = grid.offsets().double()
    encoding = torch.stack([offsets[..., 1], offsets[..., 0], offsets.square().sum(-1)], dim=-1)
    wanted = (encoding @ layer.position.weight.T).permute(2, 0, 1).softmax(-1)
    v = noise(2, 4, 15, 4, seed=2)
    close(layer.position(v), wanted @ v)
    close(layer.position.map(), wanted)
    rows, columns = layer.position.axis_maps()
    close(torch.einsum("hrz,hcy->hrczy", rows, columns).reshape(4, 15, 15), wanted)


# Masks


def test_a_mask_of_ones_with_softmax_is_full_attention():
    layer = Masked(16, 4, Grid(3, 5, prefix=1), norm="softmax", kernel="ones", rank=1).double()
    x = noise(2, 16, 16)
    close(layer(x), same_weights(layer)(x), 1e-6)  # the factors are fitted in float32
    close(layer.attention_map(x), same_weights(layer).attention_map(x), 1e-6)


def test_a_mask_of_ones_with_the_frobenius_norm_is_linear_attention():
    layer = Masked(16, 4, Grid(3, 5, prefix=1), kernel="ones", rank=1).double()
    x = noise(2, 16, 16)
    q, k, v = layer.project(x)
    products = q @ k.mT
    norms = products.square().sum((-2, -1), keepdim=True).sqrt()
    close(layer(x), layer.merge((q @ (k.mT @ v)) / norms), 1e-6)


def test_an_unscaled_gradient_reaches_the_scores_without_the_mask_and_changes_no_value():
    biased, unscaled = (Masked(16, 4, Grid(3, 5, prefix=1), biased_gradient=biased).double() for biased in (True, False))
    unscaled.load_state_dict(biased.state_dict())
    x = noise(2, 16, 16)
    close(unscaled(x), biased(x), 0)
    close(unscaled.attention_map(x), biased.attention_map(x), 0)
    scores, weights = noise(2, 4, 16, 16, seed=1).requires_grad_(), noise(2, 4, 16, 16, seed=2)
    for layer, wanted in ((biased, biased.mask() * weights), (unscaled, weights)):
        by_scores, by_mask = torch.autograd.grad((layer.masked_scores(scores) * weights).sum(), [scores, layer.mask_a])
        close(by_scores, wanted)
        masks = biased.mask()
        close(by_mask, torch.autograd.grad((masks * scores.detach() * weights).sum(), biased.mask_a)[0])


def test_a_mask_that_is_not_learned_stays_and_the_rest_learns():
    layer = Masked(16, 4, Grid(3, 5, prefix=1), kernel="ones", rank=1, learned=False)
    before = layer.mask().clone()
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.1)
    layer(noise(2, 16, 16).float()).square().sum().backward()
    assert layer.mask_a.grad is None and layer.mask_b.grad is None
    assert all(parameter.grad is not None for parameter in layer.parameters() if parameter.requires_grad)
    optimizer.step()
    close(layer.mask(), before, 0)


def test_negative_mask_entries_get_a_gradient_and_no_row_is_empty(monkeypatch):
    layer = Masked(16, 4, Grid(3, 5), norm="softmax").double()
    mask = noise(4, 15, 15)
    mask[:, 2] = -mask[:, 2].abs()  # a row without any positive entry
    mask.requires_grad_()
    monkeypatch.setattr(layer, "mask", lambda: mask)
    x = noise(2, 15, 16, seed=1)
    seen = layer.attention_map(x)
    close(seen.sum(-1), torch.ones(2, 4, 15, dtype=torch.float64))
    floor = layer.scores(*layer.project(x)[:2]).softmax(-1) * mask.clamp_min(1e-4)
    close(seen, floor / floor.sum(-1, keepdim=True))
    (layer(x) * noise(2, 15, 16, seed=2)).sum().backward()
    assert mask.grad.isfinite().all()
    assert (mask.grad[mask < 0] != 0).all()


def test_a_negative_mask_entry_recovers_when_it_is_wanted(monkeypatch):
    layer = Masked(16, 4, Grid(2, 2), norm="softmax", rank=1).double()
    mask = torch.ones(4, 4, 4, dtype=torch.float64)
    mask[:, 0, 3] = -0.2
    mask.requires_grad_()
    monkeypatch.setattr(layer, "mask", lambda: mask)
    x, descent = noise(2, 4, 16), torch.optim.SGD([mask], lr=1e-4)
    for _ in range(50):
        descent.zero_grad()
        (-layer.attention_map(x)[:, :, 0, 3].log().sum()).backward()
        descent.step()
    assert (mask[:, 0, 3] > 0).all()


# Windows


@pytest.mark.parametrize("grid", [Grid(4, 4), Grid(3, 5), Grid(5, 3, prefix=1)], ids=["4x4", "3x5", "5x3+1"])
@pytest.mark.parametrize("mode", ["block", "shifted", "sliding"])
def test_a_window_that_covers_the_image_is_full_attention(grid, mode):
    side = max(grid.height, grid.width)
    window = 2 * side - 1 if mode == "sliding" else side
    layer, x = Window(16, 4, grid, window=window, mode=mode).double(), noise(2, len(grid), 16)
    full = same_weights(layer)
    close(layer(x), full(x))
    close(layer.attention_map(x), full.attention_map(x))


@pytest.mark.parametrize("mode", ["block", "shifted", "sliding"])
def test_a_window_one_smaller_is_not_full_attention(mode):
    grid = Grid(3, 5)
    layer, x = Window(16, 4, grid, window=7 if mode == "sliding" else 4, mode=mode).double(), noise(2, 15, 16)
    assert (layer(x) - same_weights(layer)(x)).abs().max() > 1e-3


def pairs_in_windows(grid: Grid, window: int, mode: str) -> torch.Tensor:
    """Which query may see which key, position by position.  # (N, N)"""

    def together(query: int, key: int, side: int) -> bool:
        if mode == "sliding":
            return abs(query - key) <= window // 2
        first = window // 2 if mode == "shifted" and side > window else 0
        cuts = range(first or window, side, window)  # a cut lies before each of these
        return not any(min(query, key) < cut <= max(query, key) for cut in cuts)

    seen = torch.ones(len(grid), len(grid), dtype=torch.bool)
    for i, j in itertools.product(range(grid.patches), repeat=2):
        rows = together(i // grid.width, j // grid.width, grid.height)
        columns = together(i % grid.width, j % grid.width, grid.width)
        seen[grid.prefix + i, grid.prefix + j] = rows and columns
    return seen


@pytest.mark.parametrize(
    ("grid", "window", "mode"),
    [
        (Grid(4, 6), 2, "block"),
        (Grid(5, 4, prefix=1), 3, "block"),
        (Grid(6, 6), 2, "shifted"),
        (Grid(5, 7), 3, "shifted"),
        (Grid(3, 7, prefix=1), 4, "shifted"),
        (Grid(5, 6), 1, "sliding"),
        (Grid(6, 5), 3, "sliding"),
        (Grid(9, 3, prefix=2), 5, "sliding"),
    ],
    ids=lambda value: f"{value.height}x{value.width}+{value.prefix}" if isinstance(value, Grid) else str(value),
)
def test_a_window_never_looks_outside_and_misses_nothing_inside(grid, window, mode):
    torch.manual_seed(0)
    layer, x = Window(4, 2, grid, window=window, mode=mode).double(), noise(1, len(grid), 4)
    wanted = pairs_in_windows(grid, window, mode)
    assert not wanted.all()
    for head in layer.attention_map(x)[0]:
        assert torch.equal(head > 0, wanted)
    jacobian = torch.autograd.functional.jacobian(layer, x, vectorize=True)  # (1, N, C, 1, N, C)
    assert torch.equal(jacobian[0, :, :, 0].abs().amax((1, 3)) > 0, wanted)


def test_a_token_that_may_not_look_at_itself_does_not_and_a_high_temperature_picks_one():
    layer = Full(16, 2, Grid(3, 4), temperature=True, mask_self=True).double()
    x = torch.randn(1, 12, 16, generator=torch.Generator().manual_seed(0)).double()
    assert layer.attention_map(x).diagonal(dim1=-2, dim2=-1).abs().max() == 0
    torch.nn.init.constant_(layer.temperature, 1e6)
    torch.testing.assert_close(layer.attention_map(x).amax(-1), torch.ones(1, 2, 12).double())
    torch.nn.init.zeros_(layer.temperature)
    torch.testing.assert_close(layer.attention_map(x).amax(-1), torch.full((1, 2, 12), 1 / 11).double())
