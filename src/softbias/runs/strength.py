"""How strongly training images are changed, and the model held back: by how often each image will be seen.

A model that sees an image ten times does not learn it by heart, and every change of the image makes learning slower. A model
that sees it hundreds of times does, unless the image looks different each time (Steiner et al., 2021, for transformers).

    level       each image is seen     RandAugment     erased    mixed with another     drop path
    mild        less than 20 times     –               –         –                      –
    medium      20 to 100 times        magnitude 5     1 in 8    every second image     0.05
    strong      100 times or more      magnitude 9     1 in 4    every image            0.1

A training that sees less than half a million images in all is at most medium: it has too few steps for what strong
augmentation asks of it. "Mixed" is mixup (α = 0.8) or CutMix (α = 1), each for half of the mixed images. All levels keep the
crops and flips of their recipe.
"""

from __future__ import annotations

from typing import Any, Literal

from softbias.training.recipe import Recipe

Level = Literal["mild", "medium", "strong"]
MEDIUM_FROM, STRONG_FROM = 20, 100  # epochs
STRONG_IMAGES = 500_000  # seen in all, from which strong augmentation pays

LEVELS: dict[Level, dict[str, Any]] = {
    "mild": {"randaugment": None, "erasing": 0.0, "mixup": 0.0, "cutmix": 0.0, "mix_probability": 1.0, "drop_path": 0.0},
    "medium": {
        "randaugment": "rand-m5-mstd0.5-inc1", "erasing": 0.125, "mixup": 0.8, "cutmix": 1.0, "mix_probability": 0.5,
        "drop_path": 0.05,
    },
    "strong": {
        "randaugment": "rand-m9-mstd0.5-inc1", "erasing": 0.25, "mixup": 0.8, "cutmix": 1.0, "mix_probability": 1.0,
        "drop_path": 0.1,
    },
}  # fmt: skip


def level_for(epochs: float, n_train: int) -> Level:
    """The level for a training of this many epochs on this many images.

    >>> level_for(8, 5000), level_for(50, 45_000), level_for(200, 50_000), level_for(1000, 100)
    ('mild', 'medium', 'strong', 'medium')
    """
    if epochs < MEDIUM_FROM:
        return "mild"
    return "strong" if epochs >= STRONG_FROM and epochs * n_train >= STRONG_IMAGES else "medium"


def with_strength(recipe: Recipe, epochs: float, n_train: int) -> Recipe:
    """The recipe with the augmentation and the drop path of the level that suits."""
    return recipe.with_overrides(LEVELS[level_for(epochs, n_train)])
