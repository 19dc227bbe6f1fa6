"""Starts that a user names by files and folders: a file of weights, a folder of timm's or Hugging Face's, or a run.

    weights_start("w/deit_tiny_patch16_224.safetensors", None)       its name says which model it is for
    timm_folder_start("timm:local-dir:FOLDER"), hugging_face_start("hf:FOLDER")
    run_start("runs/rotations")                                      the model of another run

Normalization, image size and license are read from the files beside the weights, as far as they state them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from softbias.classifier import preprocessing_beside
from softbias.errors import SoftbiasError
from softbias.json_file import read_json
from softbias.models import weight_files
from softbias.models.backbones import Backbone, backbone_of_file, find_backbone
from softbias.models.spec import pair
from softbias.models.untrusted import check_folder
from softbias.models.weights import check_fit
from softbias.notes import Note
from softbias.runs.spec import DECIDED, read_config
from softbias.runs.start import Start, StartChoice
from softbias.schema import from_plain

LOCAL, REMOTE = "timm:local-dir:", "timm:hf_hub:"


class Preprocessing(TypedDict, total=False):
    """What timm's pretrained_cfg states about images and license, and Hugging Face's config about their size."""

    mean: list[float] | None
    std: list[float] | None
    input_size: list[int] | None
    image_size: int | list[int] | None
    license: str | None
    tag: str | None


class ModelConfig(Preprocessing, total=False):
    """What we read of somebody's config.json: timm's, Hugging Face's or our own."""

    architecture: str
    model_type: str
    model_args: dict[str, Any] | None
    pretrained_cfg: Preprocessing | None
    softbias: dict[str, Any]


def config_of(folder: Path) -> ModelConfig:
    """The config.json of a folder; nothing where there is none."""
    file = folder / "config.json"
    return from_plain(ModelConfig, read_json(file), str(file)) if file.is_file() else ModelConfig()


def weights_start(
    weights: str | Path,
    model: str | None,
    options: Mapping[str, Any] | None = None,
    img_size: int | tuple[int, int] | None = None,
) -> StartChoice:
    """A file or folder of weights, for a model that the user names or that the file's name or the folder's config names.

    options, img_size   of the model, as the user named them; weights that do not fit are refused, where the size is known
    """
    path = Path(weights)
    sha256 = weight_files.digest(path)
    config = config_of(path)
    backbone = find_backbone(model) if model is not None else backbone_of_folder(path, config)
    if model is None and backbone is None:
        raise SoftbiasError(f"--weights {path}: its name says nothing about its model; name the model, too: --model NAME")
    stated = preprocessing_of(path, config)
    named = backbone is not None and path.stem in backbone.file_names
    if backbone is not None:
        size = (backbone.img_size, backbone.img_size)
        stated = {"mean": backbone.mean, "std": backbone.std, "img_size": size} | stated
    about = backbone.repository if backbone is not None and named and not path.is_dir() else path.name
    known = license_of(path, config) or (backbone.license if backbone is not None and named else None)
    start = Start("pretrained", about, str(weights), None, sha256, known, **stated)
    values = {"kind": "pretrained", "name": about, "origin": "named", "license": start.license or "not known"}
    needed = backbone.model_options if backbone is not None else {}
    name, side = model or (backbone.model if backbone else ""), img_size or start.img_size
    if side is not None and not name.startswith("hf:"):
        check_fit(path, name, {**needed, **(options or {})}, side)
    return StartChoice(start, name, needed, Note("start-chosen", values))


def backbone_of_folder(path: Path, config: ModelConfig) -> Backbone | None:
    tag = (config.get("pretrained_cfg") or {}).get("tag")
    architecture = config.get("architecture", "")
    names = [path.stem, path.name, f"{architecture}.{tag}" if tag else architecture]
    return next((found for found in map(backbone_of_file, names) if found is not None), None)


def hugging_face_start(model: str, *, asked: bool) -> StartChoice:
    """The folder of a Hugging Face model is its own weights, where it holds any."""
    folder = Path(model.removeprefix("hf:"))
    if not any(folder.glob("*.safetensors")):
        if asked:
            raise SoftbiasError(f"{model} holds no weights (safetensors) to start from; --start scratch takes fresh ones")
        return StartChoice(Start(), note=Note("start-chosen", {"kind": "scratch", "why": "no-weights", "model": model}))
    config = config_of(folder)
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
    config = config_of(folder)
    architecture = config.get("architecture")
    if architecture is None or architecture.startswith("softbias_"):
        hint = f"; it was saved by softbias: --start {folder}" if architecture else ""
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
    check_fit(path, f"timm:{architecture}", options, start.img_size)
    values = {"kind": "pretrained", "name": name, "origin": "hub" if revision else "named"}
    note = Note("start-chosen", {**values, "license": start.license or "not known"})
    return StartChoice(start, f"timm:{architecture}", options, note)


def run_start(run: str) -> StartChoice:
    """The model of a finished run or a saved model, from its config.json alone. Its license is that of the weights it began
    with."""
    path = Path(run)
    folder = path / "model" if (path / "model").is_dir() else path
    if not (folder / "config.json").is_file():
        raise SoftbiasError(
            f"--start takes auto, pretrained, scratch or a run, but {run} is neither a finished run nor a saved model: there "
            f"is no {folder / 'config.json'}"
        )
    config = config_of(folder)
    began = Start()
    if (path / "config.yaml").is_file():
        began = read_config(path / "config.yaml").start
    stated = preprocessing_of(folder, config)
    start = Start("run", path.resolve().name, run, None, weight_files.digest(folder), began.license, **stated)
    name = f"hf:{folder}" if "model_type" in config else config.get("softbias", {}).get("name") or "saved"
    return StartChoice(start, name, tuned=began.kind == "pretrained" or began.license is not None)


def preprocessing_of(folder: Path, config: ModelConfig) -> dict[str, Any]:
    """mean, std and img_size, as far as the files of a model state them."""
    found: dict[str, Any] = {}
    if (folder / "preprocessor_config.json").is_file():
        stated = preprocessing_beside(folder)
        found = {"mean": stated["mean"], "std": stated["std"]}
    cfg: Preprocessing = config.get("pretrained_cfg") or config
    found |= {key: tuple(values) for key, values in (("mean", cfg.get("mean")), ("std", cfg.get("std"))) if values}
    size = cfg.get("image_size") or tuple(cfg.get("input_size") or ())[1:]
    return found | ({"img_size": pair("img_size", size)} if size else {})


def license_of(folder: Path, config: ModelConfig) -> str | None:
    """The license that a model's config or the head of its card names."""
    named = (config.get("pretrained_cfg") or {}).get("license")
    card = folder / "README.md"
    if not named and card.is_file():
        head = card.read_text(encoding="utf-8", errors="replace").split("---")
        found = re.search(r"^license:\s*([\w.-]+)", head[1], re.M) if len(head) > 2 else None
        named = found.group(1) if found else None
    return str(named) if named else None
