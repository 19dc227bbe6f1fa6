"""Models of timm and of Hugging Face: options that they do not have, heads, and training."""

import json

import pytest
import torch
from timm.layers import resample_abs_pos_embed

from softbias import create_model, load, load_weights, save
from softbias.runs.fit import fit


@pytest.fixture
def vit(tmp_path):
    """The folder of a small ViT of Hugging Face's, with weights."""
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.ViTConfig(**shape, image_size=32, patch_size=8, num_labels=3)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    return tmp_path / "vit"


def test_a_model_that_timm_does_not_have_is_refused_with_a_few_that_it_has():
    with pytest.raises(
        ValueError, match="timm has no model 'deit_tiny_patch16_225'; did you mean timm:deit_tiny_patch16_224"
    ) as e:
        create_model("timm:deit_tiny_patch16_225")
    assert len(str(e.value)) < 300  # and not with all of its 1,300


def test_an_option_that_a_model_of_timm_s_does_not_have_is_refused_by_name():
    with pytest.raises(ValueError, match=r"timm:vit_tiny_patch16_224 has no option strength, but strength=2\.0"):
        create_model("timm:vit_tiny_patch16_224", img_size=32, patch_size=8, strength=2.0)
    with pytest.raises(ValueError, match=r"no option drop_path_rate, but drop_path_rate=0\.1; --drop-path 0"):
        create_model("timm:vgg11", drop_path_rate=0.1)


def test_networks_of_timm_s_without_image_size_and_paths_take_any_size_and_drop_none():
    model = create_model("timm:densenet121", 3, 64, drop_path_rate=0.0)
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"img_size": 64}, "image_size=32, but 64 was asked for"),
        ({"img_size": (32, 64)}, r"image_size=32, but \(32, 64\) was asked for"),
        ({"in_chans": 1}, "num_channels=3, but 1 was asked for"),
        ({"patch_size": 4}, "no option of hf:.*'patch_size'; the choices are img_size, in_chans, num_classes"),
    ],
    ids=str,
)
def test_a_hugging_face_model_is_for_images_of_its_own_size(vit, options, message):
    with pytest.raises(ValueError, match=message):
        create_model(f"hf:{vit}", **options)
    assert create_model(f"hf:{vit}", img_size=(32, 32))(torch.zeros(1, 3, 32, 32)).shape == (1, 3)


def test_a_hugging_face_model_gets_another_head(vit):
    model = create_model(f"hf:{vit}").eval()
    model.reset_classifier(5)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 5) and model.num_classes == 5
    assert model.get_classifier().out_features == model.config.num_labels == 5


def test_a_saved_hugging_face_model_knows_how_its_images_are_normalized(vit, tmp_path):
    save(create_model(f"hf:{vit}"), tmp_path / "saved", preprocessing={"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)})
    processor = pytest.importorskip("transformers").AutoImageProcessor.from_pretrained(tmp_path / "saved")
    assert list(processor.image_mean) == [0.1, 0.2, 0.3] and list(processor.image_std) == [0.4, 0.5, 0.6]
    assert processor.size["height"] == processor.size["width"] == 32


@pytest.mark.parametrize("how", [None, "linear"])
def test_a_hugging_face_model_is_trained_whole_or_at_its_head_alone(vit, tmp_path, how):
    before = create_model(f"hf:{vit}", num_classes=10).state_dict()
    result = fit("fashion", f"hf:{vit}", "quick", out=tmp_path / "run", train_fraction=0.04, epochs=1, page=False, finetune=how,
                 device="cpu",
                 data_options={"img_size": 32})  # fmt: skip
    after = load(result.path / "model").state_dict()
    same = [torch.equal(tensor, after[name]) for name, tensor in before.items() if "classifier" not in name]
    assert all(same) if how else not any(same)
    rows = json.loads((result.path / "summary.json").read_text()).get("probes") or []
    assert [row["backbone"] for row in rows] == (["pre-trained", "raw pixels"] if how else [])


def test_weights_that_do_not_fit_a_model_of_timm_s_are_listed(tmp_path):
    from safetensors.torch import save_file

    from softbias.runs.named_starts import weights_start
    from softbias.runs.prepare import build_model
    from softbias.runs.spec import RunSpec
    from softbias.training.recipe import Recipe

    options = {"depth": 1, "patch_size": 8}
    small = create_model("timm:vit_tiny_patch16_224", 5, 32, **options)
    save_file(small.state_dict(), tmp_path / "w.safetensors")
    start = weights_start(tmp_path / "w.safetensors", "timm:vit_tiny_patch16_224", options).start
    spec = RunSpec("x", "timm:vit_tiny_patch16_224", Recipe(), model_options=options, start=start)
    model = build_model(spec, 3, (32, 32))
    assert torch.equal(model.blocks[0].attn.qkv.weight, small.blocks[0].attn.qkv.weight) and model.num_classes == 3
    other = RunSpec("x", spec.model, Recipe(), model_options={"depth": 2, "patch_size": 8}, start=start)
    with pytest.raises(ValueError, match=r"the weights do not fit: blocks\.1\.\S+ is missing"):
        build_model(other, 3, (32, 32))


def test_a_model_of_timm_s_is_trained_and_comes_back(tmp_path):
    options = {"patch_size": 8, "depth": 2}
    result = fit(
        "fashion",
        "timm:vit_tiny_patch16_224",
        out=tmp_path / "run",
        train_fraction=0.04,
        epochs=1,
        device="cpu",
        page=False,
        model_options=options,
    )
    back = load(result.path / "model").state_dict()
    assert result.summary["test"]["n"] > 0 and all(torch.equal(t, back[name]) for name, t in result.model.state_dict().items())


@pytest.mark.parametrize("options", [{}, {"no_embed_class": True, "reg_tokens": 2}])
def test_positions_of_timm_s_models_follow_the_grid(options):
    small = {"depth": 1, "embed_dim": 12, "num_heads": 3, "patch_size": 8, **options}
    large = create_model("timm:vit_tiny_patch16_224", 5, 64, **small)
    fitted = load_weights(create_model("timm:vit_tiny_patch16_224", 3, 40, **small), large.state_dict(), keep_head=True)
    expected = resample_abs_pos_embed(large.pos_embed, [5, 5], num_prefix_tokens=0 if options else 1)
    torch.testing.assert_close(fitted.pos_embed, expected)
