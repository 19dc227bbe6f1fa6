"""The transformer: mixtures, class token, norms, checkpointing, compile."""

import pytest
import torch

from softbias.grid import Grid
from softbias.models import Layer, ModelSpec, build, create_model, list_models
from softbias.models.layers import fixed_positions

SMALL = {"img_size": 16, "patch_size": 4, "width": 32, "heads": 4, "num_classes": 3}


def images(batch: int = 2, size: int = 16) -> torch.Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0))


def test_mechanisms_can_be_mixed_block_by_block():
    layers = (Layer("gated"), Layer("masked", {"rank": 3}), Layer("window", {"window": 2}), Layer("full"))
    model = build(ModelSpec(**SMALL, layers=layers, class_token=2))
    assert model(images()).shape == (2, 3)
    assert [type(block.attn).__name__ for block in model.blocks] == ["Gated", "Masked", "Window", "Full"]
    assert [model.grid(index).prefix for index in range(4)] == [0, 0, 1, 1]


@pytest.mark.parametrize("token", [None, 0, 1, 3])
def test_the_class_token_joins_before_its_block(token):
    pool = "average" if token is None else "token"
    model = build(ModelSpec(**SMALL, layers=(Layer(),) * 4, class_token=token, pool=pool))
    seen = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, args, __: seen.append(args[0].shape[1]))
    model(images())
    assert seen == [16 + (token is not None and index >= token) for index in range(4)]


def test_learned_positions_include_a_class_token_that_joins_first():
    assert build(ModelSpec(**SMALL, layers=(Layer(),) * 2)).pos_embed.shape[1] == 17
    assert build(ModelSpec(**SMALL, layers=(Layer(),) * 2, class_token=1)).pos_embed.shape[1] == 16


def test_pooling_is_what_its_name_says():
    for pool in ("average", "flatten"):
        model = build(ModelSpec(**SMALL, layers=(Layer(),), class_token=None, pool=pool)).eval()
        tokens = model.forward_features(images())
        expected = model.head(tokens.mean(1) if pool == "average" else tokens.flatten(1))
        torch.testing.assert_close(model(images()), expected)
        torch.testing.assert_close(model.forward_head(tokens, pre_logits=True), tokens.mean(1))


def test_post_norm_leaves_normalized_tokens():
    model = build(ModelSpec(**SMALL, layers=(Layer(),) * 2, pre_norm=False))
    out = model.blocks[0](torch.randn(2, 17, 32) * 5)
    torch.testing.assert_close(out.mean(-1), torch.zeros(2, 17), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.std(-1, unbiased=False), torch.ones(2, 17), atol=1e-3, rtol=0)


def test_a_normalized_residual_adds_to_the_normalized_input():
    model = build(ModelSpec(**SMALL, layers=(Layer(),), residual="normalized"))
    block, x = model.blocks[0], torch.randn(2, 17, 32)
    near = block.norm1(x)
    after = near + block.attn(near)
    torch.testing.assert_close(block(x), block.norm2(after) + block.mlp(block.norm2(after)))


def test_positions_at_every_attention_stay_out_of_the_residual():
    spec = ModelSpec(
        **SMALL, layers=(Layer(),), class_token=None, pool="average", positions="sinusoid", positions_at="attention",
        position_scale=0.3,
    )  # fmt: skip
    block, x = build(spec).blocks[0], torch.randn(2, 16, 32)
    near = block.norm1(x)
    after = x + block.attn(near + 0.3 * fixed_positions(Grid(4, 4), 32, "sinusoid"))
    torch.testing.assert_close(block(x), after + block.mlp(block.norm2(after)))


def test_sinusoid_positions_differ_for_every_patch():
    positions = fixed_positions(Grid(5, 7, prefix=1), 32, "sinusoid")
    assert positions[0].abs().max() == 0
    assert torch.cdist(positions[1:], positions[1:]).fill_diagonal_(9).min() > 0.1
    torch.testing.assert_close(positions[1, :16], positions[2, :16])  # the same row


def test_drop_path_grows_with_depth_and_can_spare_the_feed_forward():
    model = build(ModelSpec(**SMALL, layers=(Layer(),) * 3, drop_path=0.2, drop_path_feed_forward=False))
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in model.blocks]
    assert rates == pytest.approx([0, 0.1, 0.2])
    assert all(not hasattr(block.drop_path2, "drop_prob") for block in model.blocks)


@pytest.mark.parametrize("name", list_models("*_nano"))
def test_checkpointing_changes_no_gradient(name):
    if name.startswith("resnet"):
        pytest.skip("timm's network")
    model = create_model(name).double()
    x = images(size=32).double()
    gradients = []
    for enabled in (False, True):
        model.set_grad_checkpointing(enabled)
        model.zero_grad()
        model(x).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, checkpointed)


QUICK = ["convit_nano"]  # the contract compiles every attention by itself


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in list_models("*_nano")]
)
def test_models_compile_without_a_break(name):
    torch._dynamo.reset()
    model = create_model(name).eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images(size=32)), model(images(size=32)))


def test_a_wrong_image_is_refused_with_what_would_work():
    with pytest.raises(ValueError, match=r"\(batch, 3, 32, 32\), but got \(1, 3, 33, 32\).*resize"):
        create_model("deit_nano")(torch.zeros(1, 3, 33, 32))


def test_reset_classifier_keeps_the_spec_true():
    model = create_model("convit_nano").double()
    model.reset_classifier(7)
    assert model.spec.num_classes == 7 and model(images(size=32).double()).shape == (2, 7)
    model.reset_classifier(5, global_pool="avg")
    assert model.spec.pool == "average" and model(images(size=32).double()).shape == (2, 5)
    with pytest.raises(ValueError, match="global_pool='max'"):
        model.reset_classifier(5, global_pool="max")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"class_token": None}, "needs a class token"),
        ({"class_token": 9}, "class_token=9"),
        ({"pool": "max"}, "no pool 'max'"),
        ({"layers": ()}, "1 to 1,000 entries"),
        ({"layers": (Layer("gatd"),)}, "did you mean 'gated'"),
        ({"layers": (Layer("full", {"rank": 3}),)}, "option of full attention 'rank'"),
        ({"drop_path": 1.0}, "drop_path .* 1.0"),
        ({"layers": (Layer("gated"),)}, "join at a later block"),
        ({"positions": "sinusoid", "width": 34, "heads": 2}, "multiple of 4"),
    ],
)
def test_impossible_specs_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        build(ModelSpec(**{**SMALL, "layers": (Layer(),) * 2, **change}))


def test_gated_values_start_as_the_identity():
    model = create_model("convit_nano")
    torch.testing.assert_close(model.blocks[0].attn.qkv.weight[128:], torch.eye(64))


def test_no_weight_decay_names_exist():
    model = create_model("deit_nano")
    assert model.no_weight_decay() <= {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("name", ["deit_nano", "convit_nano"])
def test_layer_wise_learning_rates_of_timm_fall_from_the_head_to_the_patches(name):
    from timm.optim import create_optimizer_v2

    model = create_model(name)
    groups = create_optimizer_v2(model, "adamw", lr=1.0, layer_decay=0.5).param_groups
    scale = {id(parameter): group["lr_scale"] for group in groups for parameter in group["params"]}
    parts = [model.head.weight, model.norm.weight, *(block.mlp.fc1.weight for block in reversed(model.blocks))]
    parts.append(model.patch_embed.proj.weight)
    assert [scale[id(part)] for part in parts] == [1, 0.5, 0.5, 0.25, 0.125, 0.0625, 0.03125]
