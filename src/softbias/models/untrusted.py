"""What a model folder from somebody else may ask for: nothing outside the folder, no network, no code.

    check_folder(folder)            links that lead out of it are refused
    check_timm_options(name, …)     numbers, words, true and false for the architecture, and nothing for timm's own loading
    check_hugging_face(folder, …)   no remote code, no other repository, no file or address

timm and transformers take options that fetch an address or open a file (`pretrained_cfg`, `checkpoint_path`, `auto_map`,
`backbone`). They are meant for people who write Python, and a config.json must not reach them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from softbias.errors import SoftbiasError
from softbias.json_file import read_json

LOADING = {"features_only", "feature_cls", "out_indices", "pruned", "device", "dtype"}  # build_model_with_cfg takes them, too
LOADING_NAME = re.compile(r"pretrained|checkpoint|cache|url|hub|path$|file$|dir$|_fn$|_cls$|_cfg$|^cfg$")
REFUSED_TYPES = ("timm_wrapper", "timm_backbone")  # they hand their model_args to timm
REFUSED_SETTINGS = re.compile(
    r"auto_map|quantization_config|.*backbone.*|.*attn_implementation.*|transformers_weights|custom_.*"
)
ONLY_NAMES = ("id2label", "label2id", "_name_or_path", "architectures", "finetuning_task", "license")  # text that opens nothing


class UntrustedError(SoftbiasError):
    """A model folder that asks for more than its own files."""


def check_folder(folder: Path) -> None:
    """Refuse links out of the folder; those of the Hugging Face cache, which lead to its blobs, are followed."""
    home = folder.resolve()
    allowed = [home, home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [home]
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_symlink() and not any(path.resolve().is_relative_to(each) for each in allowed):
            raise UntrustedError(f"{path} is a link to {path.readlink()}, outside of the model's folder; copy the file instead")


def check_timm_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse options that are not the architecture's own, or that could name a file or an address."""
    for option, value in options.items():
        if option in loading_options() or LOADING_NAME.search(option):
            raise UntrustedError(
                f"timm:{name} takes options of its architecture only (depth, patch_size, drop_rate, …), but got {option}, by "
                "which timm loads files; weights are given with --start pretrained or --weights"
            )
        if not is_plain(value):
            raise UntrustedError(
                f"options of timm:{name} are numbers, words, true or false, or lists of these, but {option}={value!r}"
            )


@cache
def loading_options() -> frozenset[str]:
    """The options that timm itself takes before it calls the architecture."""
    import timm
    from timm.models import build_model_with_cfg

    functions: tuple[Any, ...] = (timm.create_model, build_model_with_cfg)
    return frozenset(name for each in functions for name in inspect.signature(each).parameters) | LOADING


def is_plain(value: Any) -> bool:
    """
    >>> [is_plain(value) for value in (3, "gelu", [32, 32], None, "../weights.pth", "https://x.org", {"url": "x"})]
    [True, True, True, True, False, False, False]
    """
    if isinstance(value, list | tuple):
        return all(is_plain(each) for each in value)
    if isinstance(value, str):
        return re.fullmatch(r"[\w.+ -]*", value) is not None and ".." not in value
    return value is None or isinstance(value, bool | int | float)


def check_hugging_face(folder: Path, config: Any) -> None:
    """Refuse a folder whose files lead transformers to code, to other repositories, or out of the folder."""
    if not isinstance(config, Mapping):
        raise UntrustedError(f"{folder / 'config.json'} must hold settings by name")
    if config.get("model_type") in REFUSED_TYPES:
        raise UntrustedError(f"{folder} holds a model of timm's (model_type {config['model_type']!r}); give timm:NAME instead")
    for path, key, value in settings_in(config):
        if REFUSED_SETTINGS.fullmatch(key) and value not in (None, False):
            raise UntrustedError(f"{folder / 'config.json'}: {path} is refused: it makes transformers load code or other files")
        if isinstance(value, str) and path.split(".")[0] not in ONLY_NAMES and ("/" in value or "\\" in value):
            raise UntrustedError(f"{folder / 'config.json'}: {path} must not be a path or an address, but is {value!r}")
    if (folder / "adapter_config.json").exists():
        raise UntrustedError(f"{folder} holds an adapter for another model; merge it into that model and save the result")
    for index in folder.glob("*.index.json"):
        plain = read_json(index)
        files = plain.get("weight_map") if isinstance(plain, dict) else None
        if not isinstance(files, dict) or not all(isinstance(each, str) and Path(each).name == each for each in files.values()):
            raise UntrustedError(f"{index}: weight_map must name files of this folder")


def settings_in(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str, Any]]:
    """Path, name and value of every setting, those inside of others, too."""
    for key, value in config.items():
        path = f"{above}{key}"
        yield path, str(key), value
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Mapping):
                yield from settings_in(inner, f"{path}.")
            elif inner is not value:
                yield path, str(key), inner
