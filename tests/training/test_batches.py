"""Pictures on the device, and what they are normalized by."""

import numpy as np
import pytest
import torch

from softbias.training.batches import SplitImages, channel_statistics


@pytest.mark.parametrize("share", [1.0, 0.0], ids=["on the device", "read batch by batch"])
def test_images_come_in_the_order_of_their_indices(little, share):
    data, indices = little(40), np.random.default_rng(1).permutation(40)[:20]
    images = SplitImages(data, indices, torch.device("cpu"), share=share, at_once=7)
    assert (images.resident is None) == (share == 0)
    asked = torch.tensor([19, 0, 7])
    assert np.array_equal(images.load(asked).permute(0, 2, 3, 1), data.images[indices[asked]])
    assert np.array_equal(images.labels[asked], data.labels[indices[asked]])


def test_images_are_normalized_by_their_own_mean_and_deviation(little):
    data = little(60)
    mean, std = channel_statistics(data, data.splits["train"])
    images = data.images[data.splits["train"]] / 255
    assert mean == pytest.approx(images.mean((0, 1, 2)), abs=1e-4) and std == pytest.approx(images.std((0, 1, 2)), abs=1e-4)
