"""Copies of pictures: re-encoded, resized or slightly retouched ones.

Near duplicates are found in two steps. A difference hash of 128 bits (is a point of a 9 × 9 version darker than its right
neighbor, than its lower one?) brings candidates together: two hashes that differ in at most 7 bits agree in at least one of
8 bands of 16 bits, so it is enough to sort by each band and look at neighbors. A thumbnail then decides, since skies and
white backgrounds share a hash without being the same picture. Mirrored and cropped copies are not found.

At 32 px a strong re-encoding changes more than half of the pictures too much, and silhouettes pass that only look the same.
So a near duplicate is a warning, never an error.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from softbias.data.decode import THUMBNAIL as SIDE

BANDS = 8
NEIGHBORS = 1000  # that a picture is compared with in a band
CANDIDATES = 200_000  # per band; more of them are blank pictures, for which the next neighbors are enough
MEAN_DIFFERENCE = 6.0  # of 255, between thumbnails
CORRELATION = 0.99
FLAT = 3.0  # thumbnails with less contrast than this have no meaningful correlation


def thumbnails(images: NDArray[np.uint8], chunk: int = 1024) -> NDArray[np.uint8]:
    """Averages over areas.  # (N, H, W, 3) -> (N, 16, 16, 3)"""
    rows, columns = _areas(images.shape[1], SIDE), _areas(images.shape[2], SIDE)
    small = np.empty((len(images), SIDE, SIDE, 3), np.uint8)
    for start in range(0, len(images), chunk):
        part = images[start : start + chunk].astype(np.float32)
        flat = rows @ part.reshape(len(part), part.shape[1], -1)  # (n, 16, W · 3): one product, no transposed copy
        small[start : start + chunk] = np.round(columns @ flat.reshape(len(part), SIDE, -1, 3))
    return small


def difference_hash(thumbs: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """128 bits as 8 bands of 16.  # (N, 16, 16, 3) -> (N, 8)"""
    areas = _areas(SIDE, 9)
    bits = np.empty((len(thumbs), 128), bool)
    for start in range(0, len(thumbs), 8192):
        grey = thumbs[start : start + 8192].astype(np.float32).mean(-1)
        small = areas @ grey @ areas.T  # (N, 9, 9)
        right = small[:, :8, :-1] + 2 < small[:, :8, 1:]  # a step of 2: flat parts must not be decided by noise
        below = small[:, :-1, :8] + 2 < small[:, 1:, :8]
        bits[start : start + 8192] = np.concatenate([right.reshape(-1, 64), below.reshape(-1, 64)], axis=1)
    spread = bits.reshape(-1, 16, BANDS).transpose(0, 2, 1).reshape(-1, 128)  # each band takes points from everywhere
    return np.packbits(spread, axis=1).view(np.uint16)


def near_pairs(thumbs: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Pairs of near duplicates, enough of them to connect all that belong together.  # (N, 16, 16, 3) -> (P, 2)"""
    hashes = difference_hash(thumbs)
    whole = hashes.copy().view(np.uint64)  # (N, 2)
    brightness = thumbs.mean((1, 2, 3))
    found = [np.empty(0, np.int64)]
    for band in range(BANDS):
        order = np.lexsort((brightness, whole[:, 1], whole[:, 0], hashes[:, band]))  # the most alike stand next to each other
        key = hashes[order, band]
        candidates = 0
        for step in range(1, min(NEIGHBORS, len(order))):
            here = np.flatnonzero(key[step:] == key[:-step])
            if not len(here) or candidates > CANDIDATES:
                break
            a, b = order[here], order[here + step]
            close = np.bitwise_count(whole[a] ^ whole[b]).sum(1, dtype=np.int64) < BANDS
            found.append((np.minimum(a, b) * len(thumbs) + np.maximum(a, b))[close])
            candidates += int(close.sum())
    pairs = np.stack(np.divmod(np.unique(np.concatenate(found)), max(1, len(thumbs))), axis=1)
    return pairs[_alike(thumbs, pairs)]


def clusters(count: int, pairs: ArrayLike) -> NDArray[np.int64]:
    """One number per picture; pictures that pairs connect share it.  # (N,)"""
    edges = np.asarray(pairs, np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(edges), bool), (edges[:, 0], edges[:, 1])), shape=(count, count))
    labels: NDArray[np.int32] = connected_components(graph, directed=False)[1]
    return labels.astype(np.int64)


def _alike(thumbs: NDArray[np.uint8], pairs: NDArray[np.int64], chunk: int = 20_000) -> NDArray[np.bool_]:
    alike = np.zeros(len(pairs), bool)
    for start in range(0, len(pairs), chunk):
        a, b = (thumbs[pairs[start : start + chunk, side]].reshape(-1, SIDE * SIDE * 3).astype(np.float32) for side in (0, 1))
        same = np.abs(a - b).mean(1) <= MEAN_DIFFERENCE
        a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
        spread_a, spread_b = np.sqrt((a * a).mean(1)), np.sqrt((b * b).mean(1))
        correlated = (a * b).mean(1) >= CORRELATION * spread_a * spread_b
        alike[start : start + chunk] = same & (correlated | ((spread_a < FLAT) & (spread_b < FLAT)))
    return alike


def near_groups(thumbs: NDArray[np.uint8]) -> NDArray[np.int64]:
    """One number per picture, which near copies share, and copies of these.  # (N, 16, 16, 3) -> (N,)"""
    rows = np.ascontiguousarray(thumbs).reshape(len(thumbs), SIDE * SIDE * 3).view(f"V{SIDE * SIDE * 3}")
    _, first, same = np.unique(rows[:, 0], return_index=True, return_inverse=True)
    return clusters(len(first), near_pairs(thumbs[first]))[same]


@functools.cache
def _areas(size: int, parts: int) -> NDArray[np.float32]:
    """Weights that average `size` points over `parts` equal stretches.  # (parts, size)"""
    edges = np.arange(parts + 1) * size / parts
    low, high = edges[:-1, None], edges[1:, None]
    points = np.arange(size)
    overlap = np.clip(np.minimum(high, points + 1) - np.maximum(low, points), 0, None)
    weights: NDArray[np.float32] = (overlap / overlap.sum(1, keepdims=True)).astype(np.float32)
    return weights
