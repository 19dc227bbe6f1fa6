"""What a probe looks at: a model, how its pictures are normalized, and whether its weights were ever trained.

    classifier = Classifier.of(model)                   # an nn.Module, as `probes` take it
    logits = classifier.logits(images)               # images in [0, 1]

Shapes: B images, K classes, C channels, h × w places of the last feature map.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from softbias.errors import SoftbiasError
from softbias.grid import Grid
from softbias.models.foreign import HuggingFaceClassifier
from softbias.models.inspect import unwrap
from softbias.models.vit import VisionTransformer

NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)
WEIGHTS = ("trained", "untrained", "untrained but for its head", "unknown")


@dataclass(frozen=True)
class Classifier:
    """A model under a probe, in evaluation mode.

    name        as tables call it
    weights     one of WEIGHTS, read off the weights themselves
    mean, std   of the channels, for pixels in [0, 1]; 0 and 1 for a module that says nothing about it
    class_names one per output, where they are known
    when        step and epoch, for a model out of the middle of its training
    """

    model: nn.Module
    name: str
    weights: str
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    class_names: tuple[str, ...] | None = None
    when: dict[str, int | float] = field(default_factory=dict)

    @staticmethod
    def of(model: nn.Module | Classifier, name: str | None = None, **known: Any) -> Classifier:
        if isinstance(model, Classifier):
            return model
        model = unwrap(model).eval()
        cfg = getattr(model, "pretrained_cfg", None) or {}
        stated: dict[str, Any] = {key: tuple(cfg[key]) for key in ("mean", "std") if cfg.get(key)}
        stated["class_names"] = getattr(model, "class_names", None)
        label = name or getattr(model, "name", None) or type(model).__name__
        return Classifier(model, label, weights_of(model), **{**stated, **known})

    @property
    def device(self) -> torch.device:
        first = next(self.model.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    def about(self) -> dict[str, Any]:
        """What every row says about the model."""
        return {"model": self.name, "weights": self.weights, **self.when}

    def with_model(self, model: nn.Module) -> Classifier:
        return replace(self, model=model.eval())

    def normalized(self, images: Tensor) -> Tensor:
        """# (B, 3, H, W) in [0, 1] -> the same, as the model wants it"""
        mean, std = (torch.tensor(values, device=images.device)[:, None, None] for values in (self.mean, self.std))
        return (images - mean) / std

    def logits(self, images: Tensor) -> Tensor:
        """# (B, 3, H, W) in [0, 1] -> (B, K)"""
        return self.model(self.normalized(images)).float()


@torch.no_grad()
def weights_of(model: nn.Module) -> str:
    """Whether the weights were ever trained, from what training cannot leave as it was.

    Fresh norms scale by one (or zero, where a residual branch starts closed) and shift by zero, and fresh batch norms have
    seen nothing; the first step of any optimizer changes that. A model without norms is judged by its biases. A head that
    was trained on a frozen backbone cannot be told from a fresh one: only its run knows (`opening`).
    """
    model = unwrap(model)
    fresh = [fresh_norm(module) for module in model.modules() if isinstance(module, NORMS)]
    judged = [verdict for verdict in fresh if verdict is not None]
    if not judged:
        layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
        judged = [not bool(layer.bias.any()) for layer in layers if layer.bias is not None]
    if not judged:
        return "unknown"
    return "untrained" if all(judged) else "trained"


def fresh_norm(module: Any) -> bool | None:
    """Whether a norm is as it was made; None for one that never changes."""
    if isinstance(module.weight, Tensor):
        like_new = bool(((module.weight == 1) | (module.weight == 0)).all())
        like_new &= module.bias is None or not bool(module.bias.any())
        mean = getattr(module, "running_mean", None)
        return like_new and (mean is None or not bool(mean.any()))
    return None


def feature_map(classifier: Classifier, images: Tensor) -> Tensor:
    """What the model knows of every place before it pools.  # (B, 3, H, W) in [0, 1] -> (B, C, h, w)"""
    model: Any = unwrap(classifier.model)
    x = classifier.normalized(images)
    if isinstance(model, VisionTransformer):
        return model.grid(len(model.blocks) - 1).as_image(model.forward_features(x))
    if isinstance(model, HuggingFaceClassifier):
        inner = getattr(model.model, model.model.base_model_prefix)
        return places_of(inner(x).last_hidden_state, model, x)
    if not hasattr(model, "forward_features"):
        raise SoftbiasError(f"{classifier.name} has no forward_features, so its features before pooling are not known")
    found: Tensor = model.forward_features(x)
    if found.ndim == 3:
        return places_of(found, model, x)
    if found.shape[1] != model.num_features and found.shape[-1] == model.num_features:
        found = found.permute(0, 3, 1, 2)  # Swin and its kin keep channels last
    return found


def places_of(tokens: Tensor, model: Any, images: Tensor) -> Tensor:
    """Tokens as a map: prefix tokens are left out, and the grid has the image's aspect.  # (B, N, C) -> (B, C, h, w)"""
    size = patch_size(model, (int(images.shape[-2]), int(images.shape[-1])))
    height, width = images.shape[-2] // size[0], images.shape[-1] // size[1]
    return Grid(height, width, tokens.shape[1] - height * width).as_image(tokens)


def patch_size(model: Any, img_size: tuple[int, int]) -> tuple[int, int]:
    """Pixels of a patch, (height, width)."""
    from softbias.models.inspect import attention_sites

    model = unwrap(model)
    if isinstance(model, VisionTransformer):
        return model.spec.patch_size[0], model.spec.patch_size[1]
    grid = attention_sites(model, img_size)[0].grid
    return img_size[0] // grid.height, img_size[1] // grid.width


def patch_tokens(model: Any, images: Tensor) -> Tensor:
    """The raw patch embeddings, before positions and class token.  # (B, 3, H, W) normalized -> (B, P, C)"""
    model = unwrap(model)
    embed = getattr(model, "patch_embed", None)
    if isinstance(model, HuggingFaceClassifier):
        embed = next((module for name, module in model.named_modules() if name.endswith("patch_embeddings")), None)
    if embed is None:
        raise SoftbiasError(f"{type(model).__name__} has no patch embedding, which the original way of measuring starts from")
    return embed(images)
