"""A model at work: on what a user names as the model, and on what a user names as pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from softbias.classifier import Picture
from softbias.data.listing import SUFFIXES, natural
from softbias.data.tables import TABLES, read_table
from softbias.errors import SoftbiasError
from softbias.explanations import Explanation
from softbias.explanations import explain as explain_image
from softbias.runs.opening import Source, open_classifier


def explain(
    model: Source,
    image: Picture,
    *,
    query: tuple[int, int] | None = None,
    target: int | str | None = None,
    methods: Sequence[str] | None = None,
    device: str = "cpu",
) -> Explanation:
    """Explain one picture.

    model     a run's or saved model's folder, "timm:NAME", "hf:FOLDER", a name of `softbias models`, or a module
    image     a file, a PIL image, or an array (height, width, 3) of uint8
    query     the patch (row, column) from which heads look; the middle one if not given
    target    the class that gradients are about, by name or number; the predicted one if not given
    methods   of `softbias.probes.attribution.METHODS`; by default rollout, gradient-rollout and gradients, or grad-cam and
              gradients for a model without maps
    """
    classifier = open_classifier(model, device=device)
    return explain_image(classifier, image, query=query, target=target, methods=methods)


def find_pictures(sources: Iterable[str | Path]) -> list[Path]:
    """The files named, those listed in the tables named, and the pictures below the folders named, in natural order."""
    found: list[Path] = []
    for source in map(Path, sources):
        if source.suffix.lower() in TABLES and source.is_file():
            found += [source.parent / name for name in read_table(source, needed=("path",))["path"]]
            continue
        if not source.is_dir():
            found.append(source)
            continue
        inside = (file for file in source.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        visible = [file for file in inside if not any(part.startswith(".") for part in file.relative_to(source).parts)]
        if not visible:
            raise SoftbiasError(f"there are no pictures in {source}")
        found += sorted(visible, key=lambda file: natural(str(file)))
    return found
