"""One optimizer step: parts of a batch, and gradients that loss scaling could not use."""

import json

import pytest
import torch

from softbias.data.dataset import Dataset
from softbias.models import create_model
from softbias.runs import fit as fitting
from softbias.training.acceleration import make_accelerator
from softbias.training.batches import Batches, SplitImages
from softbias.training.plan import LoopSettings
from softbias.training.recipe import Recipe
from softbias.training.step import PlainStep


def gradients(data: Dataset, accumulate: int) -> tuple[list[float], list[torch.Tensor]]:
    """What a step sees, and the gradients that it leaves, of all training pictures in this number of parts."""
    torch.manual_seed(0)
    recipe = Recipe(batch_size=64, accumulate=accumulate)
    accelerator = make_accelerator(recipe, "cpu")
    model = create_model("deit_nano", 3, 32, patch_size=8)
    batches = Batches(SplitImages(data, data.splits["train"], torch.device("cpu")), recipe, 0, 3, (0.5,) * 3, (0.25,) * 3)
    step = PlainStep(accelerator, model, torch.optim.SGD(model.parameters()), batches, None)
    index, view = batches.at(0, batches.epoch(0))
    seen = step.gradients(batches.load(index, view, 0))
    return [each.item() for each in seen], [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize(("n_images", "accumulate"), [(32, 4), (15, 4), (15, 8), (3, 64)])
def test_parts_of_a_batch_make_the_gradient_of_the_whole_also_where_they_are_unequal_or_fewer(little, n_images, accumulate):
    data = little(n_images)
    seen, found = gradients(data, accumulate)
    whole, wanted = gradients(data, 1)
    assert seen == pytest.approx(whole, abs=1e-5)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_loss_scaling_may_skip_steps_until_it_has_found_its_scale(train, little, monkeypatch):
    made = []

    def half(recipe, device):
        """accelerate scales losses on a GPU alone; here its parts are put together on a CPU."""
        accelerator = make_accelerator(recipe, device)
        accelerator.state._mixed_precision, accelerator.native_amp = "fp16", True
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
        return made.append(accelerator) or accelerator

    monkeypatch.setattr(fitting, "make_accelerator", half)
    result = train(data=little(240, 7), settings=LoopSettings(look_every=1))
    (row,) = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    assert row["skipped"] > 0 and 0 < row["loss"] < 3
    assert made[0].scaler.get_scale() == 2.0 ** (20 - row["skipped"])
