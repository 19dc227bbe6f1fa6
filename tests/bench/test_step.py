"""The measured step is the step of the training loop, and a constant batch is constant."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from softbias.bench import step
from softbias.bench.step import random_images, small_recipe, worker

DATA = random_images(40, 32)
RECIPE = small_recipe(8, compile="off", drop_path=0.0)


def test_a_worker_trains_and_averages_like_the_loop():
    from softbias.training.optim import ModelEma

    one = worker("deit_nano", DATA, RECIPE, burst=2, device="cpu", patch_size=8)
    assert isinstance(one.ema, ModelEma)
    before = {name: value.clone() for name, value in one.model.state_dict().items()}
    one()
    assert one.step == 2
    assert all(
        not torch.equal(before[name], value) for name, value in one.model.state_dict().items() if name.endswith("weight")
    )
    assert any(not torch.equal(before[name], value) for name, value in one.ema.tensors.items())


def test_a_constant_batch_is_made_once_and_others_are_not():
    for constant in (True, False):
        one = worker("deit_nano", DATA, RECIPE, constant=constant, burst=1, device="cpu", patch_size=8)
        epoch = one.batches.epoch(0)
        batches = [one.batches.load(*one.batches.at(step, epoch), torch.tensor(0)).images for step in (0, 1)]
        assert torch.equal(*batches) is constant


def test_a_depthwise_feed_forward_is_compared_with_a_plain_one(monkeypatch):
    monkeypatch.setattr(step, "small_recipe", lambda batch: RECIPE.with_overrides({"batch_size": batch}))
    deep, plain = step.feed_forwards(2, 2, torch.device("cpu"), burst=1, count=8)
    assert deep.against == plain.what and deep.ratio and deep.value > 0 and plain.value > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("model", ["deit_nano", "convit_nano", "ibit_nano", "soft_tiny"])
def test_recorded_steps_train_as_plain_ones_do_bit_for_bit(model):
    recipe = small_recipe(64, drop_path=0.0, compile="off")
    weights = []
    for recorded in (True, False):
        one = worker(model, random_images(256, 32), recipe, recorded=recorded, burst=1)  # four steps an epoch
        for _ in range(12):
            one()
        weights.append([value.clone() for value in one.model.state_dict().values()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_a_constant_batch_still_leaves_a_kernel_for_a_cuda_graph():
    """torch warns about a graph in which nothing was recorded."""

    class Counting(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.calls += 1
            return function(*args, **(kwargs or {}))

    one = worker("deit_nano", DATA, RECIPE, constant=True, burst=1, device="cpu", patch_size=8)
    one()
    with Counting() as counting:
        one.batches.load(torch.arange(8), torch.zeros(8, dtype=torch.int64), 0)
    assert counting.calls > 0
