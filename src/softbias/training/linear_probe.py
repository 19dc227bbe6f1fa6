"""What a frozen backbone is worth: a linear classifier on its features, beside one on a random backbone and one on raw pixels.

A probe alone says little: features of random weights are good features, too. So the three stand side by side, fitted by the
same method on the same pictures without augmentation: standardized features, logistic regression, its strength chosen on a
tenth of the training pictures.

Shapes: n pictures, C channels, K classes.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from softbias.data.dataset import Dataset
from softbias.data.splits import stratified_split
from softbias.training.baseline import can_be_fitted, pixel_features
from softbias.training.batches import Pixels, plain_batches
from softbias.training.scores import wilson

STRENGTHS = (1e-3, 1e-2, 1e-1)  # C of scikit-learn
REGIONS = 4  # a side: what a head that sees every patch gets, in regions
HELD_OUT = 0.1  # of the training pictures choose the strength


def linear_probes(
    model: nn.Module,
    data: Dataset,
    train: NDArray[np.int64],
    test: NDArray[np.int64],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    *,
    seed: int = 0,
) -> list[dict[str, Any]] | None:
    """Accuracy on the test pictures of the three backbones, or None where no regression can be fitted."""
    if not can_be_fitted(data, train):
        return None
    device = next(model.parameters()).device
    train_pixels, test_pixels = (Pixels(data, split, device) for split in (train, test))

    def of(backbone: nn.Module) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return features(backbone, train_pixels, mean, std), features(backbone, test_pixels, mean, std)

    found = {"pre-trained": of(model)}
    fresh = untrained(model, seed)
    if fresh is not None:
        found["random weights"] = of(fresh.to(device))
    found["raw pixels"] = pixel_features(data.images[train]), pixel_features(data.images[test])
    return [{"backbone": name, **probe(*pair, data.labels[train], data.labels[test])} for name, pair in found.items()]


def untrained(model: Any, seed: int) -> nn.Module | None:
    """The same architecture with fresh weights; None for models that cannot be built from what they know of themselves."""
    from softbias.models import build, create_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if getattr(model, "spec", None) is not None:
            return build(model.spec, name=model.name)
        if getattr(model, "timm_options", None) is not None:
            return create_model(model.name, **model.timm_options)
    return None


@torch.no_grad()
def features(model: Any, pixels: Pixels, mean: tuple[float, ...], std: tuple[float, ...]) -> NDArray[np.float32]:
    """What the head would see, with patches averaged in 4 × 4 regions where it sees every patch.  # (n, features)"""
    training = model.training
    model.eval()
    found = [head_input(model, images).flatten(1).float().cpu() for images, _ in plain_batches(pixels, mean, std, 256)]
    model.train(training)
    return torch.cat(found).numpy()


def head_input(model: Any, images: Tensor) -> Tensor:
    """# (B, …) -> (B, C) or (B, C, 4, 4)"""
    if not hasattr(model, "forward_features"):  # Hugging Face's
        seen: list[Tensor] = []
        hook = model.get_classifier().register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        model(images)
        hook.remove()
        return seen[0]
    tokens = model.forward_features(images)
    if getattr(model, "global_pool", None) == "flatten":
        picture = model.grid(len(model.blocks) - 1).as_image(tokens)
        return adaptive_avg_pool2d(picture, (min(REGIONS, picture.shape[2]), min(REGIONS, picture.shape[3])))
    return model.forward_head(tokens, pre_logits=True)


def probe(
    train: NDArray[np.float32], test: NDArray[np.float32], labels: NDArray[np.int64], truth: NDArray[np.int64]
) -> dict[str, Any]:
    """Accuracy of the regression on test features, and the strength that a tenth of the training pictures chose."""
    center, scale = train.mean(0), train.std(0)
    train, test = ((part - center) / np.where(scale > 1e-6, scale, 1) for part in (train, test))
    parts = stratified_split(labels, {"held": HELD_OUT}, seed=0)
    kept, held = parts["train"], parts["held"]
    best = STRENGTHS[1]
    if len(held) and len(np.unique(labels[kept])) > 1:  # else there are too few to choose by
        right_of = [(fitted(train[kept], labels[kept], c).predict(train[held]) == labels[held]).sum() for c in STRENGTHS]
        best = STRENGTHS[int(np.argmax(right_of))]
    right = int((fitted(train, labels, best).predict(test) == truth).sum())
    return {
        "accuracy": right / len(truth),
        "accuracy_interval": list(wilson(right, len(truth))),
        "n": len(truth),
        "features": train.shape[1],
        "strength": best,
    }


def fitted(features: NDArray[np.float32], labels: NDArray[np.int64], strength: float) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=strength, max_iter=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a hundred iterations are close enough for a comparison
        return model.fit(features, labels)
