"""The automatic choices for a user who names nothing but the data."""

import numpy as np
import pytest
from PIL import Image

from softbias.models import create_model
from softbias.pages.wording import text
from softbias.runs import automatic
from softbias.runs.automatic import CPU_SECONDS, choose, coarse_patch, image_size, soft_patch
from softbias.runs.partial import PartialRunSpec
from softbias.runs.resolve import resolve

COUNTS = (30, 300, 5_000, 50_000, 300_000)


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("cores", [1, 2, 16])
@pytest.mark.parametrize("side", [28, 32, 64, 96, 128, 224])
def test_on_a_cpu_it_takes_minutes_for_any_number_of_images(n, cores, side):
    choice = choose(n, (side, side), "cpu", cores)
    assert choice.model == "soft_nano" and choice.recipe_name == "quick"
    tokens = (side // choice.model_options["patch_size"]) ** 2
    assert 16 <= tokens <= 64
    one_epoch = n / choice.images_per_second
    assert choice.seconds(n) <= max(1.1 * CPU_SECONDS, one_epoch)
    assert choice.recipe.epochs >= 1


def test_on_a_cpu_images_are_mixed_where_they_are_seen_often():
    often, seldom = choose(5000, (32, 32), "cpu", 2), choose(50_000, (32, 32), "cpu", 2)
    assert often.recipe.augmentation.mixes and often.recipe.epochs >= 15
    assert often.strength.kind == "strength-chosen" and f"{often.recipe.epochs:g} times" in text(often.strength)
    assert not seldom.recipe.augmentation.mixes and seldom.recipe.epochs < 15 and seldom.strength is None
    for named in ({"epochs": 3}, {"steps": 100}):
        assert not choose(5000, (32, 32), "cpu", 2, named=named).recipe.augmentation.mixes
    assert choose(50_000, (32, 32), "cpu", 2, named={"epochs": 100}).recipe.augmentation.mixes


@pytest.mark.parametrize("minutes", [0.5, 1, 10])
def test_on_a_cpu_the_epochs_fill_the_time_that_a_user_gives(minutes):
    choice = choose(5000, (32, 32), "cpu", 2, minutes=minutes)
    assert 1.2 * 60 * minutes < choice.seconds(5000) < 2 * 60 * minutes  # time ends it, also where the speed is underestimated
    seen = 60 * minutes * choice.images_per_second / 5000
    assert choice.recipe.augmentation.mixes == (seen >= 15)


@pytest.mark.parametrize("n", COUNTS)
def test_on_a_gpu_few_images_are_seen_more_often(n):
    choice = choose(n, (32, 32), "cuda", 8)
    assert choice.model == ("soft_tiny" if n < 100_000 else "soft_small") and choice.recipe_name == "soft"
    assert 30 <= choice.recipe.epochs <= 1000 and choice.recipe.batch_size <= 512
    steps = choice.recipe.epochs * n / min(n, choice.recipe.batch_size)
    assert steps >= 1000
    fewer = choose(n // 2, (32, 32), "cuda", 8)
    assert fewer.recipe.epochs >= choice.recipe.epochs and fewer.recipe.lr <= choice.recipe.lr


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_larger_images_get_the_larger_model_unless_the_gpu_is_a_laptops(device):
    models = {side: choose(3000, (side, side), device, 8).model for side in (28, 32, 64, 96, 128, 224)}
    large = "soft_tiny" if device == "mps" else "soft_small"
    assert models == {28: "soft_tiny", 32: "soft_tiny", 64: "soft_tiny", 96: large, 128: large, 224: large}


@pytest.mark.parametrize("side", [32, 64, 96, 128, 224])
def test_a_batch_fits_into_the_memory_of_an_ordinary_gpu(side):
    choice = choose(60_000, (side, side), "cuda", 8)
    patches = automatic.count_patches(choice.model, (side, side))
    assert choice.recipe.batch_size == (512 if side <= 64 else 256) and choice.recipe.batch_size * patches <= 65_536
    assert choice.recipe.peak_lr() == pytest.approx(4e-3 * (choice.recipe.batch_size / 512) ** 0.5, abs=1e-6)


def test_on_a_gpu_the_epochs_fill_the_time_that_a_user_gives():
    chosen = choose(9469, (96, 96), "cuda", 8)
    longer, short, blink = (choose(9469, (96, 96), "cuda", 8, minutes=minutes) for minutes in (20, 1, 0.2))
    assert longer.recipe.epochs == 1000 and short.recipe.epochs == pytest.approx(1.5 * chosen.recipe.epochs / 5, abs=1)
    assert [text(each.strength).split(":")[0] for each in (longer, chosen, short, blink)] == [
        "augmentation strong", "augmentation strong", "augmentation medium", "augmentation mild",
    ]  # fmt: skip
    named = choose(9469, (96, 96), "cuda", 8, minutes=1, named={"epochs": 150})  # the user knows how fast the GPU is
    assert named.recipe.augmentation == chosen.recipe.augmentation


def test_imagenette_is_seen_about_two_and_a_half_million_times():
    choice = choose(9469, (96, 96), "cuda", 8)
    assert choice.model == "soft_small" and 2.0e6 < choice.recipe.epochs * 9469 < 2.2e6
    finer = choose(9469, (128, 128), "cuda", 8)  # 256 patches instead of 144
    assert finer.recipe.epochs == pytest.approx(choice.recipe.epochs * 144 / 256, abs=1)


@pytest.mark.parametrize("size", [(32, 32), (28, 28), (60, 80), (97, 97), (33, 64), (134, 134), (224, 224)])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("objective", ["supervised", "rotation"])
def test_what_is_chosen_can_be_built(size, device, objective):
    choice = choose(1000, size, device, 2, objective=objective)
    create_model(choice.model, num_classes=3, img_size=size, device="meta", **choice.model_options)
    about_model, about_recipe = choice.reasons
    assert about_model.kind == "model-chosen" and about_model.values["model"] == choice.model
    assert about_recipe.kind == "recipe-chosen" and about_recipe.values["recipe"] == choice.recipe_name
    assert choice.model in text(about_model) and choice.recipe_name in text(about_recipe)


def test_patches_that_leave_too_few_tokens_are_not_chosen():
    assert soft_patch((60, 80)) == 10 and soft_patch((13, 13)) is None and soft_patch((32, 64)) == 8
    assert coarse_patch((32, 64)) == 8 and coarse_patch((30, 30)) == 6 and coarse_patch((13, 13)) is None


def test_images_are_made_smaller_for_a_model_from_scratch_on_a_cpu_only():
    size, why = image_size((128, 128), 500, "cpu", pretext=False)
    assert size == 64 and why.values == {"img_size": 64, "images": 500, "side": 128, "why": "learning"}
    assert "learns more than at 128 pixels" in text(why)
    assert image_size((128, 128), 500, "cuda", pretext=False) is None
    assert image_size((64, 64), 500, "cpu", pretext=False) is None
    assert image_size((128, 96), 500, "cpu", pretext=False) is None  # a square would cut or squeeze it


def test_for_a_pretext_task_only_large_sets_are_made_smaller():
    assert image_size((128, 128), 500, "cpu", pretext=True) is None
    size, why = image_size((128, 128), 20_000, "cpu", pretext=True)
    assert size == 64 and "20,000 pictures of 128 pixels would take too long" in text(why)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Files whose side the reader chooses as 128, and the same pictures as arrays."""
    root = tmp_path_factory.mktemp("photographs")
    numbers = np.random.default_rng(0)
    for name in ("a", "b"):
        (root / "files" / name).mkdir(parents=True)
        for number in range(8):
            image = numbers.integers(0, 255, (140, 150, 3), dtype=np.uint8)
            Image.fromarray(image).save(root / "files" / name / f"{number}.png")
    np.savez(root / "arrays.npz", images=numbers.integers(0, 255, (16, 96, 96, 3), dtype=np.uint8), labels=np.arange(16) % 2)
    return root


@pytest.mark.parametrize("kind", ["files", "arrays.npz"])
@pytest.mark.parametrize("named", [{}, {"model": "soft_nano"}, {"overrides": {"objective": "views"}}])
def test_files_and_arrays_are_read_at_the_chosen_size(photographs, kind, named):
    found = resolve(PartialRunSpec(data=str(photographs / kind), start="scratch", **named).completed(), "cpu")
    assert found.data.img_size == (64, 64) and found.spec.data_options["img_size"] == 64
    assert [note.kind for note in found.notes].count("img-size-chosen") == 1


@pytest.mark.parametrize(
    "options",
    [
        {"data_options": {"img_size": 96}},
        {"model": "convit_nano"},
        {"model": "soft_nano", "model_options": {"patch_size": 16}},
        {"overrides": {"objective": "rotation"}},
    ],
)
def test_the_size_stays_where_the_user_names_it_a_patch_or_another_model(photographs, options):
    found = resolve(PartialRunSpec(data=str(photographs / "arrays.npz"), start="scratch", **options).completed(), "cpu")
    assert found.data.img_size == (96, 96) and "img-size-chosen" not in [note.kind for note in found.notes]
