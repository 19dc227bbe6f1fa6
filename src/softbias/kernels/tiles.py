"""How a kernel cuts its work."""

from __future__ import annotations

from dataclasses import dataclass, replace

Sizes = tuple[int, ...]  # a shape, or strides


@dataclass(frozen=True)
class Tiles:
    """How a kernel cuts its work. Fixed and not tuned at run time: a tuner would measure inside the first step of every
    process, and gains little on shapes as few as these; `softbias.bench.kernels` sweeps them."""

    size: int  # of the dimension that is walked through
    warps: int
    stages: int
    other: int = 0  # a second size, where a kernel has one
    depth: int = 0  # a third: of the dimension that a product sums over

    def for_tokens(self, tokens: int) -> Tiles:
        """Warps are meant for 256 tokens; fewer tokens need fewer, but four is what Hopper's matrix units work with."""
        return replace(self, warps=max(4, self.warps * block(tokens) // 256))


def block(length: int) -> int:
    """The tile that holds a dimension: a power of two, and at least the 16 of the matrix units."""
    return max(16, 1 << (length - 1).bit_length())


def padded(length: int) -> int:
    """Rows of maps are this long, so that several entries can be read at once."""
    return length + -length % 16
