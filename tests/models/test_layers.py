"""Parts around the attention."""

from __future__ import annotations

import subprocess
import sys

import torch

from softbias.models.vit import DropPath


def test_a_path_is_dropped_as_timm_drops_it():
    from timm.layers import DropPath as TimmDropPath

    x = torch.randn(64, 5, 3)
    drawn = []
    for kind in (DropPath, TimmDropPath):
        torch.manual_seed(0)
        drawn.append(kind(0.3).train()(x))
    assert torch.equal(*drawn)
    zero = (drawn[0] == 0).all(dim=(1, 2))
    assert 5 < zero.sum() < 40
    torch.testing.assert_close(drawn[0][~zero], x[~zero] / 0.7)
    assert torch.equal(DropPath(0.3).eval()(x), x)


def test_models_are_made_without_importing_timm_or_the_compiler():
    code = "import sys, softbias.models; print({'timm', 'torchvision', 'torch._dynamo', 'triton'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
