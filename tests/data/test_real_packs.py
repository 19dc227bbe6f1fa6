"""The real packs, where they are: in SOFTBIAS_DATA, or in shared/data beside the checkout."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from softbias.data import check_dataset
from softbias.data.named import CIFAR10, load_named

from .small_sets import PACKS, own_folders  # noqa: F401  used by every test

REAL = {
    "cifar100": ("cifar100", {"train": 50000, "test": 10000}, 100),
    "flowers102": ("flowers102_96.npz", {"train": 1020, "val": 1020, "test": 6149}, 102),
    "imagenette": ("imagenette_96.npz", {"train": 9469, "test": 3925}, 10),
    "imagewoof": ("imagewoof_96.npz", {"train": 9025, "test": 3929}, 10),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_the_real_pack(name):
    file, counts, classes = REAL[name]
    if not (PACKS / file).exists():
        pytest.skip(f"the pack {file} is not here")
    data = load_named(name, data_dir=PACKS)
    check_dataset(data)
    assert {split: len(indices) for split, indices in data.splits.items()} == counts
    assert len(set(data.class_names)) == len(np.unique(data.labels)) == classes
    if name == "cifar100":
        assert np.allclose(data.images[:50000].mean((0, 1, 2)) / 255, [0.5071, 0.4865, 0.4409], atol=5e-5)
        assert np.bincount(data.labels[:50000]).tolist() == [500] * 100


@pytest.mark.slow
def test_real_cifar10_as_its_script_writes_it(tmp_path):
    script = PACKS / "get_cifar10.py"
    if not script.exists():
        pytest.skip("get_cifar10.py is not here")
    done = subprocess.run([sys.executable, script, tmp_path / "cifar10"], capture_output=True, text=True)
    if done.returncode and "npm" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[0])
    assert done.returncode == 0, done.stderr
    data = load_named("cifar10", data_dir=tmp_path)
    assert data.class_names == CIFAR10
    assert {split: len(indices) for split, indices in data.splits.items()} == {"train": 50000, "test": 10000}
    assert np.allclose(data.images[:50000].mean((0, 1, 2)) / 255, [0.49139968, 0.48215841, 0.44653091], atol=1e-8)
    assert np.bincount(data.labels[50000:]).tolist() == [1000] * 10
