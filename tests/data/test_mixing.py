from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import Tensor

from softbias.data.augment.apply import Augmentation, augment
from softbias.data.augment.mixing import MixPlan, apply_mix, draw_beta, mix_targets, plan_mix, repeated
from softbias.data.augment.rng import Stream, epoch_of_view, hash_integers, to_uniform

MIXUP, CUTMIX, BOTH = Augmentation(mixup=0.8), Augmentation(cutmix=1.0), Augmentation(mixup=0.8, cutmix=1.0)
MANY = torch.arange(5000)


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, 12, 20, generator=torch.Generator().manual_seed(seed))


def plan(settings: Augmentation, index: Tensor = MANY, epoch: int = 0, n_train: int = 5000) -> MixPlan:
    return plan_mix(index, epoch, 0, n_train, settings, (12, 20))


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 0.8, 1.0, 3.0])
def test_lambda_has_the_beta_distribution(alpha: float):
    drawn = draw_beta(Stream.of(0, 0, torch.arange(20_000)), alpha).double().sort().values
    assert drawn[0] >= 0
    assert drawn[-1] <= 1
    points = torch.linspace(0.001, 0.999, 500).double()  # for a small α float32 rounds a part of λ to exactly 1
    below = torch.searchsorted(drawn, points) / 20_000
    assert abs(below.numpy() - stats.beta.cdf(points.numpy(), alpha, alpha)).max() < 2.2 / 20_000**0.5  # Kolmogorov, p = 1e-4


def test_mixup_is_the_weighted_mean_of_both_images():
    mixes, a, b = plan(MIXUP, MANY[:50]), images(50), images(50, seed=1)
    lam = mixes.lam[:, None, None, None]
    torch.testing.assert_close(apply_mix(a, b, mixes), lam * a + (1 - lam) * b)
    assert not mixes.cut.any()
    assert (mixes.lam < 1).all()


def test_cutmix_takes_its_box_from_the_partner_and_nothing_else():
    mixes = plan(CUTMIX, MANY[:200])
    a, b = torch.zeros(200, 3, 12, 20), torch.ones(200, 3, 12, 20)
    mixed = apply_mix(a, b, mixes)
    for i, (top, bottom, left, right) in enumerate(mixes.box.tolist()):
        expected = torch.zeros(3, 12, 20)
        expected[:, top:bottom, left:right] = 1
        assert torch.equal(mixed[i], expected)
    torch.testing.assert_close(1 - mixes.lam, mixed.mean((1, 2, 3)))  # lambda is the true area


def test_cutmix_boxes_are_timms():
    drawn = plan(CUTMIX)
    top, bottom, left, right = drawn.box.unbind(1)
    lam = draw_beta(Stream.of(0, 0, MANY), 1.0)
    height, width = (12 * (1 - lam).sqrt()).long(), (20 * (1 - lam).sqrt()).long()
    unclipped = (top > 0) & (bottom < 12) & (left > 0) & (right < 20)
    assert unclipped.sum() > 500
    assert torch.equal((bottom - top)[unclipped], height[unclipped])
    assert torch.equal((right - left)[unclipped], width[unclipped])
    assert ((bottom - top <= height) & (right - left <= width)).all()
    assert (drawn.lam >= lam - 1e-6).all()  # rounding down and clipping only shrink a box


def test_targets_are_mixed_by_lambda():
    mixes = MixPlan(torch.tensor([1, 0]), torch.tensor([0.7, 1.0]), torch.tensor([False, False]), torch.zeros(2, 4).long())
    targets = mix_targets(torch.tensor([0, 2]), torch.tensor([1, 0]), mixes, 3)
    torch.testing.assert_close(targets, torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.0, 1.0]]))
    same = mix_targets(torch.tensor([2, 2]), torch.tensor([2, 2]), mixes, 3)
    torch.testing.assert_close(same, torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]))


def test_as_many_samples_are_mixed_and_cut_as_asked():
    drawn = plan(Augmentation(mixup=0.8, cutmix=1.0, mix_probability=0.6, mix_switch=0.25))
    mixed = drawn.partner != MANY
    assert mixed.float().mean().item() == pytest.approx(0.6, abs=0.03)
    assert drawn.cut[mixed].float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert not drawn.cut[~mixed].any()
    assert (drawn.lam[~mixed] == 1).all()


def test_a_sample_that_is_not_mixed_stays_exactly_as_it_is():
    drawn = plan(Augmentation(mixup=0.8, cutmix=1.0, mix_probability=0.5), MANY[:100])
    a, alone = images(100), drawn.partner == MANY[:100]
    mixed = apply_mix(a, images(100, seed=1), drawn)
    assert torch.equal(mixed[alone], a[alone])
    assert not (mixed[~alone] == a[~alone]).flatten(1).all(1).all()
    nothing = plan(Augmentation(), MANY[:100])
    assert torch.equal(nothing.partner, MANY[:100])
    assert torch.equal(apply_mix(a, images(100, seed=1), nothing), a)


def test_a_partner_is_another_image_of_the_training_set():
    drawn = plan(MIXUP, MANY, n_train=5000)
    assert (drawn.partner != MANY).all()
    assert stats.kstest(drawn.partner.double().numpy() / 5000, "uniform").pvalue > 1e-4
    three = plan(MIXUP, torch.arange(3).repeat(100), n_train=3)
    assert three.partner.max() == 2
    several = torch.cat([plan_mix(torch.arange(3), epoch, 0, 3, MIXUP, (12, 20)).partner for epoch in range(100)])
    assert all(
        ((several == other) & (torch.arange(3).repeat(100) == own)).any()
        for own in range(3)
        for other in range(3)
        if own != other
    )
    assert torch.equal(plan(MIXUP, torch.tensor([0]), n_train=1).partner, torch.tensor([0]))


def test_partners_and_lambda_change_with_the_epoch():
    first, second = plan(BOTH), plan(BOTH, epoch=1)
    assert (first.partner == second.partner).float().mean() < 0.01
    assert abs(torch.corrcoef(torch.stack([first.lam, second.lam]))[0, 1]) < 0.05


def test_what_a_mixed_sample_becomes_does_not_depend_on_its_batch():
    stored = torch.randint(0, 256, (64, 12, 12, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    settings = Augmentation(crop="pad", flip=0.5, mixup=0.8, cutmix=1.0)

    def become(index: Tensor) -> Tensor:
        mixes = plan_mix(index, 2, 1, 64, settings, (12, 12))
        own, partner = (augment(stored[who], who, 2, 1, settings, (0.5,) * 3, (0.25,) * 3) for who in (index, mixes.partner))
        return apply_mix(own, partner, mixes)

    whole = become(torch.arange(64))
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(become(order), whole[order])
    assert torch.equal(torch.cat([become(part) for part in torch.arange(64).split(10)]), whole)


@pytest.mark.slow
def test_mixing_compiles_into_one_graph():
    def step(index: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return apply_mix(a, b, plan_mix(index, 0, 0, 100, BOTH, (12, 20)))

    arguments = torch.arange(8), images(8), images(8, seed=1)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*arguments), step(*arguments))


def test_repeated_augmentation_shows_a_picture_several_times_each_time_differently():
    order, view = repeated(torch.randperm(10, generator=torch.Generator().manual_seed(0)), 3)
    assert len(order) == 10
    assert torch.equal(torch.bincount(view), torch.tensor([4, 3, 3]))
    assert len(order.unique()) == 4
    numbers = to_uniform(hash_integers(0, epoch_of_view(5, view), order, "crop"))
    assert len(numbers.unique()) == 10
    assert torch.equal(numbers[view == 0], to_uniform(hash_integers(0, 5, order[view == 0], "crop")))
    same, zero = repeated(order, 1)
    assert torch.equal(same, order)
    assert not zero.any()


def test_impossible_mixes_are_refused_with_advice():
    with pytest.raises(ValueError, match="n_train=0"):
        plan_mix(MANY, 0, 0, 0, MIXUP, (12, 20))
    with pytest.raises(ValueError, match="augment both alike"):
        apply_mix(images(3), images(4), plan(MIXUP, MANY[:3]))
    with pytest.raises(ValueError, match="repeats=0"):
        repeated(MANY, 0)
