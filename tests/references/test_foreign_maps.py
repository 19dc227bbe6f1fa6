"""Models of timm's are read exactly or refused: the maps that timm itself computes, off its fused path, are the oracle."""

import pytest
import timm
import torch
from torch import Tensor, nn

from softbias import convert, inspect
from softbias.attention import ConversionError, NoAttentionMapError
from softbias.models.inspect import attention_sites
from softbias.probes.rollout import rollout
from softbias.regularizers import parse_regularizers
from softbias.regularizers.attach import Regularized, attached

READ = {  # name -> options that make it small
    "vit_tiny_patch16_224": {"depth": 2},
    "vit_base_patch16_rpn_224": {"depth": 2, "embed_dim": 48, "num_heads": 3},
    "vit_tiny_patch16_224 with q and k norms": {"depth": 2, "qk_norm": True},
    "vit_tiny_patch16_224 with a norm of its output": {"depth": 2, "scale_attn_norm": True},
    "vit_tiny_patch16_224 with a gate": {"depth": 2},
    "vit_tiny_patch16_224 with a norm and a gate": {"depth": 2, "scale_attn_norm": True},
    "vit_base_patch16_224 with wide heads": {"depth": 2, "embed_dim": 48, "num_heads": 3, "qkv_bias": False},
    "vit_small_patch14_reg4_dinov2": {"depth": 2, "embed_dim": 48, "num_heads": 3, "patch_size": 16},
    "vit_medium_patch16_reg4_gap_256": {"depth": 2, "embed_dim": 48, "num_heads": 3},
    "vit_tiny_patch16_224 of any size": {"depth": 2, "dynamic_img_size": True},
    "vit_tiny_r_s16_p8_224 after convolutions": {"depth": 2},
    "deit_tiny_patch16_224": {"depth": 2},
    "deit3_small_patch16_224": {"depth": 2, "embed_dim": 48, "num_heads": 3},
    "deit_tiny_distilled_patch16_224": {"depth": 2},
    "convit_tiny": {"depth": 4, "local_up_to_layer": 2},
    "beit_base_patch16_224": {"depth": 2, "embed_dim": 48, "num_heads": 3},
    "beitv2_base_patch16_224": {"depth": 2, "embed_dim": 48, "num_heads": 3},
    "beit_base_patch16_224 with shared biases": {
        "depth": 2, "embed_dim": 48, "num_heads": 3, "use_rel_pos_bias": False, "use_shared_rel_pos_bias": True,
    },
    "beit_base_patch16_224 with both": {"depth": 2, "embed_dim": 48, "num_heads": 3, "use_shared_rel_pos_bias": True},
    "beit_base_patch16_224 without": {"depth": 2, "embed_dim": 48, "num_heads": 3, "use_rel_pos_bias": False},
}  # fmt: skip
REFUSED = [
    "eva02_tiny_patch14_224",
    "cait_xxs24_224",
    "xcit_nano_12_p16_224",
    "swin_tiny_patch4_window7_224",
    "swinv2_tiny_window8_256",
    "vit_relpos_small_patch16_224",
    "vit_relpos_base_patch16_clsgap_224",
    "vit_srelpos_small_patch16_224",
    "vit_small_patch16_18x2_224",
    "vit_base_patch16_rope_224",
    "samvit_base_patch16",
    "crossvit_tiny_240",
    "tnt_s_patch16_224",
    "visformer_tiny",
    "mixer_s32_224",
    "resnet18",
]


def small(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(name.split()[0], img_size=64, num_classes=5, **READ[name])
    if "gate" in name:  # timm's attention can have it, but no option of its models asks for it
        for block in model.blocks:
            norm = {"scale_norm": True, "norm_layer": nn.LayerNorm} if "norm" in name else {}
            block.attn = timm.layers.Attention(model.embed_dim, block.attn.num_heads, qkv_bias=True, gated=True, **norm)
    model = model.double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # tables of positions start as zeros, gates as ones
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator).double())
    return model


def own_maps(model: nn.Module, images: Tensor) -> list[Tensor]:
    """What timm's attention hands to its dropout: the normalized map."""
    found: list[Tensor] = []
    hooks = []
    for block in model.blocks:
        block.attn.fused_attn = False
        hooks.append(block.attn.attn_drop.register_forward_pre_hook(lambda _, args: found.append(args[0])))
    model(images)
    for block, hook in zip(model.blocks, hooks, strict=True):
        hook.remove()
        block.attn.fused_attn = True
    return found


@pytest.fixture
def images() -> Tensor:
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(2)).double()


@pytest.mark.parametrize("name", READ)
@torch.no_grad()
def test_maps_are_timms_own(name, images):
    model = small(name)
    expected = own_maps(model, images)
    seen = inspect(model, images)
    torch.testing.assert_close(seen.logits, model(images))
    assert list(seen.maps) == list(range(len(expected)))
    for layer, attention in enumerate(expected):
        assert attention.std() > 1e-3
        torch.testing.assert_close(seen.maps[layer], attention, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("name", READ)
@torch.no_grad()
def test_what_an_adapter_says_beside_the_map_is_the_map(name, images):
    model = small(name)
    for site in attention_sites(model):
        attention = site.attention
        x = torch.randn(2, len(site.grid), attention.width).double()
        q, k, v = attention.project(x)
        applied = attention.attention_map(x) @ v
        torch.testing.assert_close(attention.attend(q, k, v), applied, atol=1e-12, rtol=1e-9)
        mixture = attention.mixture()
        if mixture is not None:
            by_content = attention.scores(q, k).softmax(-1)
            g, positional = (0.0, 0.0) if mixture.share is None else (mixture.share[:, None, None], mixture.positional)
            torch.testing.assert_close(attention.attention_map(x), (1 - g) * by_content + g * positional)
        taken = []
        hook = attention.output_layer.register_forward_pre_hook(lambda _, args, taken=taken: taken.append(args[0]))
        site.module(x)
        hook.remove()
        if site.name != "relative position" or attention.shared is None:  # which the model adds to the call
            torch.testing.assert_close(taken[0], applied.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_are_not_read_exactly_are_refused(name):
    with torch.device("meta"):
        model = timm.create_model(name)
    with pytest.raises(NoAttentionMapError, match="exactly"):
        attention_sites(model)
    with pytest.raises(ConversionError):
        convert(model, 0, "full")


@pytest.mark.parametrize("part", ["parameter", "module", "subclass"])
def test_an_attention_with_a_part_that_we_do_not_know_is_refused(part):
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=1)
    attention = model.blocks[0].attn
    if part == "parameter":
        attention.temperature = nn.Parameter(torch.ones(()))
    elif part == "module":
        attention.talking_heads = nn.Linear(3, 3)
    else:
        attention.__class__ = type("Attention", (type(attention),), {})
    with pytest.raises(NoAttentionMapError):
        attention_sites(model)


def test_a_call_with_a_mask_is_refused():
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=1).eval()
    mask = torch.zeros(17, 17)
    block = model.blocks[0]
    block.forward = lambda x, **_: x + block.attn(block.norm1(x), attn_mask=mask)
    with pytest.raises(NoAttentionMapError, match="attn_mask"):
        inspect(model, torch.zeros(1, 3, 64, 64))


@pytest.mark.parametrize(
    "name",
    ["beit_base_patch16_224", "vit_tiny_patch16_224 with q and k norms", "vit_tiny_patch16_224 with a gate", "convit_tiny"],
)
def test_what_projections_alone_do_not_say_is_not_converted(name):
    with pytest.raises(ConversionError):
        convert(small(name), 0, "masked")


@pytest.mark.parametrize("name", READ)
def test_rollout_and_regularizers_take_the_same_maps(name, images):
    model = small(name)
    last = own_maps(model, images)[-2:]
    assert rollout(list(inspect(model, images, layers=[-2, -1]).maps.values())).shape == rollout(last).shape
    configs = parse_regularizers(["distance:layer=-1", "style:layer=-1"])
    values = []
    for fused in (True, False):
        run = Regularized(model, configs, (64, 64), fused=fused)
        with attached(run):
            values.append(run(images)[1])
        assert fused != any(each.reads_map for each in run.layers[0].attached) or "beit" in name
    torch.testing.assert_close(*values, atol=1e-5, rtol=1e-5)
    run = Regularized(model, configs, (64, 64))
    expected = torch.stack([each.regularizer(last[-1], images) for each in run.layers[0].attached])
    torch.testing.assert_close(values[1], expected, atol=1e-9, rtol=1e-9)
