"""Linear classifiers to compare with: on raw pixels (the score to beat), and on the features of a frozen backbone.

The regression on pixels takes seconds and uses the same split as the model.

The features of a backbone say little alone, because those of random weights are good, too. So three linear probes stand side by
side: the pre-trained backbone, the same architecture with random weights, and raw pixels. All are fitted by the same method on
the same images without augmentation: standardized features, and a logistic regression whose strength a tenth of the training
images chooses.

Shapes: n images, C channels.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from softbias.data.dataset import Dataset
from softbias.data.splits import stratified_split
from softbias.models import build, create_model
from softbias.stats import wilson
from softbias.training.batches import SplitImages, plain_batches

MOST = 20_000  # training images; a regression on more takes too long
MOST_TIMES_CLASSES = 2_000_000  # training images × classes, for the same reason
SIDE = 32  # images are averaged down to this
AT_ONCE = 64  # images that are floats at the same time
PIXEL_STRENGTH = 0.03  # C of scikit-learn's regression, on pixels
STRENGTHS = (1e-3, 1e-2, 1e-1)  # among which a tenth of the training images choose, on features
REGIONS = 4  # a side: where the head sees every patch, a regression sees averages of 4 × 4 regions
HELD_OUT = 0.1  # of the training images choose the strength
FITTED: dict[tuple[int, bytes, bytes], tuple[weakref.ref[Any], dict[str, Any]]] = {}  # runs of one process share their splits


def can_be_fitted(data: Dataset, train: NDArray[np.int64]) -> bool:
    """Whether a logistic regression takes a minute at most, and there is more than one class."""
    quick = len(train) <= MOST and len(train) * len(data.class_names) <= MOST_TIMES_CLASSES
    return quick and len(np.unique(data.labels[train])) > 1


def pixel_features(images: NDArray[np.uint8], *, at_once: int = AT_ONCE) -> NDArray[np.float32]:
    """Pixels in [0, 1], averaged down to 32 × 32; one channel where all images are gray.  # (n, features)"""
    factor = max(1, -(-max(images.shape[1:3]) // SIDE))
    rows, columns = (min(factor, side) for side in images.shape[1:3])  # the short side of a strip may be less
    height, width = images.shape[1] // rows, images.shape[2] // columns
    small, gray = np.empty((len(images), height, width, 3), np.float32), True
    for start in range(0, len(images), at_once):  # all at once they would take eight times the memory of the set
        part = images[start : start + at_once]
        scaled = part[:, : height * rows, : width * columns].astype(np.float32) / 255
        small[start : start + at_once] = scaled.reshape(len(part), height, rows, width, columns, 3).mean((2, 4))
        gray = gray and bool((part == part[..., :1]).all())
    return (small[..., :1] if gray else small).reshape(len(images), -1)


def pixel_baseline(data: Dataset, train: NDArray[np.int64], test: NDArray[np.int64]) -> dict[str, Any] | None:
    """Test accuracy of a regression on pixels; None where it would take too long, or there is one class."""
    if not can_be_fitted(data, train):
        return None
    key = id(data.images), train.tobytes(), test.tobytes()
    known = FITTED.get(key)
    if known is not None and known[0]() is data.images:
        return known[1]
    model = regression(pixel_features(data.images[train]), data.labels[train], PIXEL_STRENGTH)
    right = int((model.predict(pixel_features(data.images[test])) == data.labels[test]).sum())
    found = {"name": f"logistic regression on raw pixels (C={PIXEL_STRENGTH})", **accuracy_of(right, len(test))}
    FITTED[key] = weakref.ref(data.images), found
    return found


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
    """Accuracy on the test images of the three backbones; None where no regression can be fitted."""
    if not can_be_fitted(data, train):
        return None
    device = next(model.parameters()).device
    parts = [SplitImages(data, split, device) for split in (train, test)]
    found = {"pre-trained": [features(model, part, mean, std) for part in parts]}
    fresh = untrained(model, seed)
    if fresh is not None:
        found["random weights"] = [features(fresh.to(device), part, mean, std) for part in parts]
    found["raw pixels"] = [pixel_features(data.images[split]) for split in (train, test)]
    labels, truth = data.labels[train], data.labels[test]
    return [{"backbone": name, **linear_probe(pair[0], pair[1], labels, truth)} for name, pair in found.items()]


def untrained(model: Any, seed: int) -> nn.Module | None:
    """The same architecture with fresh weights; None for a model that does not know how it was built."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if getattr(model, "spec", None) is not None:
            return build(model.spec, name=model.name)
        if getattr(model, "timm_options", None) is not None:
            return create_model(model.name, **model.timm_options)
    return None


@torch.no_grad()
def features(model: Any, images: SplitImages, mean: tuple[float, ...], std: tuple[float, ...]) -> NDArray[np.float32]:
    """The input of the head, with patches averaged in 4 × 4 regions where it sees every patch.  # (n, features)"""
    training = model.training
    model.eval()
    found = [head_input(model, part).flatten(1).float().cpu() for part, _ in plain_batches(images, mean, std, 256)]
    model.train(training)
    return torch.cat(found).numpy()


def head_input(model: Any, images: Tensor) -> Tensor:
    """# (n, 3, height, width) -> (n, C) or (n, C, 4, 4)"""
    if not hasattr(model, "forward_features"):  # Hugging Face's
        seen: list[Tensor] = []
        hook = model.get_classifier().register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        model(images)
        hook.remove()
        return seen[0]
    tokens: Tensor = model.forward_features(images)
    if getattr(model, "global_pool", None) == "flatten":
        patches = model.grid(len(model.blocks) - 1).as_image(tokens)
        return adaptive_avg_pool2d(patches, (min(REGIONS, patches.shape[2]), min(REGIONS, patches.shape[3])))
    pooled: Tensor = model.forward_head(tokens, pre_logits=True)
    return pooled


def linear_probe(
    train: NDArray[np.float32], test: NDArray[np.float32], labels: NDArray[np.int64], truth: NDArray[np.int64]
) -> dict[str, Any]:
    """Accuracy of a regression on test features, and the strength that was chosen."""
    center, scale = train.mean(0), train.std(0)
    train, test = ((part - center) / np.where(scale > 1e-6, scale, 1) for part in (train, test))
    parts = stratified_split(labels, {"held": HELD_OUT}, seed=0)
    kept, held = parts["train"], parts["held"]
    best = STRENGTHS[1]
    if len(held) and len(np.unique(labels[kept])) > 1:  # else too few images to choose by
        right_of = [(regression(train[kept], labels[kept], c).predict(train[held]) == labels[held]).sum() for c in STRENGTHS]
        best = STRENGTHS[int(np.argmax(right_of))]
    right = int((regression(train, labels, best).predict(test) == truth).sum())
    return {**accuracy_of(right, len(truth)), "n": len(truth), "features": train.shape[1], "strength": best}


def regression(inputs: NDArray[np.float32], labels: NDArray[np.int64], strength: float) -> Any:
    """A fitted logistic regression of scikit-learn."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=strength, max_iter=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a hundred iterations are close enough for a comparison
        warnings.filterwarnings("ignore", "The number of unique classes")  # there are many classes of few pictures
        return model.fit(inputs, labels)


def accuracy_of(right: int, n: int) -> dict[str, Any]:
    return {"accuracy": right / n, "accuracy_interval": list(wilson(right, n))}
