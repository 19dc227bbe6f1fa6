"""Notes in words: one sentence for every kind of note, the same in the terminal and on pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from softbias.data.listing import counted_images, some
from softbias.errors import unknown_name
from softbias.files import escaped
from softbias.notes import Note
from softbias.pages.format import estimated_duration, exact_number, share
from softbias.pages.start_wording import start_chosen
from softbias.terminal import counted


def epochs_in_words(epochs: float) -> str:
    return f"{epochs:.4g} epoch{'' if epochs == 1 else 's'}"


def model_chosen(
    model: str,
    device: str,
    img_size: Sequence[int],
    divides: bool,
    patch: int | None = None,
    tokens: int | None = None,
    larger: str | None = None,
) -> str:
    if not divides:
        size = " × ".join(map(str, img_size))
        return f"model {model}: no patch size divides pictures of {size}, and a convolution needs no patches"
    if patch is not None:
        return f"model {model} with patches of {patch} ({tokens} tokens): on a CPU larger models take hours"
    if larger == "count":
        return f"model {model}: the larger of our two, because pictures are many"
    why = "its locality helps where pictures are few"
    if larger == "side":
        return f"model {model}: the larger of our two, because pictures are larger than 64 pixels; {why}"
    return f"model {model}: on a GPU it trains in minutes, and {why}"


def recipe_chosen(
    recipe: str,
    epochs: float,
    why: str | None = None,
    lr: float | None = None,
    crop: str | None = None,
    batch_size: int | None = None,
    images: int | None = None,
    steps: int | None = None,
) -> str:
    if steps is not None:
        return f"recipe {recipe} with {steps:,} step{'' if steps == 1 else 's'}"
    if why == "paper":
        return f"recipe {recipe}, as in its paper"
    if why == "limit":
        return f"recipe {recipe} with at most {epochs_in_words(epochs)}"
    text = f"recipe {recipe} with {epochs_in_words(epochs)}"
    if why == "time":
        changed = f", with lr {lr:g} and whole pictures instead of crops" if lr is not None else ""
        return f"{text}: as many epochs as a few minutes allow{changed}"
    if why == "images" and images is not None:
        count = f"{images / 1e6:.1f} million" if images >= 1e6 else f"{round(images, -3) or images:,}"
        return f"{text} in batches of {batch_size}: the model sees about {count} pictures"
    return text


def training_time(
    seconds: float, longer_epochs: float | None = None, longer_seconds: float | None = None, automatic: bool = False
) -> str:
    text = f"training will take about {estimated_duration(seconds)}"
    if longer_epochs is None or longer_seconds is None:
        return text
    if automatic:
        return f"{text}; the automatic choice is {epochs_in_words(longer_epochs)}, about {estimated_duration(longer_seconds)}"
    return f"{text}; longer, and usually better: --epochs {longer_epochs:g}, about {estimated_duration(longer_seconds)}"


def finetuning_cost(
    img_size: int,
    frozen: int,
    trained: int,
    precision: str,
    memory: float,
    minutes: float | None = None,
    used_at: int | None = None,
    named: bool = False,
) -> str:
    blocks = f"the last {trained} of {frozen + trained} blocks" if frozen else "all weights"
    hint = "" if named else " (--minutes changes that)"
    time = "" if minutes is None else f"about {minutes:g} minute{'' if minutes == 1 else 's'}{hint}, "
    how = "" if precision == "auto" else f" in {precision}"
    use = "" if used_at is None else f" for use at {used_at}"
    return f"fine-tuning {blocks} at {img_size} pixels{use}{how}: {time}about {memory / 1e9:.1f} GB of memory"


def last_instead_of_best(best_epoch: int | None, step: int) -> str:
    if best_epoch is None:
        return f"the model has its last weights (step {step}): the run ended before an epoch was validated"
    return f"the model has its last weights (step {step}): its checkpoint has lost those of the best epoch, {best_epoch}"


RESIZE_MODES = {
    "crop": "crop: the shorter side is resized to the target and the center kept; the aspect ratio is kept, the borders "
    "of the longer side are lost",
    "pad": "pad: the whole picture is resized to fit inside the target and the rest is black; the aspect ratio is kept, "
    "nothing is lost",
    "stretch": "stretch: the whole picture is resized to the target; nothing is lost, the aspect ratio is not kept",
}
COPIES = {"exact": "exact copies", "near": "near copies (re-encoded, resized, or just alike)"}


def split_made(seed: int, counts: Mapping[str, int], groups: int | None, only_train_given: bool) -> str:
    begin = "only train was given, so it was split" if only_train_given else "the split was made here"
    parts = ", ".join(f"{count} {split}" for split, count in counts.items())
    how = "stratified by class" if groups is None else f"{groups} groups kept whole, stratified by class as far as they allow"
    return f"{begin} with seed {seed}: {parts}; {how}"


def size_chosen(size: int, median: float, many: int | None) -> str:
    limit = "" if many is None else f", at most 128 for fewer than {many:,} pictures"
    return f"img_size {size} chosen: the median picture's shorter side is {median:.0f} pixels{limit}"


def imbalance(ratio: float, largest: tuple[str, int], smallest: tuple[str, int]) -> str:
    return f"imbalance 1:{ratio:.1f}: {largest[1]} of {largest[0]!r}, but {smallest[1]} of {smallest[0]!r}"


def few_images(classes: Mapping[str, int], total: int, least: int) -> str:
    named = some([f"{name} ({count})" for name, count in classes.items()])
    return f"{len(classes)} of {total} classes have fewer than {least} pictures to learn from: {named}"


def classes_deeper(folder: str, classes: Sequence[str], inside: Sequence[str]) -> str:
    return (
        f"the classes are {some(classes)}, the folders in {folder}, but each of them holds {some(inside)}: "
        "if those are the classes, put them into one folder, or list the pictures in a CSV file"
    )


def leakage(count: int, copies: str, held_out: str, other: str, share: float) -> str:
    return f"leakage: {counted_images(count)} of {held_out} ({share:.1%}) with {COPIES[copies]} in {other}"


def copies_in_words(count: int, groups: int, copies: str) -> str:
    return f"{counted_images(count)} in {groups} group{'' if groups == 1 else 's'} of {COPIES[copies]}"


def copies_together(groups: int, count: int, torn: int, torn_count: int, largest: int) -> str:
    whole = "they are" if groups == 1 else f"each of their {groups:,} groups is"
    kept = f"{count:,} pictures are near copies of one another: {whole} kept in one split"
    if not torn:
        return kept
    spread = (
        f"{torn_count:,} pictures in {torn:,} group{'' if torn == 1 else 's'} look alike (up to {largest:,}), too many to keep "
        "them in one split: the test result may be too good; --group-by keeps groups of your own together"
    )
    return f"{kept}; {spread}" if groups else spread


READING: dict[str, Callable[..., str]] = {  # data/listing, arrays, sources, named
    "pictures-without-class": lambda count, folder: f"{counted_images(count)} directly in {folder}, without a class: left out",
    "empty-folder": lambda folder: f"the folder {folder} has no pictures: left out",
    "other-files": lambda count, folder, suffixes: (
        f"{count} files in {folder} that are no pictures by their suffix ({some(suffixes)}): left out"
    ),
    "no-files": lambda count, named: (
        f"{count} entr{'y that is no file' if count == 1 else 'ies that are no files'}: left out: {some(named)}"
        + (f" and {count - len(named)} more" if count > len(named) else "")
    ),
    "classes-one-level-deeper": classes_deeper,
    "classes-without-pictures": lambda classes: f"no picture belongs to {some(classes)}",
    "labels-renumbered": lambda count, first, last: f"the {count} labels that occur, {first} to {last}, are numbered from 0",
    "size-chosen": size_chosen,
    "broken-pictures": lambda count, total, kinds: (
        f"{count} of {counted_images(total)} cannot be read ({some(kinds)}): left out"
    ),
    "pictures-at": lambda height, width, resize_mode: f"pictures at {height} × {width}, {RESIZE_MODES[resize_mode]}",
    "value-range": lambda low, high, named: (
        f"in pictures of more than eight bits {exact_number(low)} is black and {exact_number(high)} is white"
        + ("" if named else ", as the pictures suggest (--value-range)")
    ),
    "value-range-unused": lambda: "no picture of more than eight bits was found, so the range of values changes nothing",
    "crops-from": lambda side: (
        f"training cuts its crops from the whole pictures, kept at {side} × {side}, with their own aspect ratio"
    ),
    "resized": lambda before, after, resize_mode: (
        f"resized from {before[0]} × {before[1]} to {after[0]} × {after[1]}, {RESIZE_MODES[resize_mode]}"
    ),
    "official-val-is-test": lambda: (
        "the official validation pictures serve as test: there is no official test split with labels"
    ),
    "pack-cropped": lambda side: (
        f"the pack holds the center square of each picture at {side} × {side}: the parts outside of it are lost"
    ),
    "pack-squashed": lambda side: (
        f"the pack's pictures were squashed to a square of {side} × {side}: their aspect ratio is not kept"
    ),
    "folder-of-that-name": lambda name: f"{name} is the named set; the folder of that name here is not used (it is ./{name})",
    "part-of-imagenet": lambda classes: f"{classes} of ImageNet's 1,000 classes",
    "fashion-origin": lambda: (
        "6,000 of 70,000 Fashion-MNIST pictures (Zalando SE, MIT), 28 × 28 gray, padded to 32 × 32, in three channels"
    ),
    "fashion-split": lambda train, test: (
        f"the split is our own ({train} + {test} per class), not the official one: not comparable with published figures"
    ),
}
SPLITTING: dict[str, Callable[..., str]] = {  # data/splits
    "split-made": split_made,
    "split-read": lambda file: f"the split is read from {file}",
    "split-written": lambda file: f"the split is written to {file}",
    "split-lacks-classes": lambda split, classes: (
        f"{split} has no picture of {some(classes)}: it scores the other classes, and its averages over classes (balanced "
        "accuracy, macro-F1) are over those"
    ),
    "copies-together": copies_together,
    "copies-across": lambda count, share, held_out, other, named: (
        f"{counted_images(count)} of {held_out} ({share:.1%}) with near copies in {other}, which makes its result too "
        f"good; given splits are not changed: {'; '.join(named)}" + ("; …" if count > len(named) else "")
    ),
    "copies-not-joined": lambda groups, left: (
        f"near copies connect the {groups} groups to {left}, too few for train, val and test: your groups are kept whole, and "
        "near copies of a picture may be on both sides of the split, which makes the result too good"
    ),
    "copies-not-sought": lambda count, most: (
        f"near copies are not looked for among more than {most:,} pictures ({count:,}): softbias data check finds them, and "
        "--group-by keeps groups together"
    ),
    "val-serves-as-test": lambda: "there is no test split, so val is used as test and takes part in no choice",
    "scored-on-val": lambda count, own, unseen: (
        f"for choosing, {count:,} {'validation' if own else 'of the training'} pictures are scored as test pictures; the "
        f"{unseen:,} test pictures themselves are not looked at"
    ),
    "train-fraction": lambda count, fraction: f"{count:,} training pictures, {share(fraction)} of each class",
    "per-class": lambda count, per_class, fewer=0: (
        f"{count:,} training pictures, {per_class:,} of each class"
        + (f"; {fewer} {'class has' if fewer == 1 else 'classes have'} fewer, and all of theirs are taken" if fewer else "")
    ),
    "classes-uneven": lambda largest, smallest: (
        f"classes have {smallest:,} to {largest:,} training pictures: the loss makes up for it, so that rare classes are found "
        "as well as frequent ones; --class-weights none leaves this out"
    ),
    "val-from-train": lambda count: f"{count:,} of the training pictures are set aside to choose the best epoch",
}
CHECKING: dict[str, Callable[..., str]] = {  # data/check
    "cannot-be-listed": lambda reason: str(reason),
    "cannot-be-split": lambda reason: str(reason),
    "unreadable-pictures": lambda count, problem: (
        f"{counted_images(count)} cannot be read ({problem}); --skip-broken trains without them"
    ),
    "pictures-without-split": lambda count: f"{counted_images(count)} without a split, while others have one",
    "groups-cut": lambda count, total: f"{count} of {total} groups are in more than one split",
    "imbalance": imbalance,
    "few-pictures": few_images,
    "leakage": leakage,
    "label-conflict": lambda **found: (
        f"{copies_in_words(**found)} in several classes: a label is wrong, or a picture shows both"
    ),
    "copies": copies_in_words,
    "copies-in-one-split": lambda **found: f"{copies_in_words(**found)}, each in one split",
}
WORDING: dict[str, Callable[..., str]] = {
    "text": lambda text: str(text),
    "run-continued": lambda step, total: f"it continued at step {step} of {total}",
    "run-began-again": lambda reason: f"it began again, because {reason}",
    "few-steps": lambda steps, minutes: (
        f"only {counted(steps, 'step')} fitted into {minutes:g} minutes, too few to learn much: give it more time (--minutes)"
    ),
    "metrics-lost": lambda: "metrics.jsonl was lost or damaged after the training, so the learning curves are not complete",
    "last-instead-of-best": last_instead_of_best,
    "regularizer-idle": lambda name: f"the {name} loss was 0 in every step and changed nothing: attention already is as asked",
    "never-trained": lambda: "The weights were never trained: this shows the start of the model, not what it has learned.",
    "no-attention-maps": lambda: (
        "This model has no attention maps. Gradients show instead what counts for its decision: Grad-CAM on its last feature "
        "map, and the gradient of the pixels."
    ),
    "signed-maps": lambda: (
        "Some maps have negative entries (learned masks under the Frobenius norm). Rollout takes their absolute values; the "
        "gradient-weighted rollout needs no such rule."
    ),
    "layers-without-maps": lambda layers: f"Layers {layers} mix patches without attention; rollout skips them.",
    "model-not-opened": lambda model, reason: f"{model} cannot be shown: {reason}",
    "part-not-read": lambda model, reason: f"{model} is shown without some of its scores or curves: {reason}",
    "pictures-not-read": lambda run, reason: f"the pictures of {run} cannot be read, so others are shown: {reason}",
    "run-not-finished": lambda name: f"{name}: its training is not finished",
    "mirrored": lambda learned: (
        "mean of every picture and its mirror image"
        + ("" if learned else "; the model was trained without mirror images (flip 0), so this may harm")
    ),
    "probe-not-measurable": lambda probe, model, reason: f"{probe} of {model} is left out: {reason}",
    **READING,
    **SPLITTING,
    **CHECKING,
    "unlabeled": lambda count, folder: f"{count:,} pictures below {folder}, without classes: all of them train",
    "model-chosen": model_chosen,
    "recipe-chosen": recipe_chosen,
    "strength-chosen": lambda level, epochs: (
        f"{'pictures are mixed with others' if level == 'mixed' else f'augmentation {level}'}: the model sees each picture "
        f"{'once' if epochs == 1 else f'{epochs:g} times'}"
    ),
    "img-size-chosen": lambda img_size, images, side, why: (
        f"img_size {img_size}: on a CPU {images:,} pictures of {side} pixels would take too long"
        if why == "time"
        else f"img_size {img_size}: in the same time a small model on a CPU learns more than at {side} pixels"
    ),
    "images-learned-from": lambda count, of: f"the model was trained on {count:,} of these {of:,} pictures, so this is no test",
    "training-time": training_time,
    "finetuning-cost": finetuning_cost,
    "start-chosen": start_chosen,
    "weights-left-out": lambda why: f"{why}; this file is left out",
}


def text(note: Note) -> str:
    """The note as one sentence.

    >>> text(Note("text", {"text": "the test split is small"}))
    'the test split is small'
    """
    if note.kind not in WORDING:
        raise unknown_name("kind of note", note.kind, WORDING)
    return escaped(WORDING[note.kind](**note.values))
