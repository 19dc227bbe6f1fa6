"""Image sets by name: where their files are looked for, and what to put where when they are not there.

A loader takes a `Request` and tries, in this order, packs, torchvision's files, ordinary folders, and a download; then it
says what is missing. Labels count from 0. Splits are the official ones; where there is no official test split with labels,
the official validation pictures are our "test", and a note says so. A new set is a loader and its line in `DATASETS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from softbias import environment
from softbias.data import fashion
from softbias.data.cache import Progress
from softbias.data.dataset import Dataset
from softbias.data.decode import describe_resize_mode
from softbias.data.folders import list_folder
from softbias.data.listing import make_listing, same_classes
from softbias.data.obtain import (
    ARRAY_FILES,
    VAL_IS_TEST,
    Request,
    array_folder,
    cifar_batches,
    class_folders,
    decoded,
    flower_files,
    missing,
    npz_pack,
    reachable,
    with_torchvision,
)
from softbias.data.packs import SHEET_FILES, read_sheets, sized
from softbias.errors import SoftbiasError, unknown_name

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IMAGENETTE = {
    "n01440764": "tench", "n02102040": "English springer", "n02979186": "cassette player", "n03000684": "chain saw",
    "n03028079": "church", "n03394916": "French horn", "n03417042": "garbage truck", "n03425413": "gas pump",
    "n03445777": "golf ball", "n03888257": "parachute",
}  # fmt: skip
IMAGEWOOF = {
    "n02086240": "Shih-Tzu", "n02087394": "Rhodesian ridgeback", "n02088364": "Beagle", "n02089973": "English foxhound",
    "n02093754": "Border terrier", "n02096294": "Australian terrier", "n02099601": "Golden retriever",
    "n02105641": "Old English sheepdog", "n02111889": "Samoyed", "n02115641": "Dingo",
}  # fmt: skip


Loader = Callable[[Request], Dataset]


def load_named(
    name: str,
    *,
    data_dir: str | Path | None = None,
    img_size: int | tuple[int, int] | None = None,
    resize_mode: str = "crop",
    download: bool = True,
    progress: Progress | None = None,
) -> Dataset:
    """The set of that name, decoded.

    data_dir      where its files are, or go; by default $SOFTBIAS_DATA, or else the user's data folder
    img_size      pixels, or (height, width); by default the set's usual size
    resize_mode   what happens to the aspect ratio of pictures that are not square: crop, pad or stretch
    download      whether missing files may be downloaded
    progress      told (done, total) while files are decoded
    """
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    describe_resize_mode(resize_mode)
    size = (img_size, img_size) if isinstance(img_size, int) else img_size and tuple(img_size)
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise SoftbiasError(f"img_size must be a number of pixels or (height, width), from 1 on, but got {img_size}")
    root = data_location(data_dir).absolute()
    if root.exists() and not root.is_dir():
        raise SoftbiasError(f"the data folder {root} is a file; name the folder that holds it by --data-dir or SOFTBIAS_DATA")
    return DATASETS[name](Request(name, root, size, resize_mode, download, progress))


def data_location(data_dir: str | Path | None = None) -> Path:
    """The folder of the sets: data_dir, else $SOFTBIAS_DATA, else softbias in the user's data folder."""
    given = data_dir or environment.variable("SOFTBIAS_DATA")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "softbias"


def fashion_set(ask: Request) -> Dataset:
    return sized(fashion.load(), ask.img_size, ask.resize_mode)


def cifar10(ask: Request) -> Dataset:
    return (
        array_folder(ask, "cifar10", CIFAR10)
        or cifar_batches(ask, "CIFAR10", "cifar-10-batches-py", "cifar-10-python.tar.gz")
        or missing(
            ask,
            "cifar-10-batches-py/ with data_batch_1 to data_batch_5, test_batch and batches.meta, or the archive "
            "cifar-10-python.tar.gz they come in",
            f"cifar10/ with {', '.join(ARRAY_FILES)}",
        )
    )


def cifar100(ask: Request) -> Dataset:
    return (
        sheets(ask)
        or cifar_batches(ask, "CIFAR100", "cifar-100-python", "cifar-100-python.tar.gz")
        or missing(
            ask,
            "cifar-100-python/ with train, test and meta, or the archive cifar-100-python.tar.gz they come in",
            "cifar100/ with train_0.webp to train_4.webp, test_0.webp, train_labels.npy, test_labels.npy, classes.json",
        )
    )


def sheets(ask: Request) -> Dataset | None:
    folder = ask.folder_with(SHEET_FILES, "cifar100")
    return read_sheets(folder, ask.size(32), ask.resize_mode, ask.name) if folder else None


def flowers102(ask: Request) -> Dataset:
    cropped = "the pack holds the center square of each picture at 96 × 96: what lay outside is lost"
    return (
        npz_pack(ask, "flowers102_96.npz", ("train", "val", "test"), cropped)
        or flower_files(ask)
        or missing(
            ask,
            "flowers-102/ with jpg/ (image_00001.jpg …, out of 102flowers.tgz), imagelabels.mat and setid.mat",
            "flowers102_96.npz",
        )
    )


def imagenette(ask: Request) -> Dataset:
    return small_imagenet(ask, IMAGENETTE, in_torchvision=True)


def imagewoof(ask: Request) -> Dataset:
    return small_imagenet(ask, IMAGEWOOF, in_torchvision=False)


def small_imagenet(ask: Request, wnids: dict[str, str], in_torchvision: bool) -> Dataset:
    """Imagenette and Imagewoof: fastai's archives in three sizes, or a pack."""
    squashed = "the pack's pictures were squashed to a square of 96 × 96: their aspect ratio is not kept"
    pixels = {f"{ask.name}2-160": 160, f"{ask.name}2-320": 320, f"{ask.name}2": 500}
    enough = [name for name in pixels if pixels[name] >= max(ask.size(96))]
    names = [*enough, *reversed([name for name in pixels if name not in enough])]  # the smallest that is large enough
    found = npz_pack(ask, f"{ask.name}_96.npz", ("train", "test"), VAL_IS_TEST, squashed)
    found = found or class_folders(ask, names, 96, wnids)
    archive = f"{names[0]}.tgz"
    url = f"https://s3.amazonaws.com/fast-ai-imageclas/{archive}"
    if found is None and in_torchvision and ((ask.root / archive).is_file() or reachable(ask, url)):
        from torchvision.datasets import Imagenette

        size = {160: "160px", 320: "320px", 500: "full"}[pixels[names[0]]]
        with_torchvision(ask, lambda: Imagenette(ask.root, size=size, download=True))  # or unpack, if the archive is there
        found = class_folders(ask, names, 96, wnids)
    return found or missing(
        ask,
        f"{ask.name}2/, {ask.name}2-320/ or {ask.name}2-160/ with train/ and val/, each with a folder a class "
        f"({next(iter(wnids))}/ …): fastai's {names[0]}.tgz, unpacked",
        f"{ask.name}_96.npz",
    )


def imagenet(ask: Request) -> Dataset:
    data = class_folders(ask, ("imagenet", "ILSVRC2012"), 224) or missing(
        ask,
        "imagenet/ with train/ and val/, each with 1,000 folders n01440764/ … (torchvision.datasets.ImageNet makes them "
        "from ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz; an account at "
        "image-net.org is needed)",
    )
    part = f"{len(data.class_names)} of ImageNet's 1,000 classes"
    return data if len(data.class_names) == 1000 else replace(data, notes=(*data.notes, part))


def tiny_imagenet(ask: Request) -> Dataset:
    root = ask.folder_with(("train", "val/val_annotations.txt"), "tiny-imagenet-200", "tiny-imagenet")
    if root is None:
        # Some copies have their val pictures sorted into folders already.
        return class_folders(ask, ("tiny-imagenet-200", "tiny-imagenet"), 64) or missing(
            ask,
            "tiny-imagenet-200/ with train/ (a folder a class: n01443537/images/ …), val/images/, val/val_annotations.txt, "
            "words.txt: tiny-imagenet-200.zip, unpacked",
        )
    train = list_folder(root / "train")
    lines = (root / "val" / "val_annotations.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if line.strip()]
    files = [root / "val" / "images" / row[0] for row in rows]
    classes = [train.class_names[label] for label in train.labels] + [row[1] for row in rows]
    split = ["train"] * len(train) + ["test"] * len(rows)
    same_classes(root, classes, split)
    return decoded(ask, make_listing(root, [*train.files, *files], classes, split, train.notes), 64, VAL_IS_TEST)


DATASETS: dict[str, Loader] = {
    "fashion": fashion_set,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "flowers102": flowers102,
    "imagenette": imagenette,
    "imagewoof": imagewoof,
    "imagenet": imagenet,
    "tiny-imagenet": tiny_imagenet,
}
