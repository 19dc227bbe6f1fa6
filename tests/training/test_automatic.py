"""What is chosen for somebody who names nothing."""

import time

import pytest

from softbias.data.sources import open_source
from softbias.models import create_model
from softbias.runs import automatic
from softbias.runs.automatic import CPU_SECONDS, about_pretrained, choose, coarse_patch, hub_reachable, image_size

COUNTS = (30, 300, 5_000, 50_000, 300_000)


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("cores", [1, 2, 16])
@pytest.mark.parametrize("side", [28, 32, 64, 96, 128, 224])
def test_on_a_cpu_it_takes_minutes_for_any_number_of_pictures(n, cores, side):
    choice = choose(n, (side, side), "cpu", cores)
    assert choice.model.endswith("_nano") and choice.recipe_name == "quick"
    tokens = (side // choice.model_options["patch_size"]) ** 2
    assert 16 <= tokens <= 64
    one_epoch = n / choice.images_per_second
    assert choice.seconds(n) <= max(1.1 * CPU_SECONDS, one_epoch)
    assert choice.recipe.epochs >= 1


@pytest.mark.parametrize("n", COUNTS)
def test_on_a_gpu_few_pictures_are_seen_more_often(n):
    choice = choose(n, (32, 32), "cuda", 8)
    assert choice.model == "convit_tiny" and choice.recipe_name == "small"
    assert 30 <= choice.recipe.epochs <= 1000 and choice.recipe.batch_size <= 512
    steps = choice.recipe.epochs * n / min(n, choice.recipe.batch_size)
    assert steps >= 1000
    fewer = choose(n // 2, (32, 32), "cuda", 8)
    assert fewer.recipe.epochs >= choice.recipe.epochs and fewer.recipe.lr <= choice.recipe.lr


def test_cifar_on_a_gpu_gets_the_recipe_as_it_was_measured():
    from softbias.training.recipe import RECIPES

    recipe = choose(50_000, (32, 32), "cuda", 8).recipe
    assert recipe == RECIPES["small"] or recipe.epochs == 200


@pytest.mark.parametrize("size", [(32, 32), (28, 28), (60, 80), (97, 97), (33, 64), (134, 134), (224, 224)])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("objective", ["supervised", "rotation"])
def test_what_is_chosen_can_be_built(size, device, objective):
    choice = choose(1000, size, device, 2, objective=objective)
    create_model(choice.model, num_classes=3, img_size=size, device="meta", **choice.model_options)
    assert len(choice.reasons) == 2 and choice.model in choice.reasons[0] and choice.recipe_name in choice.reasons[1]


def test_patches_that_leave_too_few_tokens_are_not_chosen():
    assert coarse_patch((32, 64)) == 8 and coarse_patch((30, 30)) == 6 and coarse_patch((13, 13)) is None


def test_large_sets_of_files_are_made_smaller_on_a_cpu_only(tmp_path, monkeypatch):
    from PIL import Image

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("RGB", (150, 140), (number, 0, 0)).save(tmp_path / name / f"{number}.png")
    assert image_size(open_source(tmp_path), "cpu") is None  # 128, which the reader chooses by itself
    monkeypatch.setattr(automatic, "FEW_PICTURES", 5)
    size, why = image_size(open_source(tmp_path), "cpu")
    assert size == 64 and "6 pictures" in why
    assert image_size(open_source(tmp_path), "cuda") is None and image_size(open_source("fashion"), "cpu") is None


def test_a_name_server_that_never_answers_does_not_hold_anybody_up(monkeypatch):
    import urllib.request

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_args, **_options: time.sleep(5))
    started = time.monotonic()
    assert hub_reachable(0.1) is False and time.monotonic() - started < 2
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_args, **_options: object())
    assert hub_reachable(5) is True
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hub_reachable(5) is False


def test_few_pictures_get_one_line_about_pretrained_weights():
    yes, no = about_pretrained(500, True), about_pretrained(500, False)
    assert "--pretrained" in yes and "gain" in yes and "\n" not in yes
    assert "--weights" in no and "gain" in no and "\n" not in no
    assert about_pretrained(20_000, True) is None
