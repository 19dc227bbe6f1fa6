"""Regularizers on real models: the fast forms equal the definition, and nothing but the chosen layer is touched."""

import copy

import pytest
import torch

import softbias
from softbias.regularizers import parse_regularizer, parse_regularizers
from softbias.regularizers.attach import Regularized, attached

MODELS = {
    "arvit_nano": {},  # full attention without prefix
    "deit_nano": {},  # with a class token
    "convit_nano": {},  # gated
    "ibit_nano": {},  # masked: rows do not sum to one
    "window_nano": {},  # by definition
    "timm:deit_tiny_patch16_224": {"patch_size": 8, "depth": 3},
    "timm:convit_tiny": {"patch_size": 8, "depth": 3, "local_up_to_layer": 2},
}
CHOSEN = (
    "distance:layer=1,reduction=sum",
    "style:layer=1,reduction=sum",
    "style:layer=0+-1,rho=0.1,region=2",
    "distance:layer=0,reduction=released",
)


def build(name: str, **options) -> torch.nn.Module:
    torch.manual_seed(0)
    chosen = {"img_size": 32, "patch_size": 8} | MODELS[name] | options
    model = softbias.create_model(name, num_classes=4, **chosen).double()
    with torch.no_grad():  # sharper maps than those of a fresh model, which are nearly uniform
        for parameter_name, parameter in model.named_parameters():
            if "qkv" in parameter_name or "qk." in parameter_name:
                parameter.mul_(4)
    return model


def images(batch: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    strength = torch.rand(batch, 3, 4, 4, dtype=torch.double, generator=generator)
    noise = torch.randn(batch, 3, 32, 32, dtype=torch.double, generator=generator)
    return noise * torch.nn.functional.interpolate(strength, size=32)


def gradients(value: torch.Tensor, model: torch.nn.Module) -> list[torch.Tensor]:
    """Zeros for a parameter that takes no part, in a compiled graph as well."""
    return list(torch.autograd.grad(value, list(model.parameters()), retain_graph=True, materialize_grads=True))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("text", CHOSEN)
def test_values_and_gradients_are_those_of_the_inspected_maps(name, text):
    model, x = build(name), images()
    run = Regularized(model, parse_regularizers([text])).double()
    with attached(run):
        logits, values = run(x)
    seen = softbias.inspect(model, x, layers=parse_regularizer(text).layers)
    each = [regularizer(attention, x) for regularizer, attention in zip(run.regularizers, seen.maps.values(), strict=True)]
    expected = torch.stack(each).mean(0)
    torch.testing.assert_close(values[0], expected)
    torch.testing.assert_close(logits, seen.logits)
    weights = torch.tensor([1.0, -0.5, 2.0], dtype=torch.double)
    pairs = zip(gradients((weights * values[0]).sum(), model), gradients((weights * expected).sum(), model), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_full_gated_and_timm_need_no_map_and_others_take_the_definition(name):
    run = Regularized(build(name), parse_regularizers(["distance:layer=0", "style:layer=0"]))
    forms = [each.reads_map for each in run.layers[0].attached]
    expected = {"ibit_nano": [True, False], "window_nano": [True, True]}
    assert forms == expected.get(name, [False, False])
    assert run.supports_cuda_graph == (forms == [False, False])


@pytest.mark.parametrize("name", ["arvit_nano", "timm:deit_tiny_patch16_224"])
def test_only_the_chosen_layer_is_touched_and_only_while_attached(name):
    model = build(name)
    before = dict(model.state_dict())
    run = Regularized(model, parse_regularizers(["style:layer=1"])).double()
    with attached(run):
        assert ["forward" in block.attn.__dict__ for block in model.blocks][:3] == [False, True, False]
        run(images())
        plain = model(images(2))  # a call of the bare model, as in validation: another number of pictures
    assert not any("forward" in block.attn.__dict__ for block in model.blocks)
    torch.testing.assert_close(model(images(2)), plain, rtol=0, atol=0)
    assert list(model.state_dict()) == list(before)


def test_a_weight_of_zero_watches_and_changes_no_bit():
    model, x = build("arvit_nano").float(), images().float()
    run = Regularized(model, parse_regularizers(["style:layer=1,weight=0", "distance:layer=1,weight=0"]))
    with attached(run):
        logits, values = run(x)
    assert torch.equal(logits, model(x))
    assert not values.requires_grad
    trained = Regularized(model, parse_regularizers(["style:layer=1", "distance:layer=1"]))
    with attached(trained):
        torch.testing.assert_close(trained(x)[1].detach(), values)


def test_a_model_between_two_steps_can_be_copied():
    run = Regularized(build("timm:deit_tiny_patch16_224"), parse_regularizers(["style:layer=1", "distance:layer=2"])).double()
    with attached(run):
        run(images())[1].sum().backward()
        other = copy.deepcopy(run)
        torch.testing.assert_close(other(images())[1], run(images())[1])
    assert other.layers[0].module is not run.layers[0].module


@pytest.mark.parametrize("name", ["arvit_nano", "timm:deit_tiny_patch16_224"])
def test_blocks_that_run_again_in_backward_give_the_same_gradients(name):
    model = build(name)
    run = Regularized(model, parse_regularizers(["style:layer=1", "distance:layer=1"])).double()
    with attached(run):
        plain = gradients(run(images())[1].sum(), model)
        model.set_grad_checkpointing(True)
        value = run(images())[1].sum()
        again = torch.autograd.grad(value, list(model.parameters()), materialize_grads=True)
        model.eval()
        with torch.no_grad():
            model(images(2))  # validation, while the layer is still open for the backward pass
    for one, other in zip(plain, again, strict=True):
        torch.testing.assert_close(one, other)


def test_autocast_keeps_the_values_in_32_bits():
    model = build("arvit_nano").float()
    run = Regularized(model, parse_regularizers(["style:layer=1", "distance:layer=2"]))
    with attached(run):
        exact = run(images().float())[1]
        with torch.autocast("cpu", torch.bfloat16):
            rough = run(images().float())[1]
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=0.01, atol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["arvit_nano", "timm:deit_tiny_patch16_224"])
def test_one_compiled_graph_gives_the_same(name):
    model = build(name).float()
    run = Regularized(model, parse_regularizers(["style:layer=1", "distance:layer=2", "distance:layer=0,weight=0"]))
    compiled = torch.compile(run, fullgraph=True)
    with attached(run):
        plain, fast = run(images().float()), compiled(images().float())
        torch.testing.assert_close(fast[1], plain[1], rtol=1e-4, atol=1e-5)
        for one, other in zip(gradients(plain[1].sum(), model), gradients(fast[1].sum(), model), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("arvit_nano", "distance:layer=4", "layers with an attention map are 0, 1, 2, 3"),
        ("dwconv_nano", "style:layer=0", "whose layers with an attention map are none"),
        ("resnet_nano", "distance:layer=0", "nothing to regularize: resnet_nano has no attention maps"),
        ("timm:resnet18", "distance:layer=0", "nothing to regularize: timm:resnet18"),
    ],
)
def test_a_layer_without_a_map_is_refused_with_those_that_have_one(name, text, words):
    model = softbias.create_model(name, num_classes=4, img_size=32)
    with pytest.raises(ValueError, match=words):
        Regularized(model, parse_regularizers([text]))


def test_forgetting_to_attach_is_an_error_and_not_a_silent_zero():
    run = Regularized(build("arvit_nano"), parse_regularizers(["distance:layer=1"])).double()
    with pytest.raises(RuntimeError, match="attached"):
        run(images())
