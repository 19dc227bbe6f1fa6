"""Presets: the papers' sizes, sensible patches, and errors that help."""

import warnings

import pytest
import torch

import softbias
from softbias.errors import SoftbiasError
from softbias.models import (
    PRESETS,
    ModelSpec,
    Preset,
    create_model,
    list_models,
    preset_spec,
    register_preset,
    spec_from_dict,
)
from softbias.models.cost import COSTS, count_macs, count_parameters
from softbias.models.patch_sizes import suitable_patch

PUBLISHED = [  # SYSTEMS: parameters at 224 px (ARViT 256 px), 1000 classes unless stated
    ("deit_tiny", {}, 5_717_416),
    ("convit_tiny", {}, 5_710_512),
    ("convit_small", {}, 27_777_322),
    ("convit_base", {}, 86_540_040),
    ("ibit_tiny", {}, 5_845_072),
    ("ibit_small", {}, 22_305_976),
    ("ibit_base", {}, 87_078_280),
    ("arvit_base", {"num_classes": 4}, 8_941_768),
    ("arvit_base", {"num_classes": 4, "released": True}, 8_930_920),
    ("arvit_style", {"num_classes": 4, "released": True}, 8_812_548),
]


@pytest.mark.parametrize(("name", "options", "parameters"), PUBLISHED)
def test_parameter_counts_are_the_published_ones(name, options, parameters):
    assert count_parameters(create_model(name, device="meta", **options)) == parameters


@pytest.mark.parametrize("name", list_models("*_nano"))
def test_nano_models_are_small_enough_for_a_cpu(name):
    assert 100_000 < count_parameters(create_model(name, device="meta")) < 250_000


@pytest.mark.parametrize("name", list_models())
def test_every_preset_survives_json(name):
    spec = preset_spec(name)
    assert spec_from_dict(spec.to_dict()) == spec
    assert hash(spec_from_dict(spec.to_dict())) == hash(spec)


@pytest.mark.parametrize("name", list_models("*_nano"))
def test_nano_models_take_any_shape_of_image(name):
    model = create_model(name, num_classes=5, img_size=(24, 40), in_chans=1)
    logits = model(torch.randn(2, 1, 24, 40))
    assert logits.shape == (2, 5)
    logits.square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_patch_suits_the_image():
    assert preset_spec("deit_tiny", img_size=32).patch_size == (4, 4)
    assert preset_spec("convit_tiny").patch_size == (16, 16)
    with pytest.raises(ValueError, match="img_size=225"):
        suitable_patch(225)


def test_four_tokens_are_warned_of():
    with pytest.warns(UserWarning, match="only 4 tokens"):
        preset_spec("deit_tiny", img_size=32, patch_size=16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        preset_spec("deit_tiny", img_size=32)


def test_family_options_and_spec_fields_can_be_overridden():
    spec = preset_spec("convit_nano", strength=2.0, gated_blocks=1, drop_path=0.1)
    assert spec.layers[0].options == {"strength": 2.0} and spec.class_token == 1 and spec.drop_path == 0.1
    assert preset_spec("ibit_nano", rank=4, norm="softmax").layers[0].options["rank"] == 4
    assert preset_spec("deit_tiny", depth=3).depth == 3


def test_an_all_gated_convit_pools_by_average():
    spec = preset_spec("convit_nano", gated_blocks=4)
    assert spec.class_token is None and spec.pool == "average"


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'convit_tiny'"):
        create_model("convit_tini")
    with pytest.raises(ValueError, match="did you mean 'strength'"):
        create_model("convit_nano", strenght=1.0)
    with pytest.raises(ValueError, match="patch_size=4"):
        create_model("resnet_nano", patch_size=4)


def test_a_patch_that_does_not_divide_the_image_is_refused_with_the_nearest_size():
    with pytest.raises(ValueError, match="33 is not a multiple of 4; nearest that works: 32"):
        create_model("deit_nano", img_size=(33, 32), patch_size=4)


def test_window_size_follows_the_grid():
    assert preset_spec("window_tiny").layers[0].options["window"] == 7
    assert preset_spec("window_tiny", img_size=32).layers[1].options == {"window": 4, "mode": "shifted"}


def test_a_sliding_window_is_odd_by_default_and_never_changed_where_it_is_given():
    assert preset_spec("window_nano", mode="sliding").layers[0].options["window"] == 3
    assert preset_spec("window_nano", mode="sliding", window=5).layers[0].options["window"] == 5
    for wrong, message in (
        ({"mode": "sliding", "window": 4}, "must be odd, but window=4"),
        ({"window": 0}, "window .* but is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            create_model("window_nano", **wrong)


def test_a_small_image_gets_the_small_stem():
    assert preset_spec("resnet50", img_size=32).stem == "small"
    assert preset_spec("resnet50").stem == "large"


def test_multiply_accumulates_are_counted():
    grid, width, hidden, classes = 64, 64, 256, 10
    tokens = grid + 1
    block = tokens * (4 * width * width + 2 * width * hidden) + 2 * tokens * tokens * width
    expected = grid * 48 * width + 4 * block + width * classes
    model = create_model("deit_nano", device="meta", dropout=0.1)
    for training in (True, False):
        assert count_macs(model.train(training), 3, 32, 32) == expected and model.training is training


def test_presets_are_exported_by_name():
    assert set(softbias.list_models()) == set(PRESETS)


@pytest.mark.parametrize("name", list_models())
def test_the_table_of_costs_is_what_counting_gives(name):
    model = create_model(name, device="meta")
    assert (count_parameters(model), count_macs(model, 3, *model.spec.img_size)) == COSTS[name]


def test_the_table_of_costs_names_all_presets():
    assert sorted(COSTS) == list_models()


@pytest.fixture
def presets_as_they_were():
    before = dict(PRESETS)
    yield
    PRESETS.clear()
    PRESETS.update(before)


def mine(*, width: int, blocks: int = 1, **image) -> ModelSpec:
    return ModelSpec(width=width, heads=2, layers=(softbias.Layer("gated", {"centers": "rectangular"}),) * blocks,
                     class_token=None, pool="average", **image)  # fmt: skip


@pytest.mark.usefixtures("presets_as_they_were")
def test_a_preset_from_outside_is_built_listed_saved_and_loaded_by_its_name(tmp_path):
    register_preset("mine", Preset(mine, {"width": 16}, img_size=32, num_classes=3))
    assert list_models("min*") == ["mine"]
    model = create_model("mine", blocks=2, drop_path=0.1).eval()
    assert model.spec.describe_layers() == "2 × gated" and model.spec.drop_path == 0.1
    softbias.save(model, tmp_path)
    back = softbias.load(tmp_path)
    x = torch.randn(1, 3, 32, 32)
    assert back.name == "mine" and torch.equal(back(x), model(x))
    assert back.pretrained_cfg["architecture"] == "softbias_vit", "timm's registry knows built-in presets alone"


@pytest.mark.usefixtures("presets_as_they_were")
def test_a_taken_name_and_something_that_is_no_preset_are_refused():
    with pytest.raises(SoftbiasError, match="deit_nano"):
        register_preset("deit_nano", Preset(mine, {"width": 16}))
    with pytest.raises(SoftbiasError, match="Preset"):
        register_preset("mine", mine)
