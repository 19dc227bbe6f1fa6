"""Random numbers as a function of seed, epoch, sample, operation and draw.

    key  = m(m(m(index + γ) + epoch + γ) + seed + γ)         one per sample
    bits = m(key + operation + δ · draw)                     64 bits for each draw
    m    = the finalizer of SplitMix64 (Steele, Lea and Flood, 2014; Stafford's variant 13)
    γ, δ = 2⁶⁴ and 2³² over the golden ratio; δ · draw stays below 2⁶³, so that a compiler may compute it as an address

There is no state. A sample's numbers depend neither on its batch, nor on the number of workers or processes, nor on earlier
draws, so a resumed run draws the same numbers as an uninterrupted one. Everything is elementwise arithmetic on int64 tensors,
which wraps around: it runs on any device, without host synchronization, and may be compiled or captured in a CUDA graph.

A sample that appears several times in one epoch (repeated augmentation) has the epoch `epoch_of_view(epoch, view)`.

On a GPU these are many kernels on few numbers. A caller that knows all of its draws beforehand states them
(`Stream.of(…, draws)`), and they are drawn at once: the same numbers by fewer kernels.

Shapes: B samples, D draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from softbias.errors import SoftbiasError


def signed(word: int) -> int:
    """The 64 bits of `word` as a signed integer, as torch stores them.

    >>> signed(2**64 - 1)
    -1
    """
    word &= 2**64 - 1
    return word - 2**64 if word >> 63 else word


def operation_id(name: str) -> int:
    """A 64-bit constant for a name (FNV-1a); made once, at import.

    >>> operation_id("crop") == operation_id("crop") != operation_id("flip")
    True
    """
    word = 0xCBF29CE484222325
    for byte in name.encode():
        word = ((word ^ byte) * 0x100000001B3) % 2**64
    return signed(word)


GAMMA = signed(0x9E3779B97F4A7C15)
DELTA = 0x9E3779B9
FACTOR_1 = signed(0xBF58476D1CE4E5B9)
FACTOR_2 = signed(0x94D049BB133111EB)


def shift_right(z: Tensor, bits: int) -> Tensor:
    """The logical shift: torch's own copies the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def finalize(z: Tensor) -> Tensor:
    """SplitMix64's m: a bijection of 64-bit words in which every input bit changes each output bit half of the time."""
    z = (z ^ shift_right(z, 30)) * FACTOR_1
    z = (z ^ shift_right(z, 27)) * FACTOR_2
    return stored(z ^ shift_right(z, 31))


def stored(z: Tensor) -> Tensor:
    """z itself, which a compiler then stores.

    Each ⊕ above uses z twice, and Inductor writes a formula out again for each use, so that it would need minutes for a chain
    of m. A strided view makes it keep the value.
    """
    return z.as_strided(z.size(), z.stride()) if torch.compiler.is_compiling() else z


def sample_keys(seed: int, epoch: int | Tensor, index: Tensor) -> Tensor:
    """The 64 bits from which all numbers of a sample are made.  # (B,) -> (B,)"""
    if index.dtype != torch.int64:
        raise SoftbiasError(f"index must be an int64 tensor, but it is {index.dtype}; use index.long()")
    if isinstance(epoch, Tensor) and epoch.dtype != torch.int64:
        raise SoftbiasError(f"epoch must be a whole number or an int64 tensor, but it is {epoch.dtype}; use epoch.long()")
    if not -(2**63) <= seed < 2**63:
        raise SoftbiasError(f"seed must fit into 64 bits, but seed={seed}; take its remainder modulo 2**63")
    z = finalize(index + GAMMA)
    z = finalize(z + epoch + GAMMA)
    return finalize(z + seed + GAMMA)


def epoch_of_view(epoch: int | Tensor, view: Tensor) -> Tensor:
    """The `epoch` of a sample's view-th appearance in it; view 0 is the epoch itself.  # (B,) -> (B,)"""
    return view * 2**32 + epoch


Draws = dict[int, int]  # operation -> numbers that it draws per sample


@lru_cache
def addends(draws: tuple[tuple[int, int], ...], device: torch.device) -> Tensor:
    """operation + δ · draw for all of them. Kept, because a CUDA graph refuses a copy from the host.  # (D,)"""
    return torch.tensor([signed(operation + DELTA * k) for operation, count in draws for k in range(count)], device=device)


@dataclass(frozen=True)
class Stream:
    """The random numbers of B samples.

    The numbers of different operations are independent. With `draws` there are D independent numbers per sample, of shape
    (B, D); without, one, of shape (B,).
    """

    keys: Tensor  # (B,)
    drawn: dict[int, Tensor] = field(default_factory=dict)  # operation -> (B, D) bits, drawn already
    units: dict[int, Tensor] = field(default_factory=dict)  # the same as numbers in [0, 1)

    @classmethod
    def of(cls, seed: int, epoch: int | Tensor, index: Tensor, draws: Draws | None = None) -> Stream:
        """`draws` are drawn at once, here; other numbers are drawn on demand."""
        keys = sample_keys(seed, epoch, index)
        if not draws or torch.compiler.is_compiling() or type(keys) is not Tensor:  # a compiler fuses them by itself
            return cls(keys)
        bits = finalize(keys[:, None] + addends(tuple(draws.items()), keys.device))
        counts = list(draws.values())
        units = to_uniform(bits).split(counts, 1)
        return cls(keys, dict(zip(draws, bits.split(counts, 1), strict=True)), dict(zip(draws, units, strict=True)))

    def bits(self, operation: int, draws: int | None = None) -> Tensor:
        """64 random bits as int64.  # (B,) or (B, D)"""
        if (drawn := first(self.drawn.get(operation), draws)) is not None:
            return drawn
        if draws is None:
            return finalize(self.keys + operation)
        steps = torch.arange(draws, dtype=torch.int64, device=self.keys.device) * DELTA
        return finalize((self.keys + operation)[..., None] + steps)

    def uniform(self, operation: int, draws: int | None = None, low: float = 0.0, high: float = 1.0) -> Tensor:
        """float32 in [low, high).  # (B,) or (B, D)"""
        unit = first(self.units.get(operation), draws)
        unit = to_uniform(self.bits(operation, draws)) if unit is None else unit
        return unit if (low, high) == (0.0, 1.0) else unit * (high - low) + low

    def integers(self, operation: int, low: int | Tensor, high: int | Tensor) -> Tensor:
        """int64 in [low, high), for ranges below 2³¹; `low` and `high` may differ per sample.  # (B,)"""
        return to_integers(self.bits(operation), low, high)

    def normal(self, operation: int, draws: int | None = None) -> Tensor:
        """float32 of mean 0 and variance 1.  # (B,) or (B, D)"""
        return to_normal(self.bits(operation, draws))


def first(drawn: Tensor | None, draws: int | None) -> Tensor | None:
    """The first `draws` numbers; None where fewer are drawn.  # (B, D) -> (B,) or (B, draws)"""
    if drawn is None or (draws or 1) > drawn.shape[1]:
        return None
    return drawn[:, 0] if draws is None else drawn[:, :draws]


def to_uniform(bits: Tensor) -> Tensor:
    """The highest 24 bits as a float32 in [0, 1)."""
    return shift_right(bits, 40).to(torch.float32) * 2.0**-24


def to_integers(bits: Tensor, low: int | Tensor, high: int | Tensor) -> Tensor:
    """⌊range · bits₃₂ / 2³²⌋ + low: within 2⁻³² · range of equal chances."""
    return shift_right(shift_right(bits, 32) * (high - low), 32) + low


def to_normal(bits: Tensor, width: int = 23, at: int = 41) -> Tensor:
    """√2 erf⁻¹(2u − 1) of the `width` bits that start at bit `at`; with 23 bits it reaches 5.3 standard deviations."""
    unit = (shift_right(bits, at) & (2**width - 1)).to(torch.float32) + 0.5
    return torch.erfinv(unit * 2.0 ** (1 - width) - 1.0) * math.sqrt(2)


def hash_integers(seed: int, epoch: int | Tensor, index: Tensor, operation: int | str, draw: int | Tensor = 0) -> Tensor:
    """64 random bits for (seed, epoch, index, operation, draw), as int64.  # (B,) -> (B,), broadcast with `draw`

    `operation` is a name, or the constant `operation_id(name)`.

    >>> hash_integers(0, 0, torch.arange(2), "crop").tolist()
    [-6808289156325784655, 6154968046401585655]
    """
    number = operation_id(operation) if isinstance(operation, str) else operation
    return finalize(sample_keys(seed, epoch, index) + number + draw * DELTA)
