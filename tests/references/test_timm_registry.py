"""Our models as timm's own: the registry, and timm's own tests."""

import os
import re
import subprocess
import sys

import pytest
import timm
import torch

import softbias


@pytest.mark.parametrize(
    "first",
    [
        "import softbias, timm",
        "import timm, softbias",
        pytest.param("from softbias.models import build; import timm", marks=pytest.mark.slow),
    ],
)
def test_models_are_registered_whichever_library_comes_first(first):
    code = f"{first}; m = timm.create_model('softbias_convit_nano', num_classes=3); print(m.name, m.num_classes)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.stdout.split() == ["convit_nano", "3"], run.stderr


def test_importing_softbias_imports_neither_torch_nor_timm():
    code = "import sys, softbias; print('torch' in sys.modules, 'timm' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout.split() == ["False", "False"], run.stderr


def test_every_preset_is_in_the_registry():
    registered = timm.list_models("softbias_*")
    assert {name.removeprefix("softbias_") for name in registered} == {*softbias.list_models(), "vit"}


def test_timms_names_for_options_are_understood():
    model = timm.create_model("softbias_deit_nano", drop_path_rate=0.1, img_size=64, global_pool="avg", num_classes=0)
    assert model.spec.drop_path == 0.1 and model.spec.pool == "average"
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 64)
    assert model.default_cfg["input_size"] == (3, 64, 64)


def test_device_and_dtype_are_obeyed():
    model = timm.create_model("softbias_ibit_nano", device="meta", dtype=torch.float64)
    assert {(parameter.device.type, parameter.dtype) for parameter in model.parameters()} == {("meta", torch.float64)}


def test_timms_optimizer_factory_spares_embeddings_and_gates():
    from timm.optim import param_groups_weight_decay

    model = softbias.create_model("convit_nano")
    kept, decayed = param_groups_weight_decay(model, 0.05, no_weight_decay_list=model.no_weight_decay())
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    spared = {names[id(parameter)] for parameter in kept["params"]}
    assert {"pos_embed", "cls_token", "blocks.0.attn.gate"} <= spared
    assert "blocks.0.attn.position.weight" in {names[id(parameter)] for parameter in decayed["params"]}


@pytest.mark.parametrize("patch_size", [2, 4, 8])
@pytest.mark.parametrize("stem", ["patch", "conv", "strided", "residual", "shifted"])
def test_first_conv_names_the_layer_that_takes_the_image(stem, patch_size):
    model = softbias.create_model("deit_nano", stem=stem, patch_size=patch_size)
    layers = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Conv2d | torch.nn.Linear)]
    assert model.default_cfg["first_conv"] == layers[0]


@pytest.mark.parametrize("name", ["soft_nano", "soft_tiny", "resnet_nano", "dwnet_nano"])
def test_first_conv_names_the_layer_that_takes_the_image_of_other_models(name):
    model = softbias.create_model(name)
    layers = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Conv2d)]
    assert model.default_cfg["first_conv"] == layers[0]


@pytest.mark.slow
def test_timms_own_tests_pass_for_our_models(tmp_path):
    """timm's tests are in its source distribution; the same release is fetched from the package index."""
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "timm"]
    got = subprocess.run([*fetch, f"timm=={timm.__version__}", "-d", tmp_path], capture_output=True, text=True)
    archives = list(tmp_path.glob("timm-*.tar.gz"))
    if not archives:
        pytest.skip(f"timm's source distribution cannot be had here: {got.stderr.strip()[-200:]}")
    subprocess.run(["tar", "xzf", archives[0], "-C", tmp_path], check=True)
    source = next(tmp_path.glob("timm-*/tests/test_models.py")).read_text()
    marked = source.replace("NON_STD_FILTERS = [", "import softbias  # noqa\nNON_STD_FILTERS = ['softbias_*', ", 1)
    assert marked != source
    (tmp_path / "test_models_of_timm.py").write_text(marked)
    names = ("test_model_forward", "test_model_backward", "test_model_default_cfgs_non_std")
    chosen = [f"test_models_of_timm.py::{name}" for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "softbias", *chosen]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
    last = run.stdout.strip().splitlines()[-1]
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|skipped|failed)", last)}
    assert run.returncode == 0, run.stdout[-3000:]
    assert counts["passed"] + counts.get("skipped", 0) == 3 * len(timm.list_models("softbias_*"))
    assert counts.get("skipped", 0) <= 6  # ARViT's 256 px are beyond the size that some of timm's tests take
