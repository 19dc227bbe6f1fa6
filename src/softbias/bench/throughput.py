"""Images per second of whole models, inference and training, ours beside timm's."""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from softbias._version import __version__
from softbias.bench.timing import Timing, interleaved, ratio
from softbias.models import create_model

PEERS = {  # ours -> the same architecture in timm
    "deit_tiny": "timm:deit_tiny_patch16_224",
    "deit_small": "timm:deit_small_patch16_224",
    "deit_base": "timm:deit_base_patch16_224",
    "convit_tiny": "timm:convit_tiny",
    "convit_small": "timm:convit_small",
    "convit_base": "timm:convit_base",
    "resnet50": "timm:resnet50",
}


@dataclass(frozen=True)
class Setting:
    mode: str  # "inference" or "training"
    batch: int
    img_size: int
    device: torch.device
    dtype: torch.dtype
    compiled: bool = False

    def precision(self) -> AbstractContextManager[Any]:
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)


def prepare(name: str, setting: Setting) -> Callable[[], object]:
    """A step to time: a forward pass, or forward, backward and an AdamW update."""
    torch.manual_seed(0)
    model: nn.Module = create_model(name, img_size=setting.img_size).to(setting.device)
    run = torch.compile(model) if setting.compiled else model
    images = torch.randn(setting.batch, 3, setting.img_size, setting.img_size, device=setting.device)
    if setting.mode == "inference":
        model.eval()

        def infer() -> object:
            with torch.no_grad(), setting.precision():
                return run(images)

        return infer
    labels = torch.randint(1000, (setting.batch,), device=setting.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    model.train()

    def train() -> object:
        with setting.precision():
            loss = cross_entropy(run(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    return train


def compare_with_peers(names: list[str], setting: Setting, rounds: int) -> list[dict[str, Any]]:
    """One row per model: images per second of ours and of timm's, and the ratio with its quartiles."""
    rows = []
    for name in names:
        candidates = {name: prepare(name, setting)}
        peer = PEERS.get(name)
        if peer:
            candidates[peer] = prepare(peer, setting)
        timings = interleaved(candidates, setting.device, rounds=rounds)
        rows.append(as_row(name, peer, timings, setting))
    return rows


def as_row(name: str, peer: str | None, timings: dict[str, Timing], setting: Setting) -> dict[str, Any]:
    row: dict[str, Any] = {
        "model": name,
        "mode": setting.mode,
        "compiled": setting.compiled,
        "images_per_second": setting.batch / timings[name].median,
        "spread": timings[name].spread,
    }
    if peer:
        middle, low, high = ratio(timings[name], timings[peer])
        row |= {"peer": peer, "peer_images_per_second": setting.batch / timings[peer].median}
        row |= {"ratio": middle, "ratio_quartiles": [low, high]}
    return row


def environment(device: torch.device) -> dict[str, Any]:
    """What a number must be read beside."""
    import timm

    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "softbias": __version__,
        "torch": torch.__version__,
        "timm": timm.__version__,
        "python": platform.python_version(),
        "device": device.type,
        "hardware": hardware,
        "threads": torch.get_num_threads(),
    }
