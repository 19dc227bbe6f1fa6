"""Numbers in words, the same on every page and in the terminal."""

from __future__ import annotations

from collections.abc import Sequence


def percent(share: float | None) -> str:
    """
    >>> percent(0.4641), percent(None)
    ('46.4 %', '–')
    """
    return "–" if share is None else f"{100 * share:.1f} %"


def share(fraction: float) -> str:
    """
    >>> share(0.1), share(0.29), share(0.0125)
    ('10 %', '29 %', '1.25 %')
    """
    return f"{100 * fraction:g} %"


def probability(value: float) -> str:
    """A probability that is nearly 0 or 1 is not rounded to it.

    >>> probability(0.9996), probability(0.0001), probability(0.5)
    ('> 99.9 %', '< 0.1 %', '50.0 %')
    """
    if 0.9995 <= value < 1:
        return "> 99.9 %"
    return "< 0.1 %" if 0 < value < 0.0005 else percent(float(value))


def interval(edges: Sequence[float]) -> str:
    """
    >>> interval([0.43329, 0.49499])
    '43.3 to 49.5 %'
    """
    return f"{100 * edges[0]:.1f} to {100 * edges[1]:.1f} %"


def duration(seconds: float) -> str:
    """
    >>> duration(8.34), duration(122.7), duration(7275)
    ('8.3 s', '2 min 3 s', '2 h 1 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def memory(size: float) -> str:
    """
    >>> memory(3 * 2**29), memory(20 * 2**20)
    ('1.5 GiB', '20 MiB')
    """
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
