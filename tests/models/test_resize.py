"""resize: identity at the same size, sensible at another, for every mechanism."""

import pytest
import torch

from softbias import create_model, list_models, resize
from softbias.grid import Grid
from softbias.kernels.rolling import kernel_map


def moved(name: str, **options) -> torch.nn.Module:
    torch.manual_seed(0)
    model = create_model(name, **options).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("name", list_models("*_nano"))
def test_to_the_same_size_is_the_identity(name):
    model, x = moved(name), torch.randn(2, 3, 32, 32).double()
    same = resize(model, 32)
    assert same is not model
    assert torch.equal(same(x), model(x))


@pytest.mark.parametrize("name", list_models("*_nano"))
@pytest.mark.parametrize("size", [(48, 32), (24, 40)])
def test_to_another_size_square_or_not(name, size):
    model = moved(name)
    resized = resize(model, size)
    assert resized.spec.img_size == size
    assert torch.isfinite(resized(torch.randn(2, 3, *size).double())).all()
    assert model.spec.img_size == (32, 32)  # the original is untouched


def test_a_mask_has_no_more_ranks_than_its_new_grid_has_tokens():
    model = resize(create_model("ibit_nano", 10, 32, patch_size=8), 16)  # 2 × 2 patches and a class token
    assert [block.attn.rank for block in model.blocks] == [5] * 4
    assert model(torch.zeros(1, 3, 16, 16)).shape == (1, 10)
    assert resize(model, 16).spec == model.spec


def test_a_mask_of_the_initial_kernel_stays_local():
    model = resize(create_model("ibit_nano"), 48)
    mask = model.blocks[0].attn.mask()[0, 1:, 1:]
    stretched = kernel_map(Grid(12, 12))  # the kernel of the 8 × 8 grid, seen at 12 × 12, is wider but still local
    near = mask[stretched > 0.55].mean()
    assert near > 0.5 and mask[stretched < 0.02].abs().mean() < 0.25
    torch.testing.assert_close(model.blocks[0].attn.mask()[0, 0], torch.ones(145), atol=0.15, rtol=0)


def test_a_flatten_head_keeps_its_logits_on_a_constant_picture():
    model = create_model("arvit_nano", positions="none").eval()
    gray = torch.ones(1, 3, 1, 1)
    small, large = model(gray.expand(1, 3, 32, 32)), resize(model, 64)(gray.expand(1, 3, 64, 64))
    torch.testing.assert_close(small, large, atol=1e-4, rtol=1e-4)


def test_learned_positions_keep_their_pattern():
    model = create_model("deit_nano")
    with torch.no_grad():
        model.pos_embed[0, 1:] = torch.arange(8.0).repeat_interleave(8)[:, None]  # the row number
    bigger = resize(model, 64).pos_embed[0, 1:].reshape(16, 16, -1)[:, 5, 0]
    assert (bigger.diff() > 0).all() and torch.equal(resize(model, 64).pos_embed[0, 0], model.pos_embed[0, 0])


def test_foreign_models_are_refused():
    with pytest.raises(ValueError, match="Linear"):
        resize(torch.nn.Linear(2, 2), 32)
