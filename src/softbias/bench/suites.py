"""The suites of `softbias bench`. Each yields rows as they are measured; all run on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from softbias import environment
from softbias.bench.load import load_rows
from softbias.bench.measuring import Row, forget
from softbias.bench.regularization import measure
from softbias.bench.startup import start_up
from softbias.bench.step import beside_timm, captured_equals_uncaptured, feed_forwards, whole_step
from softbias.bench.throughput import Builder, Setting, growth, side_by_side
from softbias.bounds import BatchSize, Rounds, ShortText, Side
from softbias.errors import SoftbiasError, unknown_name
from softbias.kernels import dispatch
from softbias.models import create_model
from softbias.models.cost import count_macs, count_parameters
from softbias.models.presets import preset_spec
from softbias.models.spec import ModelSpec
from softbias.schema import Checked

TIMM_VIT = "timm:deit_tiny_patch16_224"  # a model of another library, to which regularizers are attached
PEERS = {  # ours -> the same architecture in timm
    "deit_tiny": "timm:deit_tiny_patch16_224",
    "deit_small": "timm:deit_small_patch16_224",
    "deit_base": "timm:deit_base_patch16_224",
    "convit_tiny": "timm:convit_tiny",
    "convit_small": "timm:convit_small",
    "convit_base": "timm:convit_base",
    "resnet50": "timm:resnet50",
}


@dataclass(frozen=True)
class Options(Checked):
    device: torch.device
    rounds: Rounds = 20
    batch: BatchSize | None = None
    img_size: Side = 224
    models: tuple[ShortText, ...] = ()  # none: those of the suite
    modes: tuple[Literal["inference", "training"], ...] = ("inference", "training")
    compiled: tuple[Literal["default", "reduce-overhead"] | None, ...] = (None,)  # modes of torch.compile

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def on_gpu_only(self, **targets: float) -> dict[str, float]:
        """Targets that were set for a GPU."""
        return targets if self.on_gpu else {}

    def settings(self) -> list[Setting]:
        dtype = torch.bfloat16 if self.on_gpu else torch.float32
        batch = self.batch or (256 if self.on_gpu else 8)
        return [Setting(mode, batch, self.img_size, self.device, dtype, each) for each in self.compiled for mode in self.modes]


def builder(name: str, img_size: int, **options: object) -> Builder:
    return lambda: create_model(name, 10, img_size, **options)  # type: ignore[arg-type]


def peers(options: Options) -> Iterator[Row]:
    """Our models beside the same architectures in timm."""
    for setting in options.settings():
        for name in options.models or ("deit_tiny", "convit_tiny"):
            against = PEERS.get(name, name)
            models = {each: builder(each, setting.img_size) for each in (name, against)}
            targets = {name: 0.97} if against != name else {}
            yield from side_by_side(models, setting, options.rounds, against=against, targets=targets)
            forget()


def plain_twin(name: str, img_size: int) -> tuple[str, Builder]:
    """Full attention with another model's width, depth and heads."""
    spec = preset_spec(name, num_classes=10, img_size=img_size)
    assert isinstance(spec, ModelSpec)
    like = {"width": spec.width, "heads": spec.heads, "depth": spec.depth}
    return f"deit of {spec.heads} × {spec.width // spec.heads}", builder("deit_tiny", img_size, **like)


def convit(options: Options) -> Iterator[Row]:
    """ConViT beside a DeiT of its width, depth and heads, and eager beside timm's ConViT."""
    names = ("convit_tiny", "convit_small", "convit_base")
    for name in options.models:
        if name not in names:
            raise unknown_name("model of the suite convit", name, names)
    for setting in options.settings():
        for name in options.models or names:
            training = setting.mode == "training"
            twin, build_twin = plain_twin(name, setting.img_size)
            least = 0.92 if setting.compiled and training else 0.80
            models = {name: builder(name, setting.img_size), twin: build_twin}
            if name == "convit_tiny":
                models["deit_tiny"] = builder("deit_tiny", setting.img_size)
            measured = side_by_side(models, setting, options.rounds, against=twin, targets=options.on_gpu_only(**{name: least}))
            if training and name == "convit_base":
                measured += [
                    replace(row, what=f"{name}: memory", value=row.memory / 2**30, unit="GiB", spread=None, quartiles=None,
                            ratio=row.memory_ratio, memory=None, memory_ratio=None, target=1.15, higher=False)
                    for row in measured[:1] if row.memory
                ]  # fmt: skip
            yield from measured
            forget()
            if not setting.compiled:
                peer = PEERS[name]
                pair = {name: builder(name, setting.img_size), peer: builder(peer, setting.img_size)}
                target = options.on_gpu_only(**{name: 2.4 if training else 3.0})
                yield from side_by_side(pair, setting, options.rounds, against=peer, targets=target)
                forget()


def masked(options: Options) -> Iterator[Row]:
    """IBiT beside DeiT, in training: the Frobenius norm with and without our kernel, and the softmax form."""
    for setting in options.settings():
        if setting.mode != "training":
            continue
        models = {name: builder(name, setting.img_size) for name in ("ibit_tiny", "deit_tiny")}
        models["ibit_tiny, softmax"] = builder("ibit_tiny", setting.img_size, norm="softmax")
        yield from side_by_side(
            models, setting, options.rounds, against="deit_tiny", targets=options.on_gpu_only(ibit_tiny=0.90)
        )
        forget()
        if options.on_gpu:
            with dispatch.disabled():
                plain = {"ibit_tiny, no kernel": models["ibit_tiny"], "deit_tiny": models["deit_tiny"]}
                yield from side_by_side(plain, setting, options.rounds, against="deit_tiny")[:1]
                forget()


def ibit(options: Options) -> Iterator[Row]:
    """IBiT beside ConViT and DeiT, the tiny sizes: parameters, multiply-accumulates, and speed, all against ConViT.

    The document claims "fewer parameters and faster performance" for IBiT.
    """
    names = options.models or ("ibit_tiny", "convit_tiny", "deit_tiny")
    against = names[1] if len(names) > 1 else names[0]
    yield from sizes(names, against, options.img_size)
    for setting in options.settings():
        models = {name: builder(name, setting.img_size) for name in names}
        yield from side_by_side(models, setting, options.rounds, against=against)
        forget()


def sizes(names: Sequence[str], against: str, img_size: int) -> Iterator[Row]:
    """Parameters and multiply-accumulates with 1,000 classes, and their ratios to those of one model."""
    counted = {}
    for name in names:
        model = create_model(name, 1000, img_size, device=None if ":" in name else "meta")
        counted[name] = count_parameters(model) / 1e6, count_macs(model, 3, img_size, img_size) / 1e9
    for index, (kind, unit) in enumerate((("parameters", "M"), ("multiply-accumulates", "G"))):
        for name, numbers in counted.items():
            beside = {} if name == against else {"against": against, "ratio": numbers[index] / counted[against][index]}
            how = f"1,000 classes, {img_size} px"
            yield Row(f"{name}: {kind}", how, numbers[index], unit, higher=False, **beside)  # type: ignore[arg-type]


def windows(options: Options) -> Iterator[Row]:
    """The growth of the time and memory of window attention, from 16² to 128² tokens; on a CPU from 8² to 64²."""
    dtype = torch.bfloat16 if options.on_gpu else torch.float32
    batch = options.batch or (16 if options.on_gpu else 1)
    grids = (16, 32, 64, 128) if options.on_gpu else (8, 16, 32, 64)
    yield from growth("window_tiny", grids, batch, options.device, dtype, options.rounds)
    forget()


def step(options: Options) -> Iterator[Row]:
    """The whole training step at CIFAR's size, beside the same step on a constant batch."""
    if not options.on_gpu:
        for row in whole_step(options.batch or 64, options.rounds, options.device, burst=1, count=1000):
            yield replace(row, target=None)  # the targets are for a GPU
        return
    yield from whole_step(options.batch or 512, options.rounds, options.device)
    yield captured_equals_uncaptured("convit_tiny", options.batch or 512)


def depthwise(options: Options) -> Iterator[Row]:
    """The training step with a depth-wise convolution in the feed-forward beside the step without, at CIFAR's size."""
    if not options.on_gpu:
        for row in feed_forwards(options.batch or 16, options.rounds, options.device, burst=1, count=100):
            yield replace(row, target=None)  # the target is for a GPU
        return
    for batch in (options.batch,) if options.batch else (512, 1024):
        yield from feed_forwards(batch, options.rounds, options.device)
        forget()
    yield captured_equals_uncaptured("soft_tiny", options.batch or 512)


def loops(options: Options) -> Iterator[Row]:
    """Our training loop beside timm's and a plain one, at 32 px and at 224 px."""
    if not options.on_gpu:
        raise SoftbiasError("the suite loops compares whole training loops on a GPU; there is none here")
    workers = max(1, environment.count_cores() - 2)
    yield from beside_timm(32, 4, options.batch or 512, options.rounds, options.device, count=50_000, workers=workers)
    forget()
    rounds = max(4, options.rounds // 2)
    yield from beside_timm(224, 16, 256, rounds, options.device, burst=8, count=4096, workers=workers)


def load(options: Options) -> Iterator[Row]:
    """`fit` and `predict` of a nano model on a CPU, quiet and beside busy processes."""
    for mode in options.modes:
        yield from load_rows("fit" if mode == "training" else "predict", options.rounds)


def regularization(options: Options) -> Iterator[Row]:
    """The cost of a regularizer in a training step of ARViT, and of timm's DeiT-Ti; on a CPU, of small models."""
    targets = {"distance": 1.03, "style": 1.04} if options.on_gpu else {}
    modes = ("eager", "recorded") if options.on_gpu else ("eager",)
    batches = (80, 512) if options.on_gpu else (8,)
    measured: tuple[tuple[str, int, dict[str, float], dict[str, int]], ...] = (
        ("arvit_base", 256, targets, {}),
        (TIMM_VIT, 224, {}, {}),
    )
    if not options.on_gpu:
        measured = (("arvit_nano", 32, {}, {}), (TIMM_VIT, 32, {}, {"patch_size": 8, "embed_dim": 48, "depth": 4}))
    for model, img_size, wanted, shape in measured:
        yield from measure(
            batches if options.batch is None else (options.batch,), options.device.type, model=model, img_size=img_size,
            modes=modes, candidates=("distance", "style"), rounds=options.rounds, targets=wanted, **shape,
        )  # fmt: skip


SUITES: dict[str, Callable[[Options], Iterator[Row]]] = {
    "peers": peers,
    "convit": convit,
    "masked": masked,
    "ibit": ibit,
    "windows": windows,
    "step": step,
    "depthwise": depthwise,
    "loops": loops,
    "startup": lambda _: start_up(),
    "load": load,
    "regularization": regularization,
}
