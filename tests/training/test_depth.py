"""Frozen blocks stay as they are and cost no gradient; deeper layers learn faster."""

from dataclasses import replace

import pytest
import torch

from softbias.errors import SoftbiasError
from softbias.models import create_model
from softbias.models.conversion import converted, parse_conversion
from softbias.training.depth import freeze_blocks, frozen_modules, index_of, lr_factor
from softbias.training.optim import build_optimizer, parameter_groups
from softbias.training.recipe import RECIPES, Recipe

OURS = {"name": "deit_nano", "num_classes": 3, "img_size": 32, "patch_size": 8}


def ours():
    return create_model(**OURS)


def timms():
    return create_model("timm:vit_tiny_patch16_224", num_classes=3, img_size=32, depth=4, patch_size=8)


@pytest.mark.parametrize("make", [ours, timms])
def test_frozen_blocks_get_no_gradient_and_the_others_do(make):
    model = make()
    freeze_blocks(model, 2)
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    for name, parameter in model.named_parameters():
        before = index_of(model, name) < 2
        assert (parameter.grad is None) is before, name
    assert model.pos_embed.grad is None and model.patch_embed.proj.weight.grad is None
    assert model.head.weight.grad is not None


@pytest.mark.parametrize("make", [ours, timms])
def test_no_graph_is_built_for_frozen_blocks(make):
    model, seen = make(), []
    freeze_blocks(model, 2)
    for block in model.blocks:
        block.register_forward_hook(lambda _, __, tokens: seen.append(tokens.requires_grad))
    model(torch.randn(1, 3, 32, 32))
    assert seen[:3] == [False, False, True]


def test_a_class_token_that_joins_later_still_learns():
    model = create_model("convit_nano", num_classes=3, img_size=32, patch_size=8)
    freeze_blocks(model, model.spec.class_token)
    assert model.cls_token.requires_grad and not model.patch_embed.proj.weight.requires_grad
    freeze_blocks(model, model.spec.class_token + 1)
    assert not model.cls_token.requires_grad


def test_frozen_modules_are_the_embedding_and_the_first_blocks():
    model = ours()
    frozen = list(frozen_modules(model, 1))
    assert model.patch_embed in frozen and model.blocks[0] in frozen
    assert model.blocks not in frozen, "later blocks would lose their dropout, too"
    assert model.blocks[1] not in frozen and model.norm not in frozen and model.head not in frozen
    assert list(frozen_modules(model, 0)) == []


def test_a_model_without_blocks_is_refused_by_the_name_of_the_setting():
    model = create_model("resnet_nano", num_classes=3, img_size=32)
    with pytest.raises(SoftbiasError, match="frozen_blocks=1"):
        freeze_blocks(model, 1)
    with pytest.raises(SoftbiasError, match="layer_decay"):
        build_optimizer(model, Recipe(layer_decay=0.5))
    freeze_blocks(model, 0)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_more_frozen_blocks_than_there_are_are_refused():
    model = ours()
    with pytest.raises(SoftbiasError, match=f"has {len(model.blocks)} blocks"):
        freeze_blocks(model, len(model.blocks) + 1)


def test_the_learning_rate_falls_towards_the_input():
    model, depth = ours(), len(ours().blocks)
    assert lr_factor(model, "head.weight", 0.5) == lr_factor(model, "norm.weight", 0.5) == 1
    assert lr_factor(model, f"blocks.{depth - 1}.norm1.weight", 0.5) == 0.5
    assert lr_factor(model, "blocks.0.norm1.weight", 0.5) == 0.5**depth
    assert lr_factor(model, "pos_embed", 0.5) == lr_factor(model, "patch_embed.proj.bias", 0.5) == 0.5 ** (depth + 1)


def test_groups_hold_every_trained_parameter_once_with_its_factor():
    model = ours()
    freeze_blocks(model, 1)
    groups = parameter_groups(model, 0.05, 0.5)
    held = [parameter for group in groups for parameter in group["params"]]
    assert {id(each) for each in held} == {id(each) for each in model.parameters() if each.requires_grad}
    assert len(held) == len({id(each) for each in held})
    head = next(group for group in groups if any(each is model.head.weight for each in group["params"]))
    assert head["lr_factor"] == 1 and head["weight_decay"] == 0.05


def test_without_layer_decay_there_are_the_two_groups_of_weight_decay():
    groups = parameter_groups(ours(), 0.05)
    assert [(group["weight_decay"], group["lr_factor"]) for group in groups] == [(0.05, 1), (0.0, 1)]


def test_frozen_weights_are_the_same_bits_after_training(train):
    recipe = replace(RECIPES["finetune"], epochs=2, batch_size=16, frozen_blocks=2, layer_decay=0.8, warmup_epochs=0)
    torch.manual_seed(0)
    start = create_model(**OURS).state_dict()
    model = train(recipe=recipe, epochs=2).model
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, start[name]) is (index_of(model, name) < 2), name


def test_a_regularizer_of_a_frozen_layer_is_refused_unless_it_is_only_logged(train):
    with pytest.raises(SoftbiasError, match="would change nothing"):
        train(recipe="finetune", frozen_blocks=2, regularize=("distance:layer=1,weight=0.1",))
    train(recipe="finetune", frozen_blocks=2, regularize=("distance:layer=1,weight=0",), out="logged")
    train(recipe="finetune", frozen_blocks=2, regularize=("distance:layer=2,weight=0.1",), out="later")


def test_steps_of_a_cuda_graph_have_a_learning_rate_of_their_own_for_every_factor():
    groups = build_optimizer(ours(), Recipe(layer_decay=0.5, lr=1.0), graph=True).param_groups
    rates = {group["lr_factor"]: group["lr"] for group in groups}
    assert all(isinstance(rate, torch.Tensor) and rate.item() == factor for factor, rate in rates.items())
    assert len(rates) > 2 and len({id(group["lr"]) for group in groups}) == len(groups)


def test_biases_of_a_conversion_learn_at_the_full_rate_and_what_was_there_at_that_of_its_depth():
    model = converted(create_model("deit_nano"), parse_conversion("masked:blocks=0-1"))
    assert lr_factor(model, "blocks.0.attn.mask_a", 0.5) == lr_factor(model, "blocks.1.attn.mask_b", 0.5) == 1
    assert lr_factor(model, "blocks.0.attn.qkv.weight", 0.5) == lr_factor(model, "blocks.0.norm1.weight", 0.5) == 0.5**4
    fast = converted(create_model("deit_nano"), parse_conversion("gated:rate=20"))
    assert lr_factor(fast, "blocks.0.attn.gate", 1.0) == lr_factor(fast, "blocks.2.attn.position.weight", 0.5) == 20
    added = [each for group in parameter_groups(fast, 0.05) if group["lr_factor"] == 20 for each in group["params"]]
    assert len(added) == len(fast.new_parameters) == 3 * 3  # a gate, and weight and bias of positions, in three blocks
    again = converted(create_model("convit_nano"), parse_conversion("masked:blocks=0"))
    assert lr_factor(again, "blocks.1.attn.gate", 0.5) == 0.5 ** (len(again.blocks) - 1)  # it was there before
