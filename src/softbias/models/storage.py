"""Models as files: `save` and `load` in the layout that timm and the Hugging Face hub read.

    softbias.save(model, "flowers", class_names=["rose", "tulip"])
    model = softbias.load("flowers")                     # or timm.create_model("local-dir:flowers", pretrained=True)

A folder holds config.json (spec, class names, preprocessing), model.safetensors, SHA256SUMS, by which loading verifies both,
and a model card. Nothing is ever unpickled, and a folder from somebody else leads to no file outside of it and to no address.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from softbias._version import __version__
from softbias.bounds import Length, Side, ValueRange, Within
from softbias.checksums import verify_checksums, write_checksums
from softbias.errors import SoftbiasError, in_one_line
from softbias.files import adding_to_folder, write_text
from softbias.json_file import read_json
from softbias.models import Spec, build, create_model, spec_from_dict
from softbias.models.convolution_heads import ConvolutionHeads
from softbias.models.cost import count_parameters
from softbias.models.foreign import HuggingFaceClassifier
from softbias.models.presets import timm_cfg
from softbias.models.spec import pair
from softbias.models.untrusted import check_folder, check_timm_options
from softbias.models.weights import check_finite, load_weights
from softbias.schema import from_plain

FORMAT = 1
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
PREPROCESSING = ("mean", "std", "interpolation", "crop_pct", "crop_mode", "input_size")
VALUE_RANGE = "value_range"  # of pictures of more than eight bits: timm does not know it, so it stands beside the rest


class SavedBy(TypedDict):
    """format: of the folder; version: of softbias; name: of the model, if it has one.

    value_range   what is black and white in pictures of more than eight bits, if the model has learned from such
    """

    format: int
    version: str
    name: str | None
    value_range: NotRequired[ValueRange]


class StatedPreprocessing(TypedDict, total=False):
    """How pictures become the input of a model; timm's `pretrained_cfg` has further fields."""

    mean: Annotated[tuple[Annotated[float, Within(-1000, 1000)], ...], Length(1, 4)]
    std: Annotated[tuple[Annotated[float, Within(0, 1000, above=True)], ...], Length(1, 4)]
    interpolation: str
    crop_pct: Annotated[float, Within(0, 1, above=True)]
    crop_mode: str
    input_size: tuple[Annotated[int, Within(1, 1024)], Side, Side]


class SavedConfig(TypedDict):
    """What config.json says; timm reads the same file and has further fields."""

    architecture: str
    num_classes: int
    label_names: NotRequired[list[str] | None]
    model_args: NotRequired[dict[str, Any]]
    pretrained_cfg: StatedPreprocessing
    softbias: NotRequired[SavedBy]


def save(
    model: Any,
    folder: str | Path,
    *,
    class_names: Sequence[str] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    card: str | None = None,
    license: str | None = None,
    base_model: str | None = None,
) -> Path:
    """Write a model into a folder, and return the folder.

    preprocessing   some of mean, std, interpolation, crop_pct, crop_mode, value_range; the others stay as the model has them
    card            text for the first section of the model card
    license         of the weights that the model was trained from, and base_model: their name
    """
    folder = Path(folder)
    names = tuple(class_names or getattr(model, "class_names", None) or ())
    if names and len(names) != model.num_classes:
        raise SoftbiasError(f"the model has {model.num_classes} classes, but {len(names)} class names were given")
    for option in preprocessing or {}:
        if option not in (*PREPROCESSING, VALUE_RANGE):
            raise SoftbiasError(f"preprocessing takes {', '.join((*PREPROCESSING, VALUE_RANGE))}, but got {option!r}")
    if any(isinstance(module, ConvolutionHeads) for module in model.modules()):
        raise SoftbiasError(
            "a model with heads in place of convolutions has no spec, so save cannot write it; keep its state_dict(), and make "
            "the model again by convert_convolutions before it is loaded"
        )
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    check_finite(tensors)
    if isinstance(model, HuggingFaceClassifier):
        if names:
            model.model.config.id2label = dict(enumerate(names))
            model.model.config.label2id = {name: index for index, name in enumerate(names)}
        with writing(folder) as temporary:
            model.model.save_pretrained(temporary)
            if preprocessing and {"mean", "std"} <= set(preprocessing):
                processor = image_processor(model, preprocessing)
                write_text(temporary / "preprocessor_config.json", json.dumps(processor, indent=2) + "\n")
            write_checksums(temporary, sorted(path.name for path in temporary.iterdir()))
        return folder
    cfg = dict(getattr(model, "pretrained_cfg", None) or {})
    preprocessing = dict(preprocessing or {})
    value_range = preprocessing.pop(VALUE_RANGE, None) or cfg.pop(VALUE_RANGE, None)
    if isinstance(getattr(model, "spec", None), Spec):
        cfg |= timm_cfg(model.spec, model.name) | {name: cfg[name] for name in PREPROCESSING[:5] if name in cfg}
        model_args: dict[str, Any] = {"spec": model.spec.to_dict()}
    elif hasattr(model, "timm_options"):
        model_args = {name: value for name, value in model.timm_options.items() if name != "num_classes"}
    else:
        raise SoftbiasError(f"save takes a softbias, timm: or hf: model, but got {type(model).__name__}")
    cfg |= {**preprocessing, **({"license": license} if license else {})}
    config = {
        "architecture": cfg.pop("architecture"),
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        "label_names": list(names) or None,
        "model_args": model_args,
        "pretrained_cfg": {name: value for name, value in cfg.items() if value is not None and name not in ("url", "file")},
        "softbias": {
            "format": FORMAT,
            "version": __version__,
            "name": getattr(model, "name", None),
            **({VALUE_RANGE: list(value_range)} if value_range else {}),
        },
    }
    given = {name: value for name, value in config.items() if value is not None}
    with writing(folder) as temporary:
        save_file(tensors, temporary / WEIGHTS, metadata={"format": "pt"})
        write_text(temporary / CONFIG, json.dumps(given, indent=2) + "\n")
        write_checksums(temporary, (CONFIG, WEIGHTS))
        write_text(temporary / CARD, model_card(model, names, config["pretrained_cfg"], card, license, base_model))
    return folder


@contextmanager
def writing(folder: Path) -> Iterator[Path]:
    """A temporary folder whose files move into `folder` when all are written."""
    try:
        with adding_to_folder(folder) as temporary:
            yield temporary
    except SafetensorError as error:  # a full disk
        raise SoftbiasError(
            f"the model cannot be written to {folder} ({in_one_line(error)}): make room, or choose another folder"
        ) from error


def image_processor(model: HuggingFaceClassifier, preprocessing: Mapping[str, Any]) -> dict[str, Any]:
    """How images are normalized, as Hugging Face writes it; it has no word for crop_mode, which is timm's."""
    known: dict[str, Any] = {"image_processor_type": "ViTImageProcessor"}
    known |= {"image_mean": list(preprocessing["mean"]), "image_std": list(preprocessing["std"])}
    known |= {name: preprocessing[name] for name in ("crop_mode", VALUE_RANGE) if preprocessing.get(name)}
    if getattr(model.config, "image_size", None):
        height, width = pair("image_size", model.config.image_size)
        known["size"] = {"height": height, "width": width}
    return known


def load(folder: str | Path, *, device: Any = None) -> nn.Module:
    """The model that `save` wrote, in evaluation mode, with its class names."""
    folder = Path(folder)
    check_folder(folder)
    config = read_config(folder)
    if "model_type" in config:
        return create_model(f"hf:{folder}", device=device).eval()
    saved_by = config.get("softbias")
    if saved_by is None:
        raise SoftbiasError(f"{folder} was not saved by softbias; timm.create_model('local-dir:{folder}') may read it")
    if saved_by["format"] > FORMAT:
        raise SoftbiasError(
            f"{folder} was saved by softbias {saved_by['version']} in format {saved_by['format']}, "
            f"and this is softbias {__version__}, which reads up to format {FORMAT}: upgrade softbias"
        )
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise SoftbiasError(f"there are no weights in {folder}: it has no {WEIGHTS}")
    args, name = dict(config.get("model_args", {})), saved_by["name"]
    spec = spec_from_dict(args["spec"], f"{folder / CONFIG}: model_args.spec") if "spec" in args else None
    if spec is None and (name is None or not name.startswith("timm:")):
        raise SoftbiasError(f"{folder / CONFIG} names neither a spec nor a model of timm's")
    if spec is None:
        check_timm_options(str(name).removeprefix("timm:"), args)
    verify_checksums(folder, (CONFIG, WEIGHTS))
    model: Any
    model = build(spec, name=name) if spec else create_model(str(name), num_classes=config["num_classes"], **args)
    load_weights(model, weights)
    deep = {VALUE_RANGE: saved_by["value_range"]} if "value_range" in saved_by else {}
    model.pretrained_cfg = model.default_cfg = {**config["pretrained_cfg"], "architecture": config["architecture"], **deep}
    names = config.get("label_names")
    if names and len(names) != config["num_classes"]:
        raise SoftbiasError(f"{folder / CONFIG} has num_classes {config['num_classes']}, but {len(names)} label_names")
    model.class_names = tuple(names) if names else None
    loaded: nn.Module = model.to(device=device) if device is not None else model
    return loaded.eval()


def is_whole(folder: Path) -> bool:
    """Whether no file of a folder that `save` wrote is gone, and none is changed but for the model card."""
    try:
        verify_checksums(folder, (CONFIG, WEIGHTS))
        return "softbias" not in read_json(folder / CONFIG) or (folder / CARD).is_file()
    except (OSError, SoftbiasError):
        return False


def read_config(folder: Path) -> SavedConfig:
    """config.json, checked; that of a Hugging Face model (it has a model_type) is left to transformers."""
    path = folder / CONFIG
    if not path.is_file():
        raise SoftbiasError(f"there is no saved model in {folder}: it has no config.json")
    plain = read_json(path)
    if isinstance(plain, dict) and "model_type" in plain:
        return typing.cast(SavedConfig, plain)
    config = from_plain(SavedConfig, plain, str(path))
    stated = config["pretrained_cfg"]
    if len(stated.get("mean", ())) != len(stated.get("std", ())):
        raise SoftbiasError(f"{path}: pretrained_cfg.mean and pretrained_cfg.std must have a number for each channel")
    return config


def model_card(
    model: nn.Module, names: Sequence[str], cfg: Mapping[str, Any], text: str | None, license: str | None, base: str | None
) -> str:
    spec = getattr(model, "spec", None)
    title = getattr(model, "name", None) or "softbias model"
    lines = ["---", "library_name: softbias", "tags: [image-classification, softbias, timm]"]
    lines += [f"license: {json.dumps(license)}"] if license else []
    lines += [f"base_model: {json.dumps(base)}"] if base else []
    lines += ["---", "", f"# {title}", ""]
    if text:
        lines += [text.strip(), ""]
    lines += [f"- {count_parameters(model):,} parameters"]
    if spec is not None:
        lines += [f"- blocks: {spec.describe_layers()}"]
    lines += [
        f"- input: {' × '.join(map(str, cfg['input_size']))} (channels × height × width)",
        f"- normalized by mean {tuple(cfg['mean'])} and standard deviation {tuple(cfg['std'])}",
    ]
    if names:
        lines += [f"- classes ({len(names)}): {', '.join(names)}"]
    lines += [
        "",
        "```python",
        "import softbias",
        'model = softbias.load("this folder")',
        "logits = model(images)",
        "```",
        "",
    ]
    return "\n".join(lines)
