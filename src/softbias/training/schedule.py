"""Learning rates as a pure function of the step: nothing to save, nothing to get out of step after a resume.

warm-up     warmup_lr + (peak − warmup_lr) · step / warmup
cosine      min_lr + (peak − min_lr) (1 + cos π p) / 2          p: share of the steps after the warm-up
one-cycle   up from peak / 25 for the first 30 %, then down to min(min_lr, peak / 1000), both along a cosine
"""

from __future__ import annotations

import math

from softbias.training.recipe import Recipe

ONE_CYCLE_UP, ONE_CYCLE_START, ONE_CYCLE_END = 0.3, 1 / 25, 1 / 1000


def learning_rate(recipe: Recipe, step: int, total_steps: int, warmup_steps: int) -> float:
    """The learning rate of step 0 … total_steps − 1."""
    peak = recipe.peak_lr()
    last = max(1, total_steps - 1)
    if recipe.schedule == "one-cycle":
        turn = ONE_CYCLE_UP * last
        if step < turn:
            return between(peak * ONE_CYCLE_START, peak, step / turn)
        return between(peak, min(recipe.min_lr, peak * ONE_CYCLE_END), (step - turn) / max(1e-9, last - turn))
    if step < warmup_steps:
        return recipe.warmup_lr + (peak - recipe.warmup_lr) * (step + 1) / (warmup_steps + 1)
    if recipe.schedule == "constant":
        return peak
    share = (step - warmup_steps) / max(1, last - warmup_steps)
    return between(peak, min(recipe.min_lr, peak), share)


def between(start: float, end: float, share: float) -> float:
    """From start to end along half a cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * min(1.0, share))) / 2
