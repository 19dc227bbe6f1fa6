"""timm as an oracle: with its weights, our logits and our attention maps are its own."""

import pytest
import timm
import torch

from softbias import create_model, inspect, load_weights
from softbias.errors import SoftbiasError

PAIRS = [
    ("deit_tiny", "deit_tiny_patch16_224"),
    ("convit_tiny", "convit_tiny"),
    pytest.param("convit_small", "convit_small", marks=pytest.mark.slow),
    pytest.param("convit_base", "convit_base", marks=pytest.mark.slow),
]


def moved_away(model: torch.nn.Module) -> torch.nn.Module:
    """Parameters off their initial values: a gate of one, a zero class token or a symmetric position would hide mistakes."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.5 if "gating" in name or "pos_proj" in name else 0.02 if parameter.ndim > 1 else 0.1
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator).to(parameter))
        model.cls_token.add_(0.5)
    return model.eval()


@pytest.mark.parametrize(("ours", "timm_name"), PAIRS)
def test_logits_and_maps_equal_timms(ours, timm_name):
    reference = moved_away(timm.create_model(timm_name).double())
    model = load_weights(create_model(ours).double(), reference.state_dict()).eval()
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        seen, expected = inspect(model, images), inspect(reference, images)
        assert expected.logits.abs().max() > 0.1
        torch.testing.assert_close(seen.logits, expected.logits, atol=1e-10, rtol=1e-10)
        assert list(seen.maps) == list(range(12)) and seen.grid == expected.grid
        for layer, attention in seen.maps.items():
            torch.testing.assert_close(attention, expected.maps[layer], atol=1e-10, rtol=1e-10)
        single = timm.create_model(timm_name).eval()  # a fresh one: timm's ConViT keeps its first dtype in a cache
        single.load_state_dict(reference.state_dict())
        difference = (model.float()(images.float()) - single(images.float())).abs().max()
        assert difference <= 1e-4 * expected.logits.abs().max()


def test_weights_of_a_smaller_grid_are_interpolated():
    reference = timm.create_model("convit_tiny", img_size=64, patch_size=8)
    model = load_weights(create_model("convit_tiny", img_size=96, patch_size=8), reference.state_dict())
    assert model.pos_embed.shape == (1, 144, 192)
    torch.testing.assert_close(model.pos_embed.mean(), reference.pos_embed.mean(), atol=2e-4, rtol=0.05)


def test_checkpoint_files_of_every_kind_are_read(tmp_path):
    from safetensors.torch import save_file

    reference = timm.create_model("deit_tiny_patch16_224", img_size=32, patch_size=4)
    state = reference.state_dict()
    torch.save({"model": {f"module.{name}": tensor for name, tensor in state.items()}, "epoch": 3}, tmp_path / "a.pth")
    save_file(state, tmp_path / "model.safetensors")
    for path in (tmp_path / "a.pth", tmp_path / "model.safetensors", tmp_path):
        model = load_weights(create_model("deit_tiny", img_size=32), path)
        torch.testing.assert_close(model.blocks[3].attn.qkv.weight, reference.blocks[3].attn.qkv.weight)


def test_a_pickle_with_code_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"model": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(SoftbiasError, match=r"evil\.pth"):
        load_weights(create_model("deit_nano"), tmp_path / "evil.pth")
    assert not (tmp_path / "ran").exists()


def test_weights_that_do_not_fit_are_listed():
    state = timm.create_model("deit_tiny_patch16_224", num_classes=5).state_dict()
    model = create_model("deit_tiny", num_classes=3)
    with pytest.raises(ValueError, match=r"head\.weight is \(5, 192\), the model has \(3, 192\).*keep_head=True"):
        load_weights(model, state)
    head = model.head.weight.clone()
    load_weights(model, state, keep_head=True)
    assert torch.equal(model.head.weight, head)
    with pytest.raises(ValueError, match=r"blocks\.0\.attn\.gate is missing"):
        load_weights(create_model("convit_tiny", num_classes=5), state)
