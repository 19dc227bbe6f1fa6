"""Write lt10.npz and lt100.npz: CIFAR-10 with classes of different sizes, for results/evidence/class-weights.yaml.

    python scripts/make_long_tail.py FOLDER

Class k of K has 4,500 · r^(−k / (K − 1)) training pictures, r = 10 or 100. 500 other training pictures of each class are the
test pictures here, so CIFAR-10's own test pictures are not looked at.
"""

import sys
from pathlib import Path

import numpy as np

from softbias.data import load_dataset
from softbias.data.splits import order_of

MOST, TESTED = 4500, 500


def main(folder: Path) -> None:
    data = load_dataset("cifar10")
    train, classes = data.splits["train"], len(data.class_names)
    members = [train[data.labels[train] == label] for label in range(classes)]
    shuffled = [found[order_of(len(found), 0, "split", label)] for label, found in enumerate(members)]
    test = np.concatenate([found[-TESTED:] for found in shuffled])
    for ratio in (10, 100):
        kept = np.concatenate([found[: int(MOST * ratio ** (-k / (classes - 1)))] for k, found in enumerate(shuffled)])
        arrays = {
            f"{split}_{name}": getattr(data, name)[indices]
            for split, indices in (("train", kept), ("test", test))
            for name in ("images", "labels")
        }
        np.savez(folder / f"lt{ratio}.npz", **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
