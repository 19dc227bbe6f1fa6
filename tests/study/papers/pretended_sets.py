"""Sets of the right size and number of classes that take no memory."""

import numpy as np

from softbias.data.dataset import Dataset

CLASSES = {"imagenet": 100, "imagenet100": 100, "cifar100": 100, "flowers102": 102}
SIDES = {"imagenet": 224, "imagenet100": 224, "imagenette": 96, "imagewoof": 96, "flowers102": 96}


def pretended(name, options):
    """A set of the right size, with enough classes, twenty training pictures a class, that takes no memory."""
    classes, side = CLASSES.get(name, 10), options.get("img_size", SIDES.get(name, 32))
    images = np.broadcast_to(np.zeros((1, 1, 1, 1), np.uint8), (22 * classes, side, side, 3))
    labels = np.arange(22 * classes) % classes
    splits = {"train": np.arange(20 * classes), "test": np.arange(20 * classes, 22 * classes)}
    return Dataset(name, images, labels, tuple(map(str, range(classes))), splits)
