"""Models for other programs: `export` writes ONNX, as in `softbias.export(model, "flowers.onnx")`."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import nn

from softbias.errors import SoftbiasError
from softbias.files import replacing
from softbias.models.inspect import unwrap
from softbias.models.weights import check_finite


def export(model: nn.Module, path: str | Path, *, img_size: tuple[int, int] | None = None) -> Path:
    """Write the model as ONNX, from images (batch, channels, height, width) to logits, for any batch size.

    The image size is the model's own; give `img_size` for a foreign model that does not state one.
    """
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise SoftbiasError("ONNX export needs onnx and onnxscript: pip install 'softbias[onnx]'") from error
    model = unwrap(model)
    check_finite(model.state_dict())
    path = Path(path)
    if path.suffix != ".onnx":
        raise SoftbiasError(f"an ONNX file is named *.onnx, but path={str(path)!r}")
    channels, *size = input_size(model, img_size)
    like = next(model.parameters())
    images = torch.zeros(2, channels, *size, device=like.device, dtype=like.dtype)
    training = model.training
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's own notices about its future
            program = torch.onnx.export(
                model.eval(),
                (images,),
                dynamo=True,
                input_names=["images"],
                output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
                verbose=False,
            )
        assert program is not None
        with replacing(path) as temporary:
            program.save(str(temporary))
    finally:
        model.train(training)
    return path


def input_size(model: nn.Module, img_size: tuple[int, int] | None) -> tuple[int, int, int]:
    spec = getattr(model, "spec", None)
    if spec is not None:
        return (spec.in_chans, *spec.img_size)
    cfg = getattr(model, "pretrained_cfg", None) or {}
    options = getattr(model, "timm_options", {})
    size = img_size or options.get("img_size") or tuple(cfg.get("input_size", ()))[1:]
    size = (size, size) if isinstance(size, int) else tuple(size)
    if not size:
        raise SoftbiasError("this model does not state its image size; give img_size=(height, width)")
    return (options.get("in_chans", 3), size[0], size[1])
