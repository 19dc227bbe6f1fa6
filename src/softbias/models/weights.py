"""Weights from elsewhere: checkpoints of timm's DeiT and ConViT, and of the papers' own code.

Our parameters have the names of timm's ViT, so DeiT fits as it is. The releases of ConViT, IBiT and ARViT have other names;
`releases` translates them. Positions of another grid are interpolated.

A file of torch.save is read without running what it holds: tensors, plain values, and the options of a training script (an
argparse.Namespace). Any other object is refused.
"""

from __future__ import annotations

import math
import re
import warnings
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from softbias.checksums import verify_file
from softbias.errors import MOST_NAMED, FewTokensWarning, SoftbiasError, UnfitWeightsError, in_one_line
from softbias.models import create_model
from softbias.models.releases import release_of, to_own_names
from softbias.models.spec import ModelSpec

WITH_OPTION = ("IBiT", "ARViT")  # releases that are models of their own
WRAPPERS = ("state_dict", "model", "module", "model_ema", "state_dict_ema")


def read_state_dict(path: str | Path, *, values: bool = True) -> dict[str, Tensor]:
    """A state dict from .safetensors, a folder with model.safetensors, or .pth, .pt, .bin without pickled code.

    values   False: tensors on the device "meta", which have names and shapes alone
    """
    path = Path(path)
    if path.is_dir():
        path = path / "model.safetensors"
    if not path.is_file():
        raise SoftbiasError(f"there are no weights at {path}")
    verify_file(path)
    if path.suffix not in (".safetensors", ".pth", ".pt", ".bin", ".tar"):
        raise SoftbiasError(f"weights must be .safetensors, .pth, .pt or .bin, but got {path.name}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path) if values else read_shapes(path)
    except OSError:
        raise
    except Exception as error:  # of safetensors, which has no common kind
        raise SoftbiasError(f"{path} does not hold weights that can be read: {in_one_line(error)}") from error
    loaded = read_pickled(path, "cpu" if values else "meta")
    if not isinstance(loaded, Mapping):
        raise SoftbiasError(f"{path} must hold tensors by name, but holds a {type(loaded).__name__}")
    return unwrap_state_dict(loaded)


def read_pickled(path: Path, device: str) -> Any:
    """What torch.save wrote. Torch's own errors are not repeated: they advise to read the file in a way that runs its code."""
    try:
        with safe_globals([Namespace]):  # a class without code of its own; it keeps the options of DeiT's training script
            return torch.load(path, map_location=device, weights_only=True)
    except OSError:
        raise
    except Exception as error:  # zip and pickle have a dozen kinds
        objects = unknown_objects(path)
        if not objects:
            why = "it is damaged, or was not written by torch.save"
            raise SoftbiasError(f"{path} does not hold weights that can be read: {why}") from error
        named = f"{', '.join(objects[:MOST_NAMED])}{', …' if len(objects) > MOST_NAMED else ''}"
        raise SoftbiasError(
            f"{path} holds more than weights ({named}), and what it holds could run code when it is read, so it is refused; "
            "let its owner save model.state_dict() alone, as .safetensors or .pth"
        ) from error


def unknown_objects(path: Path) -> list[str]:
    """The names of functions and classes in a file of torch.save that it would call; none are called."""
    known = {f"{Namespace.__module__}.{Namespace.__name__}"}
    try:
        return sorted({*get_unsafe_globals_in_checkpoint(path)} - known)
    except Exception:  # the file is damaged, or of torch's old format
        return []


def read_shapes(path: Path) -> dict[str, Tensor]:
    with safe_open(path, "pt") as file:
        return {name: torch.empty(file.get_slice(name).get_shape(), device="meta") for name in file.keys()}  # noqa: SIM118


def unwrap_state_dict(given: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors by name, out of the wrappers of training scripts and of DataParallel and torch.compile."""
    for name in WRAPPERS:
        if isinstance(given.get(name), Mapping):
            return unwrap_state_dict(given[name])
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise SoftbiasError(f"weights must be tensors by name, but {name!r} is a {type(value).__name__}")
    return {re.sub(r"^(module\.|_orig_mod\.)+", "", name): tensor for name, tensor in given.items()}


def load_weights(
    model: nn.Module, weights: Mapping[str, Any] | str | Path, *, keep_head: bool = False, strict: bool = True
) -> nn.Module:
    """Load a state dict, a file or a folder into a model, and return the model.

    Names and shapes that do not fit are listed in an error, never skipped. Weights of the papers' own code get our names.
    Positions of another grid are interpolated, for timm's models as well. With `keep_head=True` the model keeps its own head,
    for another number of classes; with `strict=False` tensors may be missing or left over, but shapes must still fit.
    """
    state = unwrap_state_dict(weights) if isinstance(weights, Mapping) else read_state_dict(weights)
    spec = getattr(model, "spec", None)
    own, release = model.state_dict(), None
    if isinstance(spec, ModelSpec):
        release = release_of(state)
        state = to_own_names(state, own)
    if keep_head:
        head = head_names(model)
        state = {name: tensor for name, tensor in state.items() if name not in head}
        state |= {name: tensor for name, tensor in own.items() if name in head}
    if "pos_embed" in own and "pos_embed" in state and state["pos_embed"].ndim == own["pos_embed"].ndim == 3:
        state["pos_embed"] = fit_positions(state["pos_embed"], own["pos_embed"], model)
    path = None if isinstance(weights, Mapping) else weights
    load_state(
        model,
        state,
        path,
        strict=strict,
        hint=release_hint(release, state, own),
        head_hint="; keep_head=True keeps the model's own head",
    )
    return model


def release_hint(release: str | None, state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """What to do if the weights of a release do not fit: another model, or the same one at another size."""
    if release not in WITH_OPTION:
        return ""
    if state.keys() != own.keys():
        return f"; {release}'s own code made these weights: build the model with released=True"
    return "; build the model for the size of image and patch that it was trained with, and use softbias.resize"


def check_fit(path: str | Path, model: str, options: Mapping[str, Any], img_size: int | tuple[int, int] | None) -> None:
    """Refuse weights that `load_weights` would refuse by their names or shapes; no values are read, so it is quick."""
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore", FewTokensWarning)  # which the model itself gives
        built = create_model(model, img_size=img_size, **options)
    state = read_state_dict(path, values=False)
    try:
        load_weights(built, state, keep_head=True)
    except UnfitWeightsError as error:
        counts = f"it has {len(state)} tensors, and the model has {len(built.state_dict())}"
        raise SoftbiasError(f"{path} does not hold the weights of {model}: {counts}; {error.differences}") from error


def load_state(
    model: nn.Module,
    state: Mapping[str, Tensor],
    path: str | Path | None = None,
    *,
    strict: bool = True,
    hint: str = "",
    head_hint: str = "",
) -> None:
    """Put tensors into a model. Names and shapes that do not fit, and values that are not finite, are named in an error.

    path        where the tensors come from, for the error
    hint        what to do if they do not fit; head_hint: if the head is among what does not fit
    """
    where = "" if path is None else f" ({path})"
    own = model.state_dict()
    wrong = [
        f"{name} is {tuple(state[name].shape)}, the model has {tuple(own[name].shape)}"
        for name in own
        if name in state and own[name].shape != state[name].shape
    ]
    if strict:
        wrong += [f"{name} is missing" for name in own if name not in state]
        wrong += [f"{name} is not in the model" for name in state if name not in own]
    if wrong:
        hint += head_hint if any(each.startswith(("head.", "fc.")) for each in wrong) else ""
        raise UnfitWeightsError(wrong, f"{hint}{where}")
    usual = {name for name in own if not is_finite(own[name])}  # masks that a model is built with
    check_finite({name: tensor for name, tensor in state.items() if name in own and name not in usual}, path)
    model.load_state_dict(state, strict=strict)


def check_finite(state: Mapping[str, Tensor], path: str | Path | None = None) -> None:
    """Refuse weights with values that are no numbers; `path` is where they come from."""
    broken = [name for name, tensor in state.items() if not is_finite(tensor)]
    if broken:
        named = f"{', '.join(broken[:MOST_NAMED])}{', …' if len(broken) > MOST_NAMED else ''}"
        where = "" if path is None else f" of {path}"
        raise SoftbiasError(
            f"the weights{where} are damaged, or their training diverged: {len(broken)} of {len(state)} tensors hold values "
            f"that are not finite: {named}"
        )


def is_finite(tensor: Tensor) -> bool:
    if tensor.device.type == "meta" or not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return bool(torch.isfinite(tensor.detach().float() if tensor.element_size() == 1 else tensor).all())


def head_names(model: Any) -> set[str]:
    head = model.get_classifier()
    prefix = next(name for name, module in model.named_modules() if module is head)
    return {f"{prefix}.{name}" for name in head.state_dict()}


def fit_positions(given: Tensor, own: Tensor, model: Any) -> Tensor:
    """Learned positions of a square grid, interpolated to the grid of the model; as they are, where it has none.

    Positions that the model has beside those of its patches are those of prefix tokens.  # (1, N', C) -> (1, N, C)
    """
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    if given.shape[1] == own.shape[1] or grid is None:
        return given
    prefix = own.shape[1] - math.prod(grid)
    patches = given.shape[1] - prefix
    side = math.isqrt(max(0, patches))
    if prefix < 0 or not side or side * side != patches:
        return given
    return resize_positions(given, (side, side), (grid[0], grid[1]), prefix)


def resize_positions(given: Tensor, old: tuple[int, int], new: tuple[int, int], prefix: int) -> Tensor:
    """# (1, prefix + old, C) -> (1, prefix + new, C)"""
    image = given[:, prefix:].unflatten(1, old).permute(0, 3, 1, 2)
    image = interpolate(image.float(), new, mode="bicubic", antialias=True).to(given.dtype)
    return torch.cat([given[:, :prefix], image.flatten(2).mT], dim=1)
