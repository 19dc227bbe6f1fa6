"""Where each output pixel is taken from: crop, flips, rotation, translation, zoom and shear as one matrix per sample.

    source = M_crop M_flip M_affine M_1 M_2 … · target         coordinates (x, y, 1) in pixels from the image's center

A matrix maps a point of the result to the point of the source that it is read from. So the last operation is the rightmost
matrix, and an image is interpolated once, however many operations there are. Where only whole pixels move (pad-crop, flips),
they are copied.

Matrices are multiplied elementwise: a matrix product would be rounded to TF32 where training allows that.

Shapes: B samples, source images of H × W, results of h × w, matrices (B, 2, 3).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from softbias.data.augment import Augmentation
from softbias.data.augment.rng import Draws, Stream, operation_id
from softbias.errors import SoftbiasError

Size = tuple[int, int]  # height, width
CROP_TOP, CROP_LEFT, CROP_SHAPE = operation_id("crop top"), operation_id("crop left"), operation_id("crop shape")
FLIP, AFFINE = operation_id("flip"), operation_id("affine")
TRIES = 10  # torchvision's and timm's number of attempts to find a rectangle that fits


def draws(settings: Augmentation) -> Draws:
    """The random numbers that are drawn here for each sample."""
    crop = {"none": {}, "pad": {CROP_TOP: 1, CROP_LEFT: 1}, "resized": {CROP_SHAPE: 2 * TRIES, CROP_TOP: 1, CROP_LEFT: 1}}
    return crop[settings.crop] | {FLIP: 2} | ({AFFINE: 5} if settings.moves else {})


def matrix(a: Tensor, b: Tensor, x: Tensor, c: Tensor, d: Tensor, y: Tensor) -> Tensor:
    """[[a, b, x], [c, d, y]] per sample.  # 6 × (B,) -> (B, 2, 3)"""
    return torch.stack([a, b, x, c, d, y], dim=-1).reshape(*a.shape, 2, 3)


def compose(first: Tensor, second: Tensor) -> Tensor:
    """The matrix of first(second(point)).  # (B, 2, 3), (B, 2, 3) -> (B, 2, 3)"""
    product = (first[..., :2, None] * second[..., None, :, :]).sum(-2)
    return torch.cat([product[..., :2], product[..., 2:] + first[..., 2:]], dim=-1)


def rotation(radians: Tensor) -> Tensor:
    """Turns the image counterclockwise, as PIL does.  # (B,) -> (B, 2, 3)"""
    cos, sin, zero = radians.cos(), radians.sin(), torch.zeros_like(radians)
    return matrix(cos, -sin, zero, sin, cos, zero)


def draw_rectangles(
    stream: Stream,
    operation: int,
    size: Size,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    *,
    whole: bool,
    squash: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Height and width of a random rectangle, and whether one was found.

    Area is uniform in `scale`, log(height / width) uniform in log `ratio`; of ten attempts the first that fits is taken.
    whole: whether a rectangle as high or as wide as the image fits. squash (B,): by how much the width of each image was
    divided, so that `ratio` is that in the image as it was.  # 3 × (B,)
    """
    height, width = size
    u = stream.uniform(operation, 2 * TRIES)
    area = (u[:, :TRIES] * (scale[1] - scale[0]) + scale[0]) * (height * width)
    aspect = (u[:, TRIES:] * math.log(ratio[1] / ratio[0]) + math.log(ratio[0])).exp()
    aspect = aspect if squash is None else aspect * squash[:, None]
    h, w = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (h > 0) & (w > 0) & (h < height + whole) & (w < width + whole)  # (B, TRIES)
    first = fits.int().argmax(dim=1, keepdim=True)
    return h.gather(1, first)[:, 0].long(), w.gather(1, first)[:, 0].long(), fits.any(dim=1)


def draw_crops(
    stream: Stream, settings: Augmentation, source: Size, size: Size, aspect: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top, left, height and width of the part of the source that becomes the result, in whole pixels.  # 4 × (B,)

    aspect   (B,): width / height that each image had before it became as wide and as high as the source
    """
    if settings.crop == "resized":
        upright = (1 / settings.crop_ratio[1], 1 / settings.crop_ratio[0])  # height / width
        squash = None if aspect is None else aspect * (source[0] / source[1])
        height, width, found = draw_rectangles(
            stream, CROP_SHAPE, source, settings.crop_scale, upright, whole=True, squash=squash
        )
        fallback = central_crop(source, settings.crop_ratio) if squash is None else central_crops(source, settings, squash)
        height, width = torch.where(found, height, fallback[0]), torch.where(found, width, fallback[1])
        top = stream.integers(CROP_TOP, 0, source[0] - height + 1)
        left = stream.integers(CROP_LEFT, 0, source[1] - width + 1)
        return (
            torch.where(found, top, (source[0] - height) // 2),
            torch.where(found, left, (source[1] - width) // 2),
            height,
            width,
        )
    above, before = crop_margins(settings, source) if settings.crop == "pad" else (0, 0)
    room = source[0] + 2 * above - size[0], source[1] + 2 * before - size[1]
    if min(room) < 0:
        raise SoftbiasError(
            f"a result of {size[0]} × {size[1]} pixels cannot be cut from pictures of {source[0]} × {source[1]} with "
            f"crop={settings.crop!r}; ask for a smaller size, or use crop='resized'"
        )
    if settings.crop == "pad":
        top = stream.integers(CROP_TOP, -above, room[0] - above + 1)
        left = stream.integers(CROP_LEFT, -before, room[1] - before + 1)
    else:
        top, left = (torch.full_like(stream.keys, side // 2) for side in room)
    return top, left, torch.full_like(top, size[0]), torch.full_like(left, size[1])


def crop_margins(settings: Augmentation, source: Size) -> Size:
    """What crop="pad" adds above and below, and left and right, in pixels."""
    return share_of_side(settings.crop_padding, source[0]), share_of_side(settings.crop_padding, source[1])


def share_of_side(share: float, side: int) -> int:
    """In whole pixels, halves up.

    >>> [share_of_side(0.125, side) for side in (28, 32, 96, 224)]
    [4, 4, 12, 28]
    """
    return math.floor(share * side + 0.5)


def central_crop(source: Size, ratio: tuple[float, float]) -> Size:
    """The largest part whose aspect ratio lies within `ratio`: RandomResizedCrop takes it where nothing fits."""
    height, width = source
    aspect = min(max(width / height, ratio[0]), ratio[1])
    return (round(width / aspect), width) if aspect > width / height else (height, round(height * aspect))


def central_crops(source: Size, settings: Augmentation, squash: Tensor) -> tuple[Tensor, Tensor]:
    """`central_crop` for images that were squashed, each by its own factor.  # (B,) -> 2 × (B,)"""
    aspect = squash * (source[1] / source[0])
    nearest = aspect.clamp(*settings.crop_ratio)
    height = (source[0] * (aspect / nearest).clamp(max=1)).round().long()
    width = (source[1] * (nearest / aspect).clamp(max=1)).round().long()
    return height.clamp(min=1), width.clamp(min=1)


def draw_flips(stream: Stream, settings: Augmentation) -> tuple[Tensor, Tensor]:
    """Whether to flip top to bottom, and left to right.  # 2 × (B,)"""
    u = stream.uniform(FLIP, 2)
    return u[:, 1] < settings.vertical_flip, u[:, 0] < settings.flip


def draw_affine(stream: Stream, settings: Augmentation, size: Size) -> Tensor:
    """Rotation, shear, zoom and translation as one matrix.  # (B, 2, 3)"""
    u = stream.uniform(AFFINE, 5)
    turn, shear, right, down = (2 * u[:, :4] - 1).unbind(1)
    zoom = u[:, 4] * (settings.zoom[1] - settings.zoom[0]) + settings.zoom[0]
    return affine_matrix(
        turn * math.radians(settings.rotate_degrees),
        zoom,
        shear * math.radians(settings.shear_degrees),
        right * (settings.translate * size[1]),
        down * (settings.translate * size[0]),
    )


def affine_matrix(turn: Tensor, zoom: Tensor, shear: Tensor, right: Tensor, down: Tensor) -> Tensor:
    """Shear, zoom and turn (radians) about the center, then move (pixels), as in torchvision.  # 5 × (B,) -> (B, 2, 3)"""
    one, zero = torch.ones_like(zoom), torch.zeros_like(zoom)
    turned = compose(matrix(one, shear.tan(), zero, zero, one, zero), rotation(turn))
    return compose(turned / zoom[:, None, None], matrix(one, zero, -right, zero, one, -down))


def crop_matrix(top: Tensor, left: Tensor, height: Tensor, width: Tensor, source: Size, size: Size) -> Tensor:
    """Reads the result from a rectangle of the source.  # 4 × (B,) -> (B, 2, 3)"""
    zero = torch.zeros(top.shape, device=top.device)
    return matrix(width / size[1], zero, left + (width - source[1]) / 2, zero, height / size[0], top + (height - source[0]) / 2)


def flip_matrix(rows: Tensor, columns: Tensor) -> Tensor:
    """Mirrors the rows and the columns of the marked samples.  # 2 × (B,) -> (B, 2, 3)"""
    zero = torch.zeros(rows.shape, device=rows.device)
    return matrix(1.0 - 2.0 * columns, zero, zero, zero, 1.0 - 2.0 * rows, zero)


def warp(images: Tensor, matrices: Tensor, size: Size, *, fill: Tensor | None = None, reflect: bool = False) -> Tensor:
    """Bilinear reading of every output pixel at its point in the source.  # (B, 3, H, W), (B, 2, 3) -> (B, 3, h, w)

    Outside lies `fill` (3, 1, 1), black by default, or with `reflect` the image mirrored about its outermost pixels.
    """
    source = images.shape[-2:]
    x = torch.arange(size[1], device=images.device) - (size[1] - 1) / 2  # (w,)
    y = torch.arange(size[0], device=images.device)[:, None] - (size[0] - 1) / 2  # (h, 1)
    a, b, right, c, d, down = (entry[:, None, None] for entry in matrices.flatten(1).unbind(1))
    across, along = 2 / max(source[1] - 1, 1), 2 / max(source[0] - 1, 1)  # −1 and 1 are the outermost pixels' centers
    grid = torch.stack([(a * x + b * y + right) * across, (c * x + d * y + down) * along], dim=-1)  # (B, h, w, 2)
    mode = "reflection" if reflect else "zeros"
    if fill is None or reflect:
        return grid_sample(images, grid, mode="bilinear", padding_mode=mode, align_corners=True)
    return grid_sample(images - fill, grid, mode="bilinear", padding_mode=mode, align_corners=True) + fill


def crop_and_flip(
    images: Tensor, top: Tensor, left: Tensor, rows: Tensor, columns: Tensor, size: Size, *, reflect: bool = False
) -> tuple[Tensor, Tensor]:
    """The h × w part at (top, left), flipped where `rows` or `columns` are set; and which pixels come from the image.

    The others hold arbitrary pixels, unless `reflect`.  # (B, 3, H, W), 4 × (B,) -> (B, 3, h, w), (B, 1, h, w)
    """
    height, width = images.shape[-2:]
    y = torch.arange(size[0], device=images.device)
    x = torch.arange(size[1], device=images.device)
    y = top[:, None] + torch.where(rows[:, None], size[0] - 1 - y, y)  # (B, h)
    x = left[:, None] + torch.where(columns[:, None], size[1] - 1 - x, x)  # (B, w)
    if reflect:
        y, x = reflected(y, height), reflected(x, width)
    inside = ((y >= 0) & (y < height))[:, None, :, None] & ((x >= 0) & (x < width))[:, None, None, :]
    indices = y.clamp(0, height - 1)[:, :, None] * width + x.clamp(0, width - 1)[:, None, :]
    indices = indices.flatten(1)[:, None].expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, indices).unflatten(2, size), inside


def reflected(index: Tensor, side: int) -> Tensor:
    """−1 becomes 1 and `side` becomes side − 2."""
    return (side - 1) - ((side - 1) - index.abs()).abs()


def box_mask(top: Tensor, bottom: Tensor, left: Tensor, right: Tensor, size: Size) -> Tensor:
    """Which pixels lie in top ≤ row < bottom and left ≤ column < right.  # 4 × (B,) -> (B, 1, H, W)"""
    row = torch.arange(size[0], device=top.device)
    column = torch.arange(size[1], device=top.device)
    rows = (row >= top[:, None]) & (row < bottom[:, None])  # (B, H)
    columns = (column >= left[:, None]) & (column < right[:, None])  # (B, W)
    return (rows[:, :, None] & columns[:, None, :])[:, None]


def rotate_quarter(images: Tensor, quarters: Tensor) -> Tensor:
    """Turns each image counterclockwise by 0, 1, 2 or 3 quarters, exactly.  # (B, C, H, H), (B,) -> (B, C, H, H)"""
    if images.shape[-1] != images.shape[-2]:
        height, width = images.shape[-2:]
        raise SoftbiasError(f"only square pictures turn by a quarter, but these are {height} × {width}; crop them first")
    quarters = quarters[:, None, None, None] % 4
    images = torch.where(quarters % 2 == 1, images.mT, images)
    images = torch.where((quarters == 1) | (quarters == 2), images.flip(-2), images)
    return torch.where(quarters >= 2, images.flip(-1), images)
