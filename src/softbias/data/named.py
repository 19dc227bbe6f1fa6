"""Image sets by name: where their files are looked for, and an error that says which files to put where.

A loader takes a `DatasetRequest` and tries, in this order, packs, torchvision's files, ordinary folders, and a download.
Labels count from 0. Splits are the official ones; where there is no official test split with labels, the official
validation pictures are our "test", and a note says so.

A new set is a loader, its line in `DATASETS`, and a test. From outside the package: `register_dataset("mine", load_mine)`, or
an entry point in the group "softbias.data". `softbias.data.check_dataset` is the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import platformdirs

from softbias import environment
from softbias.data import fashion
from softbias.data.cache import Progress
from softbias.data.dataset import Dataset
from softbias.data.listing import list_folder, make_listing, refuse_unlearned_classes
from softbias.data.obtain import (
    VAL_IS_TEST,
    cifar_batches,
    class_folders,
    decoded,
    flower_files,
    missing,
    reachable,
    with_torchvision,
)
from softbias.data.packs import ARRAY_FILES, PACKED, DatasetRequest, array_folder, npz_pack, resized_set, sheets
from softbias.data.resizing import check_resize_mode
from softbias.errors import SoftbiasError
from softbias.notes import Note
from softbias.registry import Registry

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

Loader = Callable[[DatasetRequest], Dataset]


def load_named(
    name: str,
    *,
    data_dir: str | Path | None = None,
    img_size: int | Sequence[int] | None = None,
    resize_mode: str = "crop",
    download: bool = True,
    progress: Progress | None = None,
) -> Dataset:
    """The set of that name, decoded.

    data_dir      the folder of its files, also for those that are downloaded; by default $SOFTBIAS_DATA, or else the
                  user's data folder
    img_size      pixels, or (height, width); by default the set's usual size
    resize_mode   what happens to the aspect ratio of pictures that are not square: crop, pad or stretch
    download      whether missing files may be downloaded
    progress      called with (done, total) while files are decoded
    """
    loader = find_dataset(name)
    check_resize_mode(resize_mode)
    size = None if img_size is None else height_and_width(img_size)
    root = data_location(data_dir).absolute()
    if root.exists() and not root.is_dir():
        raise SoftbiasError(f"the data folder {root} is a file; name the folder that holds it by --data-dir or SOFTBIAS_DATA")
    return loader(DatasetRequest(name, root, size, resize_mode, download, progress))


def height_and_width(img_size: int | Sequence[int]) -> tuple[int, int]:
    size = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
    if len(size) != 2 or min(size) < 1:
        raise SoftbiasError(f"img_size must be a number of pixels or (height, width), from 1 on, but got {img_size}")
    return size[0], size[1]


def data_location(data_dir: str | Path | None = None) -> Path:
    """The folder of the sets: data_dir, else $SOFTBIAS_DATA, else softbias in the user's data folder."""
    given = data_dir or environment.variable("SOFTBIAS_DATA")
    return Path(given).expanduser() if given else platformdirs.user_data_path("softbias", appauthor=False)


def fashion_set(request: DatasetRequest) -> Dataset:
    return resized_set(fashion.load(), request.img_size, request.resize_mode)


def cifar10(request: DatasetRequest) -> Dataset:
    return (
        array_folder(request, "cifar10", CIFAR10)
        or cifar_batches(request, "CIFAR10", "cifar-10-batches-py", "cifar-10-python.tar.gz")
        or missing(
            request,
            "cifar-10-batches-py/ with data_batch_1 to data_batch_5, test_batch and batches.meta, or the archive "
            "cifar-10-python.tar.gz they come in",
            f"cifar10/ with {', '.join(ARRAY_FILES)}",
        )
    )


def cifar100(request: DatasetRequest) -> Dataset:
    return (
        sheets(request, "cifar100")
        or cifar_batches(request, "CIFAR100", "cifar-100-python", "cifar-100-python.tar.gz")
        or missing(
            request,
            "cifar-100-python/ with train, test and meta, or the archive cifar-100-python.tar.gz they come in",
            "cifar100/ with train_0.webp to train_4.webp, test_0.webp, train_labels.npy, test_labels.npy, classes.json",
        )
    )


def flowers102(request: DatasetRequest) -> Dataset:
    return (
        npz_pack(request, "flowers102_96.npz", ("train", "val", "test"), Note("pack-cropped", {"side": PACKED}))
        or flower_files(request)
        or missing(
            request,
            "flowers-102/ with jpg/ (image_00001.jpg …, out of 102flowers.tgz), imagelabels.mat and setid.mat",
            "flowers102_96.npz",
        )
    )


def imagenette(request: DatasetRequest) -> Dataset:
    return small_imagenet(request, IMAGENETTE, in_torchvision=True)


def imagewoof(request: DatasetRequest) -> Dataset:
    return small_imagenet(request, IMAGEWOOF, in_torchvision=False)


def small_imagenet(request: DatasetRequest, wnids: dict[str, str], in_torchvision: bool) -> Dataset:
    """Imagenette and Imagewoof: fastai's archives in three sizes, or a pack."""
    sides = {f"{request.name}2-160": 160, f"{request.name}2-320": 320, f"{request.name}2": 500}
    enough = [name for name in sides if sides[name] >= max(request.size(96))]
    names = [*enough, *reversed([name for name in sides if name not in enough])]  # the smallest that is large enough
    found = npz_pack(request, f"{request.name}_96.npz", ("train", "test"), VAL_IS_TEST, Note("pack-squashed", {"side": PACKED}))
    found = found or class_folders(request, names, 96, wnids)
    archive = f"{names[0]}.tgz"
    url = f"https://s3.amazonaws.com/fast-ai-imageclas/{archive}"
    if found is None and in_torchvision and ((request.root / archive).is_file() or reachable(request, url)):
        from torchvision.datasets import Imagenette

        size = {160: "160px", 320: "320px", 500: "full"}[sides[names[0]]]
        with_torchvision(
            request, lambda: Imagenette(request.root, size=size, download=True)
        )  # or unpack, if the archive is there
        found = class_folders(request, names, 96, wnids)
    return found or missing(
        request,
        f"{request.name}2/, {request.name}2-320/ or {request.name}2-160/ with train/ and val/, each with one folder per class "
        f"({next(iter(wnids))}/ …): fastai's {names[0]}.tgz, unpacked",
        f"{request.name}_96.npz",
    )


def imagenet(request: DatasetRequest) -> Dataset:
    data = class_folders(request, ("imagenet", "ILSVRC2012"), 224) or missing(
        request,
        "imagenet/ with train/ and val/, each with 1,000 folders n01440764/ … (torchvision.datasets.ImageNet makes them "
        "from ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz; an account at "
        "image-net.org is needed)",
    )
    classes = len(data.class_names)
    return data if classes == 1000 else data.with_notes(Note("part-of-imagenet", {"classes": classes}))


def imagenet100(request: DatasetRequest) -> Dataset:
    """The first hundred classes of ImageNet, by WordNet id: n01440764 (tench) to n01855672 (goose), as in ConViT's analysis.

    They are taken out of ImageNet's own folders, or out of a folder imagenet100/ beside them in the data folder.
    """
    known = first_classes(100)
    return class_folders(request, ("imagenet100", "imagenet", "ILSVRC2012"), 224, known, part=True) or missing(
        request,
        "ImageNet, as for the set imagenet: imagenet/ with train/ and val/, each with a folder per class, of which the first "
        f"100 are taken ({next(iter(known))}/ to {list(known)[-1]}/)",
        "imagenet100/ with train/ and val/, each with the folders of these 100 classes",
    )


def first_classes(count: int) -> dict[str, str]:
    """WordNet ids of ImageNet's first classes, in order, and their names."""
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    ordered = sorted(zip(info.label_names(), info.label_descriptions(), strict=True))
    return dict(ordered[:count])


def tiny_imagenet(request: DatasetRequest) -> Dataset:
    root = request.folder_with(("train", "val/val_annotations.txt"), "tiny-imagenet-200", "tiny-imagenet")
    if root is None:
        # Some copies have their val pictures sorted into folders already.
        return class_folders(request, ("tiny-imagenet-200", "tiny-imagenet"), 64) or missing(
            request,
            "tiny-imagenet-200/ with train/ (one folder per class: n01443537/images/ …), val/images/, val/val_annotations.txt, "
            "words.txt: tiny-imagenet-200.zip, unpacked",
        )
    train = list_folder(root / "train")
    annotations = root / "val" / "val_annotations.txt"
    lines = annotations.read_text(encoding="utf-8", errors="replace").splitlines()
    rows = [line.split("\t") for line in lines if line.strip()]
    short = [number for number, row in enumerate(rows, start=1) if len(row) < 2]
    if short:
        raise SoftbiasError(f"{annotations}: line {short[0]} must name a file and a class, with a tab between them")
    files = [root / "val" / "images" / row[0] for row in rows]
    classes = [train.class_names[label] for label in train.labels] + [row[1] for row in rows]
    split = ["train"] * len(train) + ["test"] * len(rows)
    refuse_unlearned_classes(root, classes, split)
    return decoded(request, make_listing(root, [*train.files, *files], classes, split, train.notes), 64, VAL_IS_TEST)


DATASETS = Registry[Loader]("data set", group="softbias.data")
DATASETS |= {
    "fashion": fashion_set,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "flowers102": flowers102,
    "imagenette": imagenette,
    "imagewoof": imagewoof,
    "imagenet": imagenet,
    "imagenet100": imagenet100,
    "tiny-imagenet": tiny_imagenet,
}
register_dataset = DATASETS.register
find_dataset = DATASETS.find
list_datasets = DATASETS.names
