"""All that is decided before the first step: what a training works on, how a step is taken, when the loop looks and saves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
from accelerate import Accelerator
from torch import nn

from softbias import environment
from softbias.bounds import Count, Probability, Within
from softbias.errors import SoftbiasError
from softbias.kernels import triton_api
from softbias.models.convert import resize
from softbias.models.inspect import unwrap
from softbias.regularizers import parse_regularizers
from softbias.regularizers.attach import Regularized
from softbias.schema import Checked
from softbias.terminal import counted
from softbias.training.acceleration import agreed
from softbias.training.balance import ClassBalance
from softbias.training.batches import Batches, SplitImages
from softbias.training.checkpoint import Keep, State
from softbias.training.depth import frozen_modules
from softbias.training.display import Display
from softbias.training.optim import ModelEma, build_optimizer
from softbias.training.pace import steps_within
from softbias.training.recipe import Recipe
from softbias.training.step import CudaGraphStep, PlainStep, step_names, supports_cuda_graph

COMPILE_SECONDS = 50.0  # for compiling a model the first time
SAVED_PER_TOKEN = 0.27e-6  # seconds that compiling saves, measured on an H200: see results/training.md
Seconds = Annotated[float, Within(0, 1e9)]
EVALUATED = 0.1  # of the images of an epoch, as many may be evaluated on a CPU where they only inform
POINTS = 8  # at least, of a curve of test accuracy that was asked for
AREA_PER_TOKEN = 256  # pixels, for a model without tokens: patches of 16


@dataclass(frozen=True)
class LoopSettings(Checked):
    """When the loop looks, evaluates and saves; nothing of this changes the weights.

    look_every           steps between two looks at the loss, each of which waits for the device
    checkpoint_seconds   least time between two checkpoints at the ends of epochs
    middle_seconds       an epoch longer than this is saved in between
    most_skipped         share of an epoch's steps whose gradient may be unusable; more is divergence
    evaluations          most evaluations on validation images over a run
    plain_steps          steps before a CUDA graph is captured: they allocate, compile and choose kernels
    """

    look_every: Count = 50
    checkpoint_seconds: Seconds = 30.0
    middle_seconds: Seconds = 300.0
    most_skipped: Probability = 0.05
    evaluations: Count = 50
    plain_steps: Annotated[int, Within(0, 1000)] = 3

    @staticmethod
    def from_environment() -> LoopSettings:
        """The defaults, with the checkpoints that SOFTBIAS_CHECKPOINT_SECONDS asks for."""
        given = environment.variable("SOFTBIAS_CHECKPOINT_SECONDS")
        if given is None:
            return LoopSettings()
        try:
            return LoopSettings(checkpoint_seconds=float(given), middle_seconds=float(given))
        except ValueError as error:
            raise SoftbiasError(f"SOFTBIAS_CHECKPOINT_SECONDS must be a number of seconds, but is {given!r}") from error


@dataclass(frozen=True)
class TrainingPlan:
    """What a training works on.

    validation   images that choose the best epoch; None: the last one is taken
    watched      test images whose accuracy stands in the rows of epochs and decides nothing; None: they are seen at the end
    folder       where checkpoints go; None: none are written
    metrics      the file that gets a line per epoch
    frozen       only the head is trained
    img_size     that of the model in use, where training has another one (`train_size`)
    """

    accelerator: Accelerator
    model: nn.Module
    batches: Batches
    validation: SplitImages | None
    balance: ClassBalance | None
    folder: Path | None
    metrics: Path | None
    keep: Keep
    frozen: bool = False
    img_size: tuple[int, int] | None = None
    settings: LoopSettings = field(default_factory=LoopSettings)
    watched: SplitImages | None = None

    @property
    def recipe(self) -> Recipe:
        return self.batches.recipe

    @property
    def regularizers(self) -> dict[str, float]:
        """Names and weights of the recipe's regularizers."""
        return {label: config.weight for label, config in parse_regularizers(self.recipe.regularize).items()}

    def regularized(self, model: nn.Module, size: tuple[int, int] | None = None) -> nn.Module:
        """The model with the recipe's regularizers, where there are any; for images of `size`, or of the size of training."""
        configs = parse_regularizers(self.recipe.regularize)
        return Regularized(model, configs, size or self.batches.images.size) if configs else model

    def in_use(self) -> nn.Module:
        """The model for images as it will be used on: a copy of another size, where it is trained at `train_size`."""
        model = unwrap(self.model)
        return model if self.img_size is None else resize(model, self.img_size)

    def make_step(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, graph: bool) -> PlainStep:
        given = (self.accelerator, model, optimizer, self.batches, self.balance, self.regularizers)
        return CudaGraphStep(*given, plain_steps=self.settings.plain_steps) if graph else PlainStep(*given)

    def set_mode(self) -> None:
        """Training mode; what is frozen stays in evaluation mode, so that its norms and dropout stay still."""
        self.model.train(not self.frozen)
        for module in frozen_modules(self.model, self.recipe.frozen_blocks):
            module.eval()
        if self.frozen:
            self.model.get_classifier().train()  # type: ignore[operator]  # every model follows timm's conventions


@dataclass(frozen=True)
class Prepared:
    """A training that is ready for its next step.

    regularized      the model whose layers share their queries and keys with regularizers while it trains
    skips            a step whose gradient is not finite changes nothing, and is counted
    stochastic       the model has dropout or stochastic depth
    """

    plan: TrainingPlan
    state: State
    regularized: nn.Module
    take_step: PlainStep
    skips: bool
    stochastic: bool

    @property
    def epochs(self) -> int:
        return math.ceil(self.state.total_steps / self.plan.batches.steps_per_epoch)

    @property
    def evaluate_every(self) -> int:
        """Epochs between two evaluations."""
        gap = epochs_between_evaluations(self.plan)
        if self.plan.watched is not None:
            gap = min(gap, self.epochs // POINTS)
        return max(1, round(self.epochs / self.plan.settings.evaluations), gap)

    @property
    def warmup_steps(self) -> int:
        return min(self.plan.batches.warmup_steps, self.state.total_steps // 10)

    def seed_dropout(self, step: int) -> None:
        """Dropout and stochastic depth are functions of the step, so that a resumed run repeats them."""
        if self.stochastic:
            batches = self.plan.batches
            torch.manual_seed(((batches.seed * 1_000_003 + step) * 4096 + batches.rank) % 2**64)


def prepare(plan: TrainingPlan, display: Display, minutes: float | None = None) -> Prepared:
    """Build optimizer, averaged weights and step; continue from the last checkpoint, where there is one."""
    accelerator, recipe, batches = plan.accelerator, plan.recipe, plan.batches
    regularized = plan.regularized(plan.model)
    graph = supports_cuda_graph(accelerator, batches, regularized)
    optimizer = build_optimizer(plan.model, recipe, graph=graph)
    exact = torch.float64 if accelerator.device.type != "mps" else torch.float32
    sums = torch.zeros(len(step_names(plan.regularizers)), device=accelerator.device, dtype=exact)
    ema = ModelEma(plan.model, recipe.ema) if recipe.ema else None
    state = State(plan.model, optimizer, ema, sums, batches.total_steps, scaler=accelerator.scaler)
    damaged = state.restore(plan.folder) if plan.folder else None
    state.minutes = state.minutes if minutes is None else minutes
    if damaged is not None:
        display.message(f"continuing at step {state.step} of {state.total_steps}")
        for name in damaged:
            display.message(f"the checkpoint {name} is damaged, so an earlier one is used")
    elif minutes is not None:
        state.total_steps = int(agreed(accelerator, steps_within(plan, minutes)))
        if plan.folder is not None and accelerator.is_main_process:
            state.save(plan.folder)  # a run that is killed from now on has this plan when it continues
    inputs = state.total_steps * batches.batch_size * batches.objective.views(recipe)
    compiles = should_compile(regularized, recipe, accelerator.device, inputs, batches.images.size)
    model: nn.Module = torch.compile(regularized) if compiles else regularized  # type: ignore[assignment]
    if not graph:
        model, optimizer = accelerator.prepare(model, optimizer)
    take_step = plan.make_step(model, optimizer, graph=graph)
    how = [accelerator.device.type, *([take_step.name] if graph else []), *(["compiled"] if compiles else [])]
    display.message(f"{counted(state.total_steps, 'step')} of {batches.batch_size} pictures on {', '.join(how)}")
    plan.set_mode()
    return Prepared(
        plan, state, regularized, take_step,
        skips=graph or accelerator.scaler is not None,
        stochastic=any(getattr(module, "p", 0) or getattr(module, "drop_prob", 0) for module in plan.model.modules()),
    )  # fmt: skip


def epochs_between_evaluations(plan: TrainingPlan) -> int:
    """More than one on a CPU, if nothing is chosen by validation and its images would take a large share of the time."""
    chooses = plan.recipe.select == "best" or plan.recipe.patience is not None
    held_out = [images for images in (plan.validation, plan.watched) if images is not None]
    if not held_out or (plan.validation is not None and chooses) or plan.accelerator.device.type != "cpu":
        return 1
    return round(sum(map(len, held_out)) / (EVALUATED * len(plan.batches.images)))


def should_compile(model: nn.Module, recipe: Recipe, device: torch.device, images: int, img_size: tuple[int, int]) -> bool:
    """Whether to compile the model of a run that trains on this number of images, all epochs together.

    Compiling takes about 50 s the first time, and then saves some time for every token. So it pays from some 190 million
    tokens on: 60 epochs of CIFAR-10 at 32 px (64 tokens), or 95 of 10,000 images at 224 px (196 tokens).
    """
    pays = device.type == "cuda" and images * count_tokens(model, img_size) * SAVED_PER_TOKEN > COMPILE_SECONDS
    if recipe.compile == "off" or (recipe.compile == "auto" and not pays):
        return False
    if device.type == "cuda" and not triton_api.works():
        if recipe.compile == "on":
            raise SoftbiasError(f"compile='on' does not work here: {triton_api.ADVICE}")
        return False
    return True


def count_tokens(model: nn.Module, img_size: tuple[int, int]) -> int:
    """Patches of one image, in our transformers and in timm's; in other models, the number of patches of 16 pixels."""
    grid = getattr(getattr(unwrap(model), "patch_embed", None), "grid_size", None)
    return math.prod(grid) if grid else img_size[0] * img_size[1] // AREA_PER_TOKEN
