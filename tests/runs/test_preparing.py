"""What a run needs before its first step: splits, class weights, and what it computes with."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from softbias.data.dataset import Dataset
from softbias.environment import find_device
from softbias.errors import SoftbiasError
from softbias.pages.wording import text
from softbias.runs.prepare import make_split
from softbias.runs.spec import RunSpec
from softbias.training.acceleration import make_accelerator, mixed_precision
from softbias.training.recipe import Recipe


def test_a_note_says_that_the_loss_makes_up_for_uneven_classes(little):
    data = little(300)
    many = np.flatnonzero(data.labels != 0)
    uneven = data.with_splits({"train": np.concatenate([np.flatnonzero(data.labels == 0)[:2], many])})
    found = {}
    for weights in ("auto", "none"):
        notes = make_split(uneven, RunSpec("little", "deit_nano", Recipe(val_fraction=0.0, class_weights=weights))).notes
        found[weights] = [note.values for note in notes if note.kind == "classes-uneven"]
    assert found == {"auto": [{"largest": int(np.bincount(data.labels)[1:].max()), "smallest": 2}], "none": []}
    pretext = Recipe(objective="rotation", val_fraction=0.0)
    assert not make_split(uneven, RunSpec("little", "deit_nano", pretext)).notes


def test_the_test_split_takes_part_in_no_choice(little):
    data = little(300)
    split = make_split(data, RunSpec("little", "deit_nano", Recipe(val_fraction=0.2), train_fraction=0.5))
    assert not set(split.test) & (set(split.train) | set(split.val)) and set(split.test) == set(data.splits["test"])
    smaller = make_split(data, RunSpec("little", "deit_nano", Recipe(val_fraction=0.0), train_fraction=0.25))
    larger = make_split(data, RunSpec("little", "deit_nano", Recipe(val_fraction=0.0), train_fraction=0.5))
    assert set(smaller.train) < set(larger.train)


def test_a_number_of_each_class_is_exact_nested_and_drawn_by_the_seed(little):
    data = little(300)

    def train(number: int, seed: int = 0) -> list[int]:
        split = make_split(data, RunSpec("little", "deit_nano", Recipe(val_fraction=0.0), seed=seed, per_class=number))
        assert split.notes[0].values["per_class"] == number and set(split.train) <= set(data.splits["train"])
        return split.train.tolist()

    for number in (1, 5, 20):
        assert np.bincount(data.labels[train(number)]).tolist() == [number] * 3
    assert set(train(5)) < set(train(20)) and train(5) == train(5) != train(5, seed=1)
    there = np.bincount(data.labels[data.splits["train"]])
    assert np.bincount(data.labels[train(1000)]).tolist() == there.tolist()  # all there are


def test_classes_with_fewer_images_than_asked_for_are_counted(little):
    data = little(60)
    labels = data.labels.copy()
    labels[data.splits["train"]] = [1, 2] + [0] * (len(data.splits["train"]) - 2)
    uneven = Dataset("u", data.images, labels, data.class_names, data.splits)
    split = make_split(uneven, RunSpec("u", "deit_nano", Recipe(val_fraction=0.0), per_class=10))
    assert split.notes[0].values["fewer"] == 2 and "2 classes have fewer" in text(split.notes[0])


def test_a_share_and_a_number_of_each_class_exclude_each_other():
    with pytest.raises(SoftbiasError, match="not both"):
        RunSpec("fashion", "deit_nano", Recipe(), train_fraction=0.5, per_class=5)


@pytest.mark.parametrize("name", ["gpu", "tpu", "", "cud:0"])
def test_an_unknown_device_is_refused_with_the_choices(name):
    with pytest.raises(ValueError, match=f"no device '{name}'.* auto, cpu, cuda, mps"):
        find_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(name):
    with pytest.raises(ValueError, match=f"{name}: there is no such device here; choose .*cpu"):
        find_device(name)


def test_one_process_trains_in_one_precision_after_the_other():
    for precision, found in (("bf16", "bf16"), ("fp32", "no"), ("auto", "no"), ("bf16", "bf16")):
        accelerator = make_accelerator(Recipe(precision=precision), "cpu")
        assert accelerator.mixed_precision == found
        with accelerator.autocast():
            product = torch.ones(2, 2) @ torch.ones(2, 2)
        assert product.dtype == (torch.bfloat16 if found == "bf16" else torch.float32)


@pytest.mark.parametrize(("capability", "precision"), [(7, "no"), (8, "bf16"), (9, "bf16")])
def test_a_card_that_only_emulates_bfloat16_trains_in_float32(monkeypatch, capability, precision):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=capability))
    monkeypatch.setattr(torch.cuda, "_check_bf16_tensor_supported", lambda device: True)
    assert mixed_precision(Recipe(), "cuda") == precision
    assert mixed_precision(Recipe(precision="fp16"), "cuda") == "fp16" and mixed_precision(Recipe(), "mps") == "no"
