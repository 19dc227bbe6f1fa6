"""When a run's model is compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from softbias.kernels import triton_api
from softbias.models import create_model
from softbias.training.plan import count_tokens, should_compile
from softbias.training.recipe import RECIPES

GPU, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.mark.parametrize(
    ("wanted", "device", "n_images", "expected"),
    [
        ("auto", GPU, 200 * 50_000, True),  # CIFAR-10 as `fit` trains it
        ("auto", GPU, 1000 * 2000, False),  # 128 million tokens: training takes about as long as compiling
        ("auto", CPU, 200 * 50_000, False),
        ("on", CPU, 1, True),
        ("off", GPU, 200 * 50_000, False),
    ],
)
def test_a_model_is_compiled_where_the_recipe_says_so_or_it_saves_time(monkeypatch, wanted, device, n_images, expected) -> None:
    monkeypatch.setattr(triton_api, "works", lambda: True)
    model = create_model("convit_nano", 10, 32, patch_size=4)
    assert should_compile(model, replace(RECIPES["small"], compile=wanted), device, n_images, (32, 32)) is expected


def test_tokens_are_the_patches_of_our_transformers_and_of_timm_s_or_else_patches_of_16() -> None:
    assert count_tokens(torch.compile(create_model("deit_nano", 10, 32, patch_size=8)), (32, 32)) == 16
    timms = create_model("timm:vit_tiny_patch16_224", 10, (64, 32), patch_size=4, depth=1)
    assert count_tokens(timms, (64, 32)) == 128
    assert count_tokens(create_model("resnet_nano", 10, 32), (64, 32)) == 8
