"""The ETH study's local network: our logits and gradients are those of its formula, written here without our layers."""

import pytest
import torch
from torch.nn.functional import batch_norm, conv2d, gelu, layer_norm, linear, pad, relu

from softbias import create_model, load, resize, save
from softbias.errors import SoftbiasError
from softbias.models.cost import count_parameters

WIDTH, BLOCKS = 8, (1, 2, 2, 1)


def moved_away(model: torch.nn.Module) -> torch.nn.Module:
    """Every tensor off its initial value, the statistics of norms too: ones and zeros would hide mistakes."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                drawn = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
                tensor.add_(0.3 * (drawn.abs() if "running_var" in name else drawn))
    return model


class Formula:
    """The network as a function of its weights; training: norms take the statistics of the batch."""

    def __init__(self, weights: dict[str, torch.Tensor], dynamic: bool, training: bool) -> None:
        self.weights, self.dynamic, self.training = weights, dynamic, training

    def batch(self, x, name):
        mean, variance = (self.weights[f"{name}.running_{kind}"].clone() for kind in ("mean", "var"))
        scale, shift = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return batch_norm(x, mean, variance, scale, shift, self.training, eps=1e-5)

    def layer(self, x, name):
        return layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], eps=1e-5)

    def mixed(self, x, name):
        u = relu(self.batch(conv2d(x, self.weights[f"{name}.before.weight"]), f"{name}.norm1"))
        if self.dynamic:
            mean = u.mean((2, 3))[:, :, None, None]
            squeezed = relu(self.batch(conv2d(mean, self.weights[f"{name}.mix.squeeze.weight"]), f"{name}.mix.norm"))
            kernels = linear(
                squeezed[:, :, 0, 0],
                self.weights[f"{name}.mix.expand.weight"][:, :, 0, 0],
                self.weights[f"{name}.mix.expand.bias"],
            )
            images = [  # image by image, channel by channel
                conv2d(image[None], kernel.reshape(-1, 1, 7, 7), self.weights[f"{name}.mix.bias"], padding=3, groups=len(image))
                for image, kernel in zip(u, kernels, strict=True)
            ]
            u = torch.cat(images)
        else:
            kernel, bias = self.weights[f"{name}.mix.weight"], self.weights[f"{name}.mix.bias"]
            u = conv2d(u, kernel, bias, padding=3, groups=len(kernel))
        return self.batch(conv2d(relu(self.batch(u, f"{name}.norm2")), self.weights[f"{name}.after.weight"]), f"{name}.norm3")

    def block(self, x, name):
        x = x + self.mixed(x, f"{name}.mixer")
        inner = self.batch(x, f"{name}.norm").permute(0, 2, 3, 1)
        inner = gelu(linear(inner, self.weights[f"{name}.mlp.fc1.weight"], self.weights[f"{name}.mlp.fc1.bias"]))
        inner = linear(inner, self.weights[f"{name}.mlp.fc2.weight"], self.weights[f"{name}.mlp.fc2.bias"])
        return x + inner.permute(0, 3, 1, 2)

    def merged(self, x, name):
        x = pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2)).permute(0, 2, 3, 1)
        parts = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
        joined = self.layer(torch.cat(parts, -1), f"{name}.norm")
        return linear(joined, self.weights[f"{name}.reduction.weight"]).permute(0, 3, 1, 2)

    def __call__(self, images):
        x = conv2d(images, self.weights["patch_embed.proj.weight"], self.weights["patch_embed.proj.bias"], stride=4)
        x = self.layer(x.permute(0, 2, 3, 1), "patch_embed.norm").permute(0, 3, 1, 2)
        for stage, count in enumerate(BLOCKS):
            first = 0
            if stage:
                x, first = self.merged(x, f"stages.{stage}.0"), 1
            for index in range(count):
                x = self.block(x, f"stages.{stage}.{first + index}")
        x = self.layer(x.permute(0, 2, 3, 1), "norm").mean((1, 2))
        return linear(x, self.weights["head.weight"], self.weights["head.bias"])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("size", [(32, 64), (24, 40)])
def test_logits_and_gradients_are_those_of_the_formula(dynamic, training, size):
    model = create_model("dwnet_nano", 5, size, blocks=BLOCKS, width=WIDTH, dynamic=dynamic, dtype=torch.double)
    moved_away(model).train(training)
    images = torch.randn(3, 3, *size, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    weights = {name: tensor.detach().clone().requires_grad_(tensor.is_floating_point() and "running" not in name)
               for name, tensor in model.state_dict().items()}  # fmt: skip
    expected = Formula(weights, dynamic, training)(images)
    found = model(images)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
    found.sin().sum().backward()
    expected.sin().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, weights[name].grad, atol=1e-9, rtol=1e-9)


def test_the_trained_configuration_has_the_published_size():
    for name, classes, millions in (
        ("dwnet_dynamic_base", 10, 160.6),
        ("dwnet_base", 1000, 74.3),
        ("dwnet_dynamic_tiny", 1000, 51.1),
        ("dwnet_tiny", 1000, 24.2),
    ):
        model = create_model(name, classes, device="meta")
        assert round(count_parameters(model) / 1e6, 1) == millions
        assert model.spec.blocks == ((2, 2, 18, 2) if "base" in name else (2, 2, 6, 2))


def test_stochastic_depth_grows_over_all_blocks():
    model = create_model("dwnet_tiny", device="meta", drop_path=0.5)
    rates = [getattr(block.drop_path, "drop_prob", 0.0) for stage in model.stages for block in stage if hasattr(block, "mixer")]
    torch.testing.assert_close(torch.tensor(rates), torch.linspace(0, 0.5, 12))


def test_it_is_saved_loaded_resized_and_given_a_new_head(tmp_path):
    model = moved_away(create_model("dwnet_nano", 4, dynamic=True)).eval()
    images = torch.randn(2, 3, 32, 32)
    save(model, tmp_path)
    assert torch.equal(load(tmp_path)(images), model(images))
    larger = resize(model, 64)
    assert larger.spec.img_size == (64, 64) and larger(torch.randn(1, 3, 64, 64)).shape == (1, 4)
    model.reset_classifier(7)
    assert model.spec.num_classes == 7 and model(images).shape == (2, 7)
    program = torch.export.export(model, (images,)).module()
    torch.testing.assert_close(program(images), model(images))


def test_what_it_cannot_do_is_refused_by_name():
    with pytest.raises(SoftbiasError, match="img_size"):
        create_model("dwnet_nano", img_size=30)
    with pytest.raises(SoftbiasError, match="kernel_size=4"):
        create_model("dwnet_nano", kernel_size=4)
    with pytest.raises(SoftbiasError, match="patch_size"):
        create_model("dwnet_nano", patch_size=8)
    with pytest.raises(SoftbiasError, match="at least two"):
        create_model("dwnet_nano", dynamic=True).train()(torch.zeros(1, 3, 32, 32))
