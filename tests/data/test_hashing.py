from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from softbias.data.augment.rng import (
    Stream,
    epoch_of_view,
    hash_integers,
    operation_id,
    to_integers,
    to_normal,
    to_uniform,
)

MANY = torch.arange(200_000)
SIGNIFICANT = 1e-4  # everything here is deterministic: a test that passes once passes always


def uniform(*key) -> torch.Tensor:
    return to_uniform(hash_integers(*key))


def normal(*key) -> torch.Tensor:
    return to_normal(hash_integers(*key))


def integers(seed, epoch, index, operation, low, high, draw=0) -> torch.Tensor:
    return to_integers(hash_integers(seed, epoch, index, operation, draw), low, high)


def by_hand(seed: int, epoch: int, index: int, operation: int, draw: int) -> int:
    """The formula of the module, in Python's unbounded integers."""
    word, gamma = 2**64 - 1, 0x9E3779B97F4A7C15

    def m(z: int) -> int:
        z &= word
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & word
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & word
        return z ^ (z >> 31)

    bits = m(m(m(m(index + gamma) + epoch + gamma) + seed + gamma) + operation + 0x9E3779B9 * draw)
    return bits - 2**64 if bits >> 63 else bits


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(stats.pearsonr(a.double().numpy(), b.double().numpy()).pvalue)


def test_the_numbers_never_change():
    assert operation_id("crop") == 1330364610467660087
    index = torch.tensor([0, 1, 49_999, 2**40])
    assert hash_integers(0, 0, index, "crop").tolist() == [
        -6808289156325784655,
        6154968046401585655,
        -658879199996926207,
        -498060562104123568,
    ]
    assert hash_integers(7, 3, index, "crop", draw=5).tolist() == [
        5562181474506440025,
        7544850875784927537,
        -3427822156809553098,
        4663449487433132547,
    ]
    assert uniform(7, 3, index, "crop").tolist() == [
        0.7784450054168701,
        0.08263915777206421,
        0.788534939289093,
        0.45202386379241943,
    ]
    assert integers(7, 3, index, "crop", -4, 5).tolist() == [3, -4, 3, 0]
    torch.testing.assert_close(
        normal(7, 3, index, "crop"),
        torch.tensor([0.7669522762298584, -1.3875361680984497, 0.8013481497764587, -0.1205495297908783]),
        rtol=1e-6,
        atol=1e-6,
    )


def test_the_hash_is_the_formula_of_its_docstring():
    for seed, epoch, index, draw in [(0, 0, 0, 0), (5, 3, 7, 2), (-1, 10**9, 2**62, 9), (2**63 - 1, 1, 123_456, 10_000)]:
        given = hash_integers(seed, epoch, torch.tensor([index]), "mix", draw).item()
        assert given == by_hand(seed, epoch, index, operation_id("mix"), draw)


def test_the_epoch_may_be_a_number_or_a_tensor():
    index = MANY[:100]
    expected = hash_integers(1, 4, index, "crop")
    assert torch.equal(hash_integers(1, torch.tensor(4), index, "crop"), expected)
    assert torch.equal(hash_integers(1, torch.full((100,), 4), index, "crop"), expected)


def test_a_stream_draws_what_the_functions_draw():
    stream, index = Stream.of(3, 2, MANY[:50]), MANY[:50]
    crop = operation_id("crop")
    every = torch.stack([uniform(3, 2, index, "crop", draw) for draw in range(4)], dim=1)
    assert torch.equal(stream.uniform(crop, 4), every)
    assert torch.equal(stream.uniform(crop), every[:, 0])
    assert torch.equal(stream.uniform(crop, low=-1.0, high=3.0), every[:, 0] * 4 - 1)
    assert torch.equal(stream.integers(crop, 2, 9), integers(3, 2, index, "crop", 2, 9))
    assert torch.equal(stream.normal(crop, 4)[:, 3], normal(3, 2, index, "crop", 3))


def test_what_is_drawn_at_once_is_what_would_have_been_drawn_one_by_one():
    index, (a, b, c) = MANY[:1000], (operation_id(name) for name in "abc")
    plain, at_once = Stream.of(3, 5, index), Stream.of(3, 5, index, {a: 3, b: 1})
    for draws in (None, 1, 2, 3, 4):  # four are more than were announced
        assert torch.equal(plain.bits(a, draws), at_once.bits(a, draws))
        assert torch.equal(plain.uniform(a, draws, -1, 2), at_once.uniform(a, draws, -1, 2))
        assert torch.equal(plain.normal(a, draws), at_once.normal(a, draws))
    assert torch.equal(plain.integers(b, 0, 7), at_once.integers(b, 0, 7))
    assert torch.equal(plain.uniform(c, 2), at_once.uniform(c, 2))  # nobody announced these


def test_a_samples_numbers_do_not_depend_on_the_batch():
    whole = Stream.of(0, 1, MANY[:1000]).uniform(operation_id("crop"), 3)
    order = torch.from_numpy(np.random.default_rng(0).permutation(1000))
    assert torch.equal(Stream.of(0, 1, MANY[:1000][order]).uniform(operation_id("crop"), 3), whole[order])
    alone = Stream.of(0, 1, torch.tensor([617])).uniform(operation_id("crop"), 3)
    assert torch.equal(alone, whole[617:618])


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_uniform_numbers_are_uniform(seed: int):
    numbers = uniform(seed, 0, MANY, "crop")
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert stats.kstest(numbers.double().numpy(), "uniform").pvalue > SIGNIFICANT


def test_numbers_are_uniform_over_epochs_and_draws_of_one_sample():
    for numbers in (uniform(0, MANY, torch.tensor([5]), "crop"), uniform(0, 0, torch.tensor([5]), "crop", MANY)):
        assert stats.kstest(numbers.double().numpy(), "uniform").pvalue > SIGNIFICANT


def test_every_bit_is_a_fair_coin():
    bits = (hash_integers(0, 0, MANY, "crop")[:, None] >> torch.arange(64)) & 1
    counts = bits.sum(0).double().numpy()
    assert abs(counts - 100_000).max() < 4.5 * 0.5 * 200_000**0.5


def test_changing_one_input_bit_changes_half_of_the_output_bits():
    index = MANY[:2000]
    for bit in (0, 1, 7, 20, 40):
        change = hash_integers(0, 0, index, "crop") ^ hash_integers(0, 0, index ^ (1 << bit), "crop")
        flipped = ((change[:, None] >> torch.arange(64)) & 1).double().mean().item()
        assert flipped == pytest.approx(0.5, abs=0.01)


def test_neighboring_samples_epochs_seeds_operations_and_draws_are_unrelated():
    numbers = uniform(0, 0, MANY, "crop")
    others = {
        "sample": uniform(0, 0, MANY + 1, "crop"),
        "epoch": uniform(0, 1, MANY, "crop"),
        "seed": uniform(1, 0, MANY, "crop"),
        "operation": uniform(0, 0, MANY, "flip"),
        "draw": uniform(0, 0, MANY, "crop", 1),
        "view": uniform(0, epoch_of_view(0, torch.ones_like(MANY)), MANY, "crop"),
    }
    for name, other in others.items():
        assert correlation(numbers, other) > SIGNIFICANT, name
        pairs = np.histogram2d(numbers.numpy(), other.numpy(), bins=16, range=[[0, 1], [0, 1]])[0]
        assert stats.chisquare(pairs.ravel()).pvalue > SIGNIFICANT, name


def test_seed_epoch_and_index_do_not_stand_for_each_other():
    numbers = {hash_integers(s, e, torch.tensor([i]), "crop").item() for s in range(8) for e in range(8) for i in range(8)}
    assert len(numbers) == 8**3


def test_integers_cover_their_range_evenly():
    drawn = integers(0, 0, MANY, "crop", -3, 8)
    counts = torch.bincount(drawn + 3)
    assert (drawn.min().item(), drawn.max().item()) == (-3, 7)
    assert stats.chisquare(counts.numpy()).pvalue > SIGNIFICANT
    assert integers(0, 0, MANY, "crop", 0, 2**31 - 1).max() > 2**31 - 100_000


def test_integers_take_another_range_for_each_sample():
    high = MANY % 7 + 1
    drawn = integers(0, 0, MANY, "crop", 0, high)
    assert (drawn >= 0).all()
    assert (drawn < high).all()
    assert (drawn[high == 1] == 0).all()


def test_normal_numbers_are_normal():
    numbers = normal(0, 0, MANY, "noise").double().numpy()
    assert stats.kstest(numbers, "norm").pvalue > SIGNIFICANT
    extremes = to_normal(torch.tensor([0, -1]))  # all bits off, all bits on
    assert extremes[0].item() == pytest.approx(-extremes[1].item(), rel=1e-3)
    assert 5 < extremes[1].item() < 6


def test_the_hash_compiles_with_an_epoch_on_the_device():
    def draw(index: torch.Tensor, epoch: torch.Tensor) -> torch.Tensor:
        return hash_integers(3, epoch, index, operation_id("crop"), 2)

    compiled = torch.compile(draw, fullgraph=True, backend="aot_eager")
    for epoch in (0, 5):
        assert torch.equal(compiled(MANY[:100], torch.tensor(epoch)), draw(MANY[:100], torch.tensor(epoch)))


@pytest.mark.slow
def test_the_hash_survives_inductor():
    """An address that overflows is undefined in C++: with 64-bit steps between draws its loop ran out of the array."""
    index, crop = MANY[:64], operation_id("crop")
    compiled = torch.compile(lambda index: Stream.of(0, 3, index).bits(crop, 20), fullgraph=True)
    assert torch.equal(compiled(index), Stream.of(0, 3, index).bits(crop, 20))


def test_indices_of_another_type_are_refused_with_advice():
    with pytest.raises(ValueError, match=r"index\.long"):
        hash_integers(0, 0, torch.arange(3, dtype=torch.int32), "crop")
    with pytest.raises(ValueError, match=r"epoch\.long"):
        hash_integers(0, torch.tensor(1.0), torch.arange(3), "crop")
    with pytest.raises(ValueError, match="64 bits"):
        hash_integers(2**63, 0, torch.arange(3), "crop")
