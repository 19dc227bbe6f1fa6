"""A classifier with the interface of scikit-learn.

    from softbias.sklearn import SoftbiasClassifier
    classifier = SoftbiasClassifier(recipe_options={"epochs": 20}).fit(files, labels)
    classifier.predict(more_files), classifier.predict_proba(more_files), classifier.score(more_files, more_labels)

X is a list of picture files, or an array of pictures (n, height, width) or (n, height, width, 3), uint8 or float in [0, 1].
It works with `clone`, `cross_val_score` and `GridSearchCV`, and a fitted one can be pickled.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from softbias.bounds import ValueRange
from softbias.data.arrays import array_range, as_images
from softbias.data.dataset import Dataset
from softbias.data.decode import decode, in_order
from softbias.data.resizing import check_resize_mode, resize_all
from softbias.data.value_range import find_range
from softbias.environment import find_device
from softbias.errors import SoftbiasError
from softbias.pages.wording import text
from softbias.runs.fit import run_fit
from softbias.runs.opening import open_classifier
from softbias.runs.partial import check_conversion
from softbias.runs.spec import RunSpec
from softbias.runs.starting import ImageFacts, find_start
from softbias.training.display import choose
from softbias.training.recipe import find_recipe

SIDE = 64  # pixels of files, if no img_size is given


class SoftbiasClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A vision transformer with a soft inductive bias, trained on pictures.

    model, model_options     a name from `softbias models`, and options such as {"patch_size": 8}
    recipe, recipe_options   a name from `softbias recipes`, and changes such as {"epochs": 20, "flip": 0}
    start, weights           "scratch", "pretrained" (`softbias models --pretrained` lists models that have weights), "auto", or
                             the folder of a run; weights: a file or folder of pretrained weights
    convert                  other attention for such a model: "gated", "masked:blocks=0-9,rank=4"
    img_size                 side of the pictures; if it is not given, that of the pretrained weights, and without such arrays
                             keep theirs and files become 64 × 64
    resize_mode              what happens to the aspect ratio: crop, pad or stretch
    out                      folder that keeps the run; None keeps the model in memory only

    After fit: `classes_`, `n_iter_` (epochs), and `classifier_`, which also takes files one by one.
    """

    def __init__(
        self,
        model: str = "convit_nano",
        recipe: str = "quick",
        *,
        model_options: Mapping[str, Any] | None = None,
        recipe_options: Mapping[str, Any] | None = None,
        start: str | Path = "scratch",
        weights: str | Path | None = None,
        convert: str | None = None,
        img_size: int | None = None,
        resize_mode: str = "crop",
        random_state: int = 0,
        device: str = "auto",
        out: str | Path | None = None,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.model_options = model_options
        self.recipe_options = recipe_options
        self.start = start
        self.weights = weights
        self.convert = convert
        self.img_size = img_size
        self.resize_mode = resize_mode
        self.random_state = random_state
        self.device = device
        self.out = out
        self.verbose = verbose

    def fit(self, X: Any, y: ArrayLike) -> SoftbiasClassifier:
        labels = np.asarray(y)
        word = "auto" if self.weights is not None and self.start == "scratch" else str(self.start)
        facts, options = ImageFacts(self.img_size, self.img_size is not None), dict(self.model_options or {})
        found = find_start(word, self.weights, self.model, options, find_device(self.device), facts)
        check_conversion(self.convert, found.start, None)
        value_range = find_range(X) if is_files(X) else array_range([np.asarray(X)])
        images = self.to_images(X, None if self.img_size is not None else found.start.img_size, value_range)
        if labels.shape != (len(images),):
            raise SoftbiasError(
                f"X holds {len(images)} pictures, so y must have shape ({len(images)},), but it has {labels.shape}"
            )
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise SoftbiasError(
                f"a classifier needs at least two classes, but y holds {len(self.classes_)}: {self.classes_.tolist()}"
            )
        names = tuple(map(str, self.classes_))
        splits = {"train": np.arange(len(images))}
        data = Dataset("X", images, numbers.astype(np.int64), names, splits, value_range=value_range)
        spec = RunSpec(
            data=f"X-{data.fingerprint()}",
            model=found.model or self.model,
            recipe=find_recipe(self.recipe).with_overrides(self.recipe_options or {}),
            seed=self.random_state,
            data_options={"resize_mode": self.resize_mode},
            model_options={**found.model_options, **options},
            start=found.start,
            finetune="full" if found.start.learned else None,
            convert=self.convert,
        )
        display = choose(quiet=not self.verbose)
        for note in found.notes:
            display.message(text(note))
        with tempfile.TemporaryDirectory(prefix="softbias-") as folder:
            path = Path(self.out) if self.out is not None else Path(folder) / "run"
            result = run_fit(spec, path, data=data, display=display, device=self.device, trackers=(), baseline=False)
            self.classifier_ = open_classifier(result.path, device=find_device(self.device))
        self.n_iter_ = result.summary["epochs"]
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Probabilities in the order of `classes_`.  # (n, K)"""
        check_is_fitted(self, "classifier_")
        images = self.to_images(X, self.classifier_.img_size, self.classifier_.value_range)
        return self.classifier_.probabilities(images)

    def predict(self, X: Any) -> NDArray[Any]:
        check_is_fitted(self, "classifier_")
        labels: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(1)]
        return labels

    def to_images(self, X: Any, size: tuple[int, int] | None, value_range: ValueRange | None) -> NDArray[np.uint8]:
        """X as bytes at a size: the model's, or before there is one the size asked for.  # (n, height, width, 3)

        value_range   what is black and white in pictures of more than eight bits, as in those of `fit`
        """
        check_resize_mode(self.resize_mode)
        if size is None and self.img_size is not None:
            size = (self.img_size, self.img_size)
        if is_files(X):
            return read_files(X, size or (SIDE, SIDE), self.resize_mode, value_range)
        given = np.asarray(X)
        images = as_images(given, "X", value_range if given.dtype == np.uint16 else None)
        return images if size is None else resize_all(images, size, self.resize_mode)


def is_files(X: Any) -> bool:
    if isinstance(X, np.ndarray):
        return X.ndim == 1 and X.dtype.kind in "OU"
    return isinstance(X, Sequence) and len(X) > 0 and isinstance(X[0], str | Path)


def read_files(
    files: Sequence[str | Path], size: tuple[int, int], resize_mode: str, value_range: ValueRange | None
) -> NDArray[np.uint8]:
    """Every file must be a picture: what belongs to a label cannot be left out here."""
    return np.stack(list(in_order(lambda file: decode(file, size, resize_mode, value_range), files)))
