"""Weights from elsewhere: checkpoints of timm's DeiT and ConViT, and of the original ConViT.

Our parameters have the names of timm's ViT, so DeiT fits as it is. ConViT's gated layers have other names for q and k, v,
position and gate, which are mapped here. Positions of another grid are interpolated.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import interpolate

from softbias.checksums import verify_file
from softbias.errors import FewTokensWarning, SoftbiasError, in_one_line
from softbias.models import create_model
from softbias.models.spec import ModelSpec

MOST_NAMED = 3  # tensors in a message
WRAPPERS = ("state_dict", "model", "module", "model_ema", "state_dict_ema")


class UnfitWeightsError(SoftbiasError):
    """Weights whose names or shapes are not those of the model.

    differences   some of them, in words
    """

    def __init__(self, wrong: Sequence[str], hint: str = "") -> None:
        more = f" and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
        self.differences = "; ".join(wrong[:MOST_NAMED]) + more
        super().__init__(f"the weights do not fit: {self.differences}{hint}")


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
        loaded = torch.load(path, map_location="cpu" if values else "meta", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # safetensors, zip and pickle have a dozen kinds
        raise SoftbiasError(f"{path} does not hold weights that can be read: {in_one_line(error)}") from error
    if not isinstance(loaded, Mapping):
        raise SoftbiasError(f"{path} must hold tensors by name, but holds a {type(loaded).__name__}")
    return unwrap_state_dict(loaded)


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


def to_own_names(given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """ConViT's gated layers under our names: qk and v become one qkv. The order of r(δ) is the same, so positions stay."""
    own: dict[str, Tensor] = {}
    for name, tensor in given.items():
        prefix, _, rest = name.partition(".attn.")
        if rest in ("qk.weight", "qk.bias"):
            kind = rest.partition(".")[2]
            value = given.get(f"{prefix}.attn.v.{kind}")
            if value is None or value.shape[1:] != tensor.shape[1:]:
                raise UnfitWeightsError([f"{prefix}.attn.v.{kind} is missing or has another width than {name}"])
            own[f"{prefix}.attn.qkv.{kind}"] = torch.cat([tensor, value])
        elif rest in ("v.weight", "v.bias") or rest == "rel_indices":
            continue
        elif rest in ("pos_proj.weight", "pos_proj.bias"):
            own[f"{prefix}.attn.position.{rest.partition('.')[2]}"] = tensor
        elif rest == "gating_param":
            own[f"{prefix}.attn.gate"] = tensor
        else:
            own[name] = tensor
    return own


def load_weights(
    model: nn.Module, weights: Mapping[str, Any] | str | Path, *, keep_head: bool = False, strict: bool = True
) -> nn.Module:
    """Load a state dict, a file or a folder into a model, and return the model.

    Names and shapes that do not fit are listed in an error, never skipped. For our transformers, ConViT's layers get our names.
    Positions of another grid are interpolated, for timm's models as well. With `keep_head=True` the model keeps its own head,
    for another number of classes; with `strict=False` tensors may be missing or left over, but shapes must still fit.
    """
    state = unwrap_state_dict(weights) if isinstance(weights, Mapping) else read_state_dict(weights)
    spec = getattr(model, "spec", None)
    if isinstance(spec, ModelSpec):
        state = to_own_names(state)
    own = model.state_dict()
    if keep_head:
        head = head_names(model)
        state = {name: tensor for name, tensor in state.items() if name not in head}
        state |= {name: tensor for name, tensor in own.items() if name in head}
    if "pos_embed" in own and "pos_embed" in state and state["pos_embed"].ndim == own["pos_embed"].ndim == 3:
        state["pos_embed"] = fit_positions(state["pos_embed"], own["pos_embed"], model)
    path = None if isinstance(weights, Mapping) else weights
    load_state(model, state, path, strict=strict, hint="; keep_head=True keeps the model's own head")
    return model


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
    model: nn.Module, state: Mapping[str, Tensor], path: str | Path | None = None, *, strict: bool = True, hint: str = ""
) -> None:
    """Put tensors into a model. Names and shapes that do not fit, and values that are not finite, are named in an error.

    path   where the tensors come from, for the error; hint: what to do if the head is among what does not fit
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
        hint = hint if any(each.startswith(("head.", "fc.")) for each in wrong) else ""
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
