"""How long a probe will take: a small batch is timed at every size of picture that the probe shows, and multiplied out."""

from __future__ import annotations

import time

import torch

from softbias.classifier import Classifier
from softbias.probes import Probe
from softbias.probes.entry import NoNativeEntryError, at_size

BATCH = 8


def expected_seconds(probe: Probe, classifier: Classifier, size: tuple[int, int], n: int) -> float:
    """Seconds of all passes over n pictures; an estimate, from one small batch per size after a first one to warm up."""
    total = 0.0
    for count, side in probe.passes:
        scaled = (max(1, round(size[0] * side)), max(1, round(size[1] * side)))
        try:
            ready = classifier if side == 1 else at_size(classifier, scaled)
            pictures = max(n, probe.pictures) if probe.scenes and side != 1 else n
            total += count * pictures * seconds_per_picture(ready, scaled)
        except (NoNativeEntryError, ValueError, RuntimeError):
            continue  # the probe itself says what it leaves out
    return total


@torch.no_grad()
def seconds_per_picture(classifier: Classifier, size: tuple[int, int]) -> float:
    images = torch.zeros(BATCH, 3, *size, device=classifier.device)
    classifier.logits(images)
    started = time.perf_counter()
    classifier.logits(images)
    if images.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / BATCH


def in_words(probe: Probe, n: int, seconds: float) -> str:
    """
    >>> from softbias.probes import PROBES
    >>> in_words(PROBES["combined"], 5000, 90.0)
    '5,000 pictures, 2 passes each (1, and 1 of 2 × the side), about 1 min 30 s'
    """
    from softbias.pages.format import duration

    parts = [f"{count:g}" if side == 1 else f"{count:g} of {side:g} × the side" for count, side in probe.passes]
    passes = sum(count for count, _ in probe.passes)
    kinds = f" ({', and '.join(parts)})" if len(parts) > 1 else ""
    return f"{n:,} pictures, {passes:g} pass{'es' if passes != 1 else ''} each{kinds}, about {duration(seconds)}"
