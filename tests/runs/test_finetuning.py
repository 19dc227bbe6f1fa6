"""Fine-tuning of pretrained weights: the choices for it, and a run that is stopped at any moment."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from softbias.data.dataset import Dataset
from softbias.data.sources import open_source
from softbias.errors import SoftbiasError
from softbias.kernels import torch_api
from softbias.models import create_model
from softbias.pages.wording import text
from softbias.runs import finetuning
from softbias.runs.finetuning import Shape, cost_note, recipe_for, shape_of, side_for, train_side, whole_side
from softbias.runs.fit import fit
from softbias.runs.page import facts
from softbias.runs.partial import PartialRunSpec
from softbias.runs.resolve import resolve
from softbias.runs.run import Run
from softbias.runs.spec import RunSpec
from softbias.training import checkpoint
from softbias.training.display import Display
from softbias.training.loop import StoppedError
from softbias.training.plan import LoopSettings
from softbias.training.recipe import Recipe, find_recipe

OPTIONS = {"epochs": 3, "batch_size": 8, "frozen_blocks": 1, "layer_decay": 0.8, "head_start": "logistic", "drop_path": 0.1}


@pytest.mark.parametrize("has_bf16", [True, False])
def test_on_a_cpu_a_third_of_the_blocks_is_frozen_and_bf16_taken_where_there_are_instructions(monkeypatch, has_bf16):
    monkeypatch.setattr(torch_api, "cpu_has_bf16", lambda: has_bf16)
    recipe = recipe_for("deit_tiny", "cpu", 2000)
    assert recipe.frozen_blocks == 4 and recipe.precision == ("bf16" if has_bf16 else "fp32")
    assert recipe.layer_decay == 1 and recipe.augmentation.mix_probability == 0.5


def test_on_a_gpu_all_blocks_learn_from_images_that_are_changed_more():
    recipe = recipe_for("deit_tiny", "cuda", 2640)
    assert recipe.frozen_blocks == 0 and recipe.layer_decay < 1 and recipe.ema and recipe.augmentation.mixes
    assert recipe.augmentation.randaugment and recipe.augmentation.erasing
    assert recipe.precision == "auto" and recipe.epochs == 228
    assert recipe_for("deit_tiny", "cuda", 50_000).epochs == 30 and recipe_for("deit_tiny", "cuda", 1020).epochs == 300


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_few_images_are_seen_in_as_many_steps_as_learning_takes(device):
    one_batch, some = recipe_for("deit_tiny", device, 100), recipe_for("deit_tiny", device, 500)
    assert one_batch.epochs == 300 and some.epochs * (500 // some.batch_size) >= 300  # 100 images are one batch an epoch


def test_a_model_without_blocks_is_trained_as_a_whole():
    assert shape_of("deit_tiny") == Shape(12, 192, 16) and shape_of("resnet_nano") == shape_of("nothing") == Shape()
    assert recipe_for("resnet_nano", "cpu", 100).frozen_blocks == 0
    assert recipe_for("resnet_nano", "cuda", 100).layer_decay == 1
    assert recipe_for("timm:mobilenetv3_small_100", "cpu", 100).drop_path == 0, "it has no stochastic depth"


def test_the_capability_of_the_cpu_is_a_fact_that_torch_knows():
    assert isinstance(torch_api.cpu_has_bf16(), bool)


def test_only_a_model_of_side_224_gets_another_size():
    assert side_for("deit_tiny", 224, "cpu", 500) == 192 and side_for("deit_tiny", 224, "cpu", 32) == 112
    assert side_for("deit_tiny", 224, "cuda", 32) == side_for("deit_tiny", 224, "cuda", None) == 256
    assert side_for("timm:vit_small_patch14_dinov2", 224, "cpu", None) == 168 and side_for("deit_tiny", 96, "cpu", 500) == 96
    assert side_for("resnet50", 224, "cpu", None) == side_for("hf:folder", 224, "cpu", None) == 224


def test_training_has_smaller_images_than_use_where_a_model_can_be_resized():
    assert train_side("deit_tiny", (192, 192)) == 160 and train_side("deit_nano", (32, 32), patch=8) is None
    assert train_side("resnet50", (224, 224)) is train_side("timm:vit_tiny_patch16_224", (224, 224)) is None
    assert train_side("deit_tiny", (192, 224)) is None


@pytest.mark.filterwarnings("ignore::softbias.errors.FewTokensWarning")
def test_a_model_trained_at_a_smaller_size_is_used_saved_and_scored_at_its_own(image_folder, tmp_path):
    seen = []

    class Looking(Display):
        def epoch(self, row):
            seen.append(row.get("val_accuracy"))

    more = {
        "train_size": 24,
        "val_fraction": 0.3,
        "head_start": "logistic",
        "regularize": ("distance:layer=2,weight=0.1",),
    }
    result = tuned(image_folder, tmp_path / "run", **more, probe_every=1, display=Looking())
    assert "24 × 24 in training" in dict(facts(result.summary, {}))["Pictures"]
    assert result.model.spec.img_size == (32, 32) and result.summary["img_size"] == [32, 32] and seen[-1] is not None
    run = Run(tmp_path / "run")
    assert run.classifier().img_size == (32, 32)
    last = run.checkpoints[-1]
    assert checkpoint.part("model", checkpoint.read(last.path)[0])["pos_embed"].shape[1] == 1 + 9  # as it is trained
    assert same_weights(run.classifier(last).model, result.model)
    stopped = tmp_path / "stopped"
    with pytest.raises(StoppedError):
        tuned(image_folder, stopped, **more, display=Stopping())
    assert Run(stopped).classifier().model.spec.img_size == (32, 32)
    tuned(image_folder, stopped, **more, resume=True)
    assert weights(stopped) == weights(tmp_path / "run")


def test_a_size_of_training_needs_resized_crops_and_a_model_of_ours(image_folder, tmp_path):
    with pytest.raises(SoftbiasError, match="crop='resized'"):
        Recipe(train_size=24)
    assert find_recipe("finetune").with_overrides({"train_size": 24}).with_overrides({"crop": "none"}).train_size is None
    with pytest.raises(SoftbiasError, match="classifiers of ours"):
        fit(
            image_folder, "timm:vit_tiny_patch16_224", "finetune", start="scratch", train_size=24, steps=1, out=tmp_path / "x",
            data_options={"img_size": 32}, model_options={"patch_size": 4}, page=False, trackers=(),
        )  # fmt: skip


def test_whole_images_are_kept_where_they_fit(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "0.png")
    source = open_source(tmp_path)
    assert whole_side(160, source, None) == 224 and whole_side(160, source, "pad") is None
    assert whole_side(160, open_source("fashion"), None) is None
    monkeypatch.setattr(finetuning, "WHOLE_BYTES", 2 * 3 * 224 * 224 - 1)
    assert whole_side(160, source, "crop") is None


def test_the_cost_is_one_line():
    images, labels = np.broadcast_to(np.uint8(0), (9, 160, 160, 3)), np.arange(9) % 3
    data = Dataset("x", images, labels, ("a", "b", "c"), {"train": np.arange(9)})
    spec = RunSpec("x", "deit_tiny", recipe_for("deit_tiny", "cpu", 2000))
    note = cost_note(spec, 2000, data, 5.5)
    assert note.values["trained"] == 8 and 1e9 < note.values["memory"] < 4e9
    assert "\n" not in text(note) and "5.5 minutes" in text(note)
    assert "minutes" not in text(cost_note(spec, 2000, data, None))


@pytest.fixture
def image_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTBIAS_CACHE", str(tmp_path / "cache"))
    for number, name in enumerate("abc"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for index in range(16):
            color = (80 * number, 5 * index, 100)
            Image.new("RGB", (60, 40), color).save(tmp_path / "set" / name / f"{index}.png")
    torch.manual_seed(1)
    save_file(create_model("deit_nano", num_classes=7, img_size=32, patch_size=8).state_dict(), tmp_path / "w.safetensors")
    return tmp_path / "set"


def test_what_is_open_is_chosen_for_the_device(image_folder):
    file = image_folder.parent / "deit_tiny_patch16_224.safetensors"
    save_file(create_model("deit_tiny", img_size=224, patch_size=16).state_dict(), file)
    given = {"data": str(image_folder), "model": "deit_tiny", "weights": str(file)}
    for recipe in (None, "finetune"):
        partial = PartialRunSpec(**given, recipe=recipe).completed()
        assert partial.spec() is None  # the size is not known yet
        found = resolve(partial, "cpu")
        assert found.spec.data_options["img_size"] == 112 and found.spec.data_options["crop_from"] == 134  # 60 × 40
        assert found.spec.recipe.train_size == 96
        assert found.spec.recipe.frozen_blocks == 4 and 6 < found.minutes < finetuning.ALL_MINUTES
        assert found.data.whole is not None and found.advice[-1].kind == "finetuning-cost"
    again = resolve(PartialRunSpec(**given).completed(found.spec), "cpu")  # as --resume does
    assert again.spec == found.spec and again.minutes is None
    other = resolve(PartialRunSpec(**given, overrides={"epochs": 3, "crop": "none"}).completed(), "cpu")
    assert other.minutes is None and other.spec.recipe.train_size is None and "crop_from" not in other.spec.data_options
    named = resolve(PartialRunSpec(**given, data_options={"img_size": 64}).completed(), "cpu")
    assert named.data.img_size == (64, 64) and named.spec.data_options["crop_from"] == round(1.4 * 64)


def tuned(folder, out, **more):
    return fit(
        folder, "deit_nano", "finetune", out=out, weights=folder.parent / "w.safetensors", model_options={"patch_size": 8},
        data_options={"img_size": 32, "crop_from": 44}, device="cpu", page=False, baseline=False, trackers=(),
        settings=LoopSettings(checkpoint_seconds=0.0), **{**OPTIONS, **more},
    )  # fmt: skip


def weights(out) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(out / "model/model.safetensors").items()}


def same_weights(one, other) -> bool:
    return all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())


class Stopping(Display):
    """Raises the signal of Ctrl-C after the second epoch."""

    def epoch(self, row):
        if row["epoch"] == 2:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_stopped_fine_tuning_continues_to_the_same_weights(image_folder, tmp_path, precision):

    whole = tuned(image_folder, tmp_path / "whole", precision=precision)
    with pytest.raises(StoppedError):
        tuned(image_folder, tmp_path / "cut", precision=precision, display=Stopping())
    resumed = tuned(image_folder, tmp_path / "cut", precision=precision, resume=True)
    assert weights(whole.path) == weights(resumed.path)
    assert whole.summary["test"] == resumed.summary["test"]


def test_a_run_with_minutes_has_its_plan_in_a_checkpoint_before_the_first_step(image_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("softbias.training.plan.steps_within", lambda plan, minutes: 2)
    monkeypatch.setattr("softbias.training.loop.Meter", None)  # the first step fails as a kill would
    with pytest.raises(TypeError):
        tuned(image_folder, tmp_path / "run", minutes=1)
    (first,) = checkpoint.listed(tmp_path / "run" / "checkpoints")
    about = checkpoint.read(first, checkpoint.TrainingMeta)[1]
    assert about["step"] == 0 and about["total_steps"] == 2 and about["minutes"] == 1
    monkeypatch.undo()
    monkeypatch.setenv("SOFTBIAS_CACHE", str(tmp_path / "cache"))
    steps = tuned(image_folder, tmp_path / "run", resume=True).summary["steps"]
    assert steps == 12, "its minute is long enough for all steps of the recipe"


SCRIPT = """
import sys, torch
torch.set_num_threads(1)
from pathlib import Path
from tests.runs.test_finetuning import tuned
tuned(Path(sys.argv[1]), sys.argv[2], resume=True, epochs=30, head_start="logistic")
"""


@pytest.mark.slow
def test_a_killed_fine_tuning_continues_to_the_same_weights(image_folder, tmp_path):
    def start(out):
        return subprocess.Popen([sys.executable, "-c", SCRIPT, str(image_folder), str(out)], env={**os.environ})

    assert start(tmp_path / "whole").wait(timeout=300) == 0
    seen = -1
    for _ in range(3):
        process = start(tmp_path / "cut")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            steps = [int(path.name[5:]) for path in (tmp_path / "cut").glob("checkpoints/step-*") if path.suffix == ""]
            if steps and max(steps) > seen:
                seen = max(steps)
                break
            time.sleep(0.01)
        process.kill()
        process.wait()
    assert seen > 0
    assert start(tmp_path / "cut").wait(timeout=300) == 0
    assert weights(tmp_path / "whole") == weights(tmp_path / "cut")
