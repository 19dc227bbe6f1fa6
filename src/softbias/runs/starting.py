"""From the word of a user to the weights of a run: `--start auto|pretrained|scratch|RUN`, `--weights FILE|FOLDER`.

    choose_start("auto", "deit_tiny", {}, "cpu", ImageFacts(128))      pretrained, where its weights can be had
    weights_start("w/deit_tiny_patch16_224.safetensors", None)       a file that the user names
    run_start("runs/rotations")                                      the model of another run

"auto" takes pretrained weights where they can be had without a large download, and fresh ones otherwise; a note says which,
why, and what more would cost. "pretrained" is an error where none can be had.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from softbias.classifier import preprocessing_beside
from softbias.errors import SoftbiasError
from softbias.json_file import read_json
from softbias.models import weight_files
from softbias.models.backbones import BACKBONES, ON_CPU, ON_GPU, Backbone, backbone_of_file, find_backbone
from softbias.models.hub import NoWeightsError
from softbias.models.spec import pair
from softbias.models.untrusted import check_folder
from softbias.models.weight_files import UNASKED_MEGABYTES, WeightsFile
from softbias.notes import Note
from softbias.runs.spec import DECIDED, read_config
from softbias.runs.start import WORDS, Start

if TYPE_CHECKING:
    from softbias.data.dataset import Dataset
    from softbias.data.sources import Source

SMALL = 64  # pixels; on a CPU smaller pictures are not enlarged to 224: it takes 12 times as long, and no gain was measured
MANY = 20_000  # pictures; at 224 pixels so many take a CPU hours
SAMPLE = 64  # pictures that are looked at for colors
GREY = ("1", "L", "LA", "I", "I;16", "F")  # modes of Pillow
LOCAL, REMOTE = "timm:local-dir:", "timm:hf_hub:"


@dataclass(frozen=True)
class ImageFacts:
    """What is known about a set when its start is chosen.

    side    of the pictures, or the one that the user asks for (`named`); None where it is not known yet
    grey    whether they have no colors; count: how many there are, where that is known
    """

    side: int | None = None
    named: bool = False
    grey: bool = False
    count: int | None = None


@dataclass(frozen=True)
class StartChoice:
    """A start, the model that takes its weights (None: any), the options that they need, and why it was chosen."""

    start: Start
    model: str | None = None
    model_options: Mapping[str, Any] = field(default_factory=dict)
    note: Note | None = None


def choose_start(
    word: str, model: str | None, options: Mapping[str, Any], device: str, images: ImageFacts, *, asked: bool | None = None
) -> StartChoice:
    """The start that a word stands for, for a model that the user named, or for one to be chosen.

    options   of the model, which the user named
    asked     whether weights are asked for, so that it is an error if there are none; as the word says, if not given
    """
    asked = word == "pretrained" if asked is None else asked
    if word == "scratch":
        return StartChoice(Start())
    if model is not None and model.startswith("hf:"):
        return hugging_face_start(model, asked=asked)
    if model is not None and model.startswith((LOCAL, REMOTE)):
        return timm_folder_start(model)
    reason = None if asked else why_scratch(images, device, options)
    if reason is not None:
        return StartChoice(Start(), note=scratch_note(reason, model, images=images))
    candidates = (
        [find_backbone(model)] if model is not None else list(map(find_backbone, ON_CPU if device == "cpu" else ON_GPU))
    )
    known = [backbone for backbone in candidates if backbone is not None]
    if not known and asked:
        listed = ", ".join(backbone.model for backbone in BACKBONES)
        raise SoftbiasError(
            f"no pretrained weights are known for {model}: take --start scratch, name a file of them with --weights, or take "
            f"another model: {listed}, or timm:NAME"
        )
    if not known:
        return StartChoice(Start(), note=scratch_note("no-weights", model))
    for backbone in known:
        found = weight_files.at_hand(backbone)
        if found is not None:
            return backbone_start(backbone, found, better=known[0] if backbone is not known[0] else None)
    return from_hub(known, model, asked=asked)


def find_start(
    word: str, weights: str | Path | None, model: str, options: Mapping[str, Any], device: str, images: ImageFacts
) -> StartChoice:
    """The start for a model that is named: from a file of weights, from another run, or as the word says."""
    if weights is not None:
        if word == "scratch":
            raise SoftbiasError("fresh weights and named ones exclude each other; leave out start='scratch', or the weights")
        return weights_start(weights, model)
    return run_start(word) if word not in WORDS else choose_start(word, model, options, device, images)


def has_weights(model: str) -> bool:
    """Whether weights are known for a model, wherever they lie."""
    return model.startswith((LOCAL, REMOTE)) or find_backbone(model) is not None


def why_scratch(images: ImageFacts, device: str, options: Mapping[str, Any]) -> str | None:
    """Why an automatic start stays from scratch, whatever weights there are."""
    if options:
        return "model-options"  # they may change the shapes of the weights
    if images.side is not None and images.side < SMALL and (device == "cpu" or images.named):
        return "small-pictures"
    if images.grey and device == "cpu":
        return "grey-pictures"
    return "many-pictures" if device == "cpu" and (images.count or 0) >= MANY else None


def from_hub(known: list[Backbone], model: str | None, *, asked: bool) -> StartChoice:
    """The first backbone that may be downloaded; fresh weights with the reason, where none may be and none was asked for."""
    if asked:
        return backbone_start(known[0], weight_files.fetch(known[0].repository))
    reason = weight_files.why_not_now()
    if reason is not None:
        return StartChoice(Start(), note=scratch_note(reason, model, known[0]))
    for backbone in known:
        size = weight_files.megabytes(backbone)
        if size is not None and size <= UNASKED_MEGABYTES:
            try:
                return backbone_start(backbone, weight_files.fetch(backbone.repository))
            except NoWeightsError:
                return StartChoice(Start(), note=scratch_note("unreachable", model, backbone))
    return StartChoice(Start(), note=scratch_note("large-download", model, known[0]))


def scratch_note(why: str, model: str | None, backbone: Backbone | None = None, images: ImageFacts | None = None) -> Note:
    values: dict[str, Any] = {"kind": "scratch", "why": why}
    values |= {"model": model} if model else {}
    values |= {"name": backbone.repository, "megabytes": backbone.megabytes} if backbone else {}
    values |= {"side": images.side, "count": images.count} if images else {}
    return Note("start-chosen", {name: value for name, value in values.items() if value is not None})


def backbone_start(backbone: Backbone, found: WeightsFile, better: Backbone | None = None) -> StartChoice:
    size = (backbone.img_size, backbone.img_size)
    start = Start(
        "pretrained", backbone.repository, str(found.path), found.revision, weight_files.digest(found.path), backbone.license,
        backbone.mean, backbone.std, size,
    )  # fmt: skip
    values: dict[str, Any] = {"kind": "pretrained", "model": backbone.model, "name": backbone.repository}
    values |= {"origin": found.origin, "license": backbone.license or "not known"}
    values |= {"trained_on": backbone.trained_on} if backbone.trained_on else {}
    if better is not None:
        values |= {"better": better.model, "better_name": better.repository, "better_megabytes": better.megabytes}
    return StartChoice(start, backbone.model, backbone.model_options, Note("start-chosen", values))


def is_grey(source: Source | None, data: Dataset | None) -> bool:
    """Whether the pictures have no colors, judged by some of them: by their headers, where they are not decoded."""
    if data is not None:
        some = data.images[:: max(1, len(data.images) // SAMPLE)]
        return bool((some[..., :1] == some).all())
    if source is None or source.listing is None:
        return False
    files = source.listing.files[:: max(1, len(source.listing.files) // SAMPLE)]
    modes = []
    for file in files:
        with suppress(OSError, Image.DecompressionBombError), Image.open(file) as image:  # reading names broken files later
            modes.append(image.mode)
    return bool(modes) and all(mode in GREY for mode in modes)


# Files and folders that the user names


def weights_start(weights: str | Path, model: str | None) -> StartChoice:
    """A file or folder of weights, for a model that the user names or that the file's name or the folder's config names."""
    path = Path(weights)
    sha256 = weight_files.digest(path)
    config = read_json(path / "config.json") if (path / "config.json").is_file() else {}
    backbone = find_backbone(model) if model is not None else backbone_of_folder(path, config)
    if model is None and backbone is None:
        raise SoftbiasError(f"--weights {path}: its name says nothing about its model; name the model, too: --model NAME")
    stated = preprocessing_of(path, config)
    named = backbone is not None and path.stem in (*backbone.file_names, "model")
    if backbone is not None:
        size = (backbone.img_size, backbone.img_size)
        stated = {"mean": backbone.mean, "std": backbone.std, "img_size": size} | stated
    about = backbone.repository if backbone is not None and named and not path.is_dir() else path.name
    known = license_of(path, config) or (backbone.license if backbone is not None and named else None)
    start = Start("pretrained", about, str(weights), None, sha256, known, **stated)
    values = {"kind": "pretrained", "name": about, "origin": "named", "license": start.license or "not known"}
    options = backbone.model_options if backbone is not None else {}
    return StartChoice(start, model or (backbone.model if backbone else None), options, Note("start-chosen", values))


def backbone_of_folder(path: Path, config: Mapping[str, Any]) -> Backbone | None:
    tag = config.get("pretrained_cfg", {}).get("tag")
    architecture = str(config.get("architecture", ""))
    names = [path.stem, path.name, f"{architecture}.{tag}" if tag else architecture]
    return next((found for found in map(backbone_of_file, names) if found is not None), None)


def hugging_face_start(model: str, *, asked: bool) -> StartChoice:
    """The folder of a Hugging Face model is its own weights, where it holds any."""
    folder = Path(model.removeprefix("hf:"))
    if not any(folder.glob("*.safetensors")):
        if asked:
            raise SoftbiasError(f"{model} holds no weights (safetensors) to start from; --start scratch takes fresh ones")
        return StartChoice(Start(), note=scratch_note("no-weights", model))
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    start = Start(
        "pretrained", folder.name or str(folder), str(folder), None, weight_files.digest(folder), license_of(folder, config),
        **preprocessing_of(folder, config),
    )  # fmt: skip
    values = {"kind": "pretrained", "name": str(folder), "origin": "named", "license": start.license or "not known"}
    return StartChoice(start, model, note=Note("start-chosen", values))


def timm_folder_start(model: str) -> StartChoice:
    """A folder in timm's layout on this machine (`timm:local-dir:FOLDER`), or the same on the hub (`timm:hf_hub:REPOSITORY`).

    The run keeps the architecture that the folder's config.json names, so that it can be built again without the folder.
    """
    revision, name = None, model.removeprefix(LOCAL)
    if model.startswith(REMOTE):
        name = model.removeprefix(REMOTE)
        weight_files.fetch(name, "config.json")
        found = weight_files.fetch(name)
        folder, revision = found.path.parent, found.revision
    else:
        folder = Path(name)
    if not (folder / "config.json").is_file():
        raise SoftbiasError(f"{model}: there is no config.json in {folder}")
    check_folder(folder)
    config = read_json(folder / "config.json")
    architecture = config.get("architecture") if isinstance(config, Mapping) else None
    if not isinstance(architecture, str) or architecture.startswith("softbias_"):
        hint = f"; it was saved by softbias: --start {folder}" if isinstance(architecture, str) else ""
        raise SoftbiasError(f"{model} does not name a model of timm's as its architecture{hint}")
    options = {key: value for key, value in dict(config.get("model_args") or {}).items() if key not in DECIDED}
    path = folder / weight_files.WEIGHTS
    start = Start(
        "pretrained",
        name,
        str(path),
        revision,
        weight_files.digest(path),
        license_of(folder, config),
        **preprocessing_of(folder, config),
    )
    values = {"kind": "pretrained", "name": name, "origin": "hub" if revision else "named"}
    note = Note("start-chosen", {**values, "license": start.license or "not known"})
    return StartChoice(start, f"timm:{architecture}", options, note)


def run_start(run: str) -> StartChoice:
    """The model of a finished run or a saved model, from its config.json alone. Its license is that of the weights it began
    with."""
    path = Path(run)
    folder = path / "model" if (path / "model").is_dir() else path
    file = folder / "config.json"
    try:
        config = read_json(file)
    except FileNotFoundError as error:
        raise SoftbiasError(
            f"--start takes auto, pretrained, scratch or a run, but {run} is neither a finished run nor a saved model: there "
            f"is no {file}"
        ) from error
    known = None
    if (path / "config.yaml").is_file():
        known = read_config(path / "config.yaml").start.license
    start = Start("run", path.resolve().name, run, None, weight_files.digest(folder), known, **preprocessing_of(folder, config))
    name = f"hf:{folder}" if "model_type" in config else config.get("softbias", {}).get("name") or "saved"
    return StartChoice(start, name)


def preprocessing_of(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """mean, std and img_size, as far as the files of a model state them."""
    found: dict[str, Any] = {}
    if (folder / "preprocessor_config.json").is_file():
        stated = preprocessing_beside(folder)
        found = {"mean": stated["mean"], "std": stated["std"]}
    cfg = config.get("pretrained_cfg") or config
    found |= {key: tuple(cfg[key]) for key in ("mean", "std") if cfg.get(key)}
    size = cfg.get("image_size") or tuple(cfg.get("input_size") or ())[1:]
    return found | ({"img_size": pair("img_size", size)} if size else {})


def license_of(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The license that a model's config or the head of its card names."""
    named = (config.get("pretrained_cfg") or {}).get("license")
    card = folder / "README.md"
    if not named and card.is_file():
        head = card.read_text(encoding="utf-8", errors="replace").split("---")
        found = re.search(r"^license:\s*([\w.-]+)", head[1], re.M) if len(head) > 2 else None
        named = found.group(1) if found else None
    return str(named) if named else None
