"""Numbers in words, the same on every page and in the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

NONE = "–"  # where there is no number


def percent(share: float | None) -> str:
    """
    >>> percent(0.4641), percent(None)
    ('46.4 %', '–')
    """
    return NONE if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def share(fraction: float) -> str:
    """A share with as many digits as it has.

    >>> share(0.1), share(0.29), share(0.0125)
    ('10 %', '29 %', '1.25 %')
    """
    return f"{100 * fraction:g} %"


def amount_text(amount: float) -> str:
    """How much of the training data: a share of at most 1, or above it a number of pictures of each class.

    >>> amount_text(0.1), amount_text(1.0), amount_text(5.0)
    ('10 %', '100 %', '5 per class')
    """
    return share(amount) if amount <= 1 else f"{amount:.0f} per class"


def of_the_data(amount: float) -> str:
    """
    >>> of_the_data(0.1), of_the_data(1.0), of_the_data(5.0)
    ('10 % of the data', 'all data', '5 pictures per class')
    """
    if amount > 1:
        return f"{amount:.0f} picture{'s' * (round(amount) > 1)} per class"
    return "all data" if amount == 1 else f"{share(amount)} of the data"


def probability(share: float) -> str:
    """A percentage that is never rounded to certainty.

    >>> probability(0.9996), probability(0.0001), probability(0.5)
    ('> 99.9 %', '< 0.1 %', '50.0 %')
    """
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return "< 0.1 %" if 0 < share < 0.0005 else percent(float(share))


def interval(edges: Sequence[float]) -> str:
    """
    >>> interval([0.43329, 0.49499])
    '43.3 to 49.5 %'
    """
    return f"{100 * edges[0]:.1f} to {100 * edges[1]:.1f} %"


def points(value: float, sign: bool = True) -> str:
    """A difference of shares in percentage points.

    >>> points(-0.021), points(-0.0001), points(0.5, sign=False), points(float("nan"))
    ('−2.1', '+0.0', '50.0', '–')
    """
    return f"{100 * value:{'+' if sign else ''}z.1f}".replace("-", "−") if math.isfinite(value) else NONE


def span(low: float, high: float, *, sign: bool = False) -> str:
    """
    >>> span(-0.02, 0.031, sign=True), span(0.7, 0.8), span(float("nan"), float("nan"))
    ('−2.0 to +3.1', '70.0 to 80.0', '–')
    """
    return f"{points(low, sign)} to {points(high, sign)}" if math.isfinite(low) else NONE


def plus_minus(value: float, low: float, high: float) -> str:
    """
    >>> plus_minus(0.7241, 0.71, 0.738), plus_minus(0.7, float("nan"), float("nan"))
    ('72.4 ± 1.4', '70.0')
    """
    half = 100 * (high - low) / 2
    return f"{100 * value:.1f} ± {half:.1f}" if math.isfinite(half) else f"{100 * value:.1f}"


def p_value(p: float) -> str:
    """
    >>> p_value(0.0321), p_value(0.1017), p_value(0.00001), p_value(1.0)
    ('p = 0.032', 'p = 0.10', 'p < 0.001', 'p = 1')
    """
    return "p < 0.001" if p < 0.001 else "p = 1" if p >= 0.995 else f"p = {p:#.2g}"


def measured(value: float | None, unit: str) -> str:
    """A measurement in its unit; shares are percentages.

    >>> measured(0.4641, "share"), measured(6.123, "pixels"), measured(None, "share")
    ('46.4 %', '6.12', '–')
    """
    if value is None or not math.isfinite(value):
        return NONE
    return percent(value) if unit == "share" else f"{value:.3g}"


def measured_interval(low: float | None, high: float | None, unit: str) -> str:
    """
    >>> measured_interval(0.41, 0.52, "share"), measured_interval(None, None, "pixels")
    ('41.0 to 52.0', '')
    """
    edges = [edge for edge in (low, high) if edge is not None and math.isfinite(edge)]
    return " to ".join(measured(edge, unit).removesuffix(" %") for edge in edges) if len(edges) == 2 else ""


def duration(seconds: float) -> str:
    """A time that was measured.

    >>> duration(8.34), duration(122.7), duration(7275)
    ('8.3 s', '2 min 3 s', '2 h 1 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def estimated_duration(seconds: float) -> str:
    """A time that is only estimated, with two digits.

    >>> [estimated_duration(seconds) for seconds in (0.3, 42, 150, 8000, 400_000)]
    ['0 s', '42 s', '2.5 min', '2.2 h', '4.6 days']
    """
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.0f} s"


def memory(size: float) -> str:
    """
    >>> memory(3 * 2**29), memory(20 * 2**20)
    ('1.5 GiB', '20 MiB')
    """
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def short_number(value: float) -> str:
    """
    >>> [short_number(value) for value in (-0.5, 20.0, 1350.0, 5e4, 2e6, 1e9)]
    ['−0.5', '20', '1,350', '50k', '2M', '1G']
    """
    text = f"{value:,g}"
    for size, letter in ((1e3, "k"), (1e6, "M"), (1e9, "G")):
        if abs(value) >= max(size, 1e4):
            text = f"{value / size:g}{letter}"
    return text.replace("-", "−")


def exact_number(value: float) -> str:
    """A whole number in full, another one with three digits.

    >>> exact_number(4095), exact_number(0.00837)
    ('4,095', '0.00837')
    """
    return f"{value:,.0f}" if value == round(value) else f"{value:.3g}"


def count(number: int, noun: str) -> str:
    """
    >>> count(1, "seed"), count(2500, "picture")
    ('1 seed', '2,500 pictures')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(names: Iterable[str]) -> str:
    """
    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def shortened(name: str, longest: int = 22) -> str:
    """
    >>> shortened("deit_tiny@regularize=distance:layer=2,weight=0.01")
    'deit_tiny@regularize=…'
    """
    return name if len(name) <= longest else name[: longest - 1] + "…"
