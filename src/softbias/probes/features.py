"""The parts of a model that probes measure beside its logits and maps: features before pooling, patches, cells.

Shapes: B images, C channels, N tokens, P patches, h × w cells of the last feature map.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from softbias.attention import NoAttentionMapError
from softbias.classifier import Classifier
from softbias.errors import NotMeasurableError
from softbias.grid import Grid
from softbias.models.foreign import HuggingFaceClassifier
from softbias.models.inspect import attention_sites, unwrap
from softbias.models.vit import VisionTransformer

CELLS = (8, 8)  # of a network without patches


def feature_map(classifier: Classifier, images: Tensor) -> Tensor:
    """The features of every cell before the model pools.  # (B, 3, H, W) in [0, 1] -> (B, C, h, w)"""
    model: Any = unwrap(classifier.model)
    x = classifier.normalized(images)
    if isinstance(model, VisionTransformer):
        return model.grid(len(model.blocks) - 1).as_image(model.forward_features(x))
    if isinstance(model, HuggingFaceClassifier):
        inner = getattr(model.model, model.model.base_model_prefix)
        return tokens_as_map(inner(x).last_hidden_state, model, x)
    if not hasattr(model, "forward_features"):
        raise NotMeasurableError(f"{classifier.name} has no forward_features, so its features before pooling are not known")
    found: Tensor = model.forward_features(x)
    if found.ndim == 3:
        return tokens_as_map(found, model, x)
    if found.shape[1] != model.num_features and found.shape[-1] == model.num_features:
        found = found.permute(0, 3, 1, 2)  # Swin and related models keep channels last
    return found


def tokens_as_map(tokens: Tensor, model: nn.Module, images: Tensor) -> Tensor:
    """Tokens as a map: prefix tokens are left out, and the grid has the image's aspect.  # (B, N, C) -> (B, C, h, w)"""
    size = patch_size(model, (int(images.shape[-2]), int(images.shape[-1])))
    height, width = images.shape[-2] // size[0], images.shape[-1] // size[1]
    return Grid(height, width, tokens.shape[1] - height * width).as_image(tokens)


def patch_size(model: nn.Module, img_size: tuple[int, int]) -> tuple[int, int]:
    """Pixels of a patch, (height, width)."""
    model = unwrap(model)
    if isinstance(model, VisionTransformer):
        return model.spec.patch_size[0], model.spec.patch_size[1]
    grid = attention_sites(model, img_size)[0].grid
    return img_size[0] // grid.height, img_size[1] // grid.width


def patch_tokens(model: nn.Module, images: Tensor) -> Tensor:
    """The raw patch embeddings, before positions and class token.  # (B, 3, H, W) normalized -> (B, P, C)"""
    model = unwrap(model)
    embed: Any = getattr(model, "patch_embed", None)
    if isinstance(model, HuggingFaceClassifier):
        embed = next((module for name, module in model.named_modules() if name.endswith("patch_embeddings")), None)
    if embed is None:
        raise NotMeasurableError(f"{type(model).__name__} has no patch embedding, from which the original way starts")
    tokens: Tensor = embed(images)
    return tokens


def cells(model: nn.Module, images: Tensor) -> tuple[int, int]:
    """How many cells an explanation of an image has, (height, width): the patches, or 8 × 8 where there are none."""
    try:
        grid = attention_sites(model, (images.shape[-2], images.shape[-1]))[0].grid
    except NoAttentionMapError:
        return min(CELLS[0], images.shape[-2]), min(CELLS[1], images.shape[-1])
    return grid.height, grid.width
