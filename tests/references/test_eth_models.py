"""The comparators of the ETH study: torchvision's ResNet50, and the ViT that Hugging Face's transformers makes by default."""

import pytest
import torch
from torch import nn

from softbias import create_model, load_weights
from softbias.models import build
from softbias.models.cost import count_parameters
from softbias.models.presets import preset_spec
from softbias.study.papers import find_study
from softbias.study.papers.eth import DYNAMIC, RESNET, WINDOWS

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 32,
         "patch_size": 8, "num_labels": 5}  # fmt: skip


def moved_away(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator).to(parameter))
    return model.eval()


def test_resnet50_is_torchvisions_with_its_names_and_its_initial_weights():
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    reference = torchvision.models.resnet50(num_classes=10).double()
    ours = create_model("resnet50", 10, 64, **RESNET).double()
    for name, tensor in reference.state_dict().items():
        if "bn" in name and tensor.is_floating_point():  # norms start with the same numbers, also the last one of a block
            assert torch.equal(ours.state_dict()[name], tensor)
        elif tensor.ndim > 1:
            torch.testing.assert_close(ours.state_dict()[name].std(), tensor.std(), rtol=0.1, atol=0)
    closed = create_model("resnet50", 10, 64, stem="large")
    assert closed.layer1[0].bn3.weight.abs().max() == 0 < ours.layer1[0].bn3.weight.min()
    load_weights(ours, reference.state_dict())
    images = torch.randn(2, 3, 64, 64, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(images), reference.eval()(images), atol=1e-10, rtol=1e-10)


NAMES = {
    "vit.embeddings.cls_token": "cls_token",
    "vit.embeddings.position_embeddings": "pos_embed",
    "vit.embeddings.patch_embeddings.projection": "patch_embed.proj",
    "vit.layernorm": "norm",
    "vit.layers": "blocks",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "attention.o_proj": "attn.proj",
    "classifier": "head",
}


def with_own_names(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    own = {}
    for name, tensor in given.items():
        if ".q_proj." in name:
            parts = [given[name.replace(".q_proj.", f".{part}_proj.")] for part in "qkv"]
            name, tensor = name.replace("attention.q_proj", "attn.qkv"), torch.cat(parts)
        for reference, ours in NAMES.items():
            name = name.replace(reference, ours)
        if ".k_proj." not in name and ".v_proj." not in name:
            own[name] = tensor
    return own


def test_vit_base_is_hugging_faces_default_with_its_initial_weights():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    with torch.device("meta"):
        whole = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=10))
    assert count_parameters(create_model("vit_base", 10, device="meta")) == count_parameters(whole) == 85_806_346
    defaults, spec = transformers.ViTConfig(), preset_spec("vit_base")
    assert (defaults.hidden_size, defaults.num_attention_heads, defaults.num_hidden_layers) == (768, 12, 12)
    assert (spec.width, spec.heads, spec.depth, spec.patch_size, spec.img_size) == (768, 12, 12, (16, 16), (224, 224))
    assert spec.norm_eps == defaults.layer_norm_eps and spec.drop_path == spec.dropout == defaults.hidden_dropout_prob == 0

    reference = transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL)).double()
    ours = create_model("vit_base", 5, 32, patch_size=8, width=32, heads=4, depth=2).double()
    for model, stem in ((reference, reference.vit.embeddings.patch_embeddings.projection), (ours, ours.patch_embed.proj)):
        matrices = [parameter.std() for parameter in model.parameters() if parameter.ndim > 1 and parameter.numel() > 500]
        torch.testing.assert_close(torch.stack(matrices), torch.full((len(matrices),), 0.02).double(), rtol=0.1, atol=0)
        assert stem.bias.abs().max() == 0
    load_weights(ours, with_own_names(moved_away(reference).state_dict()))
    images = torch.randn(3, 3, 32, 32, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = reference(images).logits
        assert expected.abs().max() > 0.1
        torch.testing.assert_close(ours.eval()(images), expected, atol=1e-10, rtol=1e-10)


def test_the_default_initial_weights_leave_the_stem_as_pytorch_starts_it():
    plain = build(preset_spec("deit_nano"))
    assert plain.patch_embed.proj.bias.abs().max() > 0


def test_at_paper_scale_the_studies_train_these_models_on_enlarged_images():
    spec = find_study("eth-cifar10").spec("paper")
    assert {arm.name: arm.model for arm in spec.arms} == {
        "ResNet": "resnet50",
        "ViT": "vit_base",
        DYNAMIC: "dwnet_dynamic_base",
        WINDOWS: "window_small",
    }
    assert dict(spec.arms[0].model_options) == RESNET and spec.data_options["img_size"] == 224
    assert find_study("eth-combined").spec("paper").arms == find_study("eth-background").spec("paper").arms == spec.arms
