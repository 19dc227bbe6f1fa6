"""The training loop, top to bottom.

    for every step: lr(step) → batch(seed, step) → loss → gradient → clip → optimizer → average
    for every epoch: a line of metrics, validation, a checkpoint

Whatever a step needs is a function of the step and of the state in the checkpoint; so a run that was stopped at any moment
continues to the same weights as one that never stopped.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import Tensor, nn

from softbias.errors import SoftbiasError
from softbias.files import write_text
from softbias.regularizers import Regularized, attached, parse_requests
from softbias.training import checkpoint
from softbias.training.batches import Batches, SplitImages
from softbias.training.compiling import compiled
from softbias.training.display import Display
from softbias.training.evaluate import validate
from softbias.training.optim import ModelEma, build_optimizer
from softbias.training.recipe import Recipe
from softbias.training.schedule import learning_rate
from softbias.training.signals import handled
from softbias.training.state import State
from softbias.training.step import CudaGraphStep, PlainStep, can_be_recorded, step_names

LOOK_EVERY = 50  # steps between two looks at the loss, each of which waits for the device
CHECKPOINT_SECONDS = 30.0  # at least between two checkpoints at the end of an epoch
MIDDLE_SECONDS = 300.0  # an epoch longer than this is saved in between
MOST_SKIPPED = 0.05  # share of an epoch's steps whose gradient may be unusable before we call it divergence
EVALUATIONS = 50  # at most, over a run


class DivergedError(SoftbiasError):
    """The loss is no longer a number."""


class StoppedError(Exception):
    """Asked to stop (Ctrl-C, SIGTERM); the state is saved."""

    def __init__(self, step: int, number: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.step, self.signal = step, number


@dataclass
class Plan:
    """What the loop works on."""

    accelerator: Accelerator
    model: nn.Module
    batches: Batches
    validation: SplitImages | None
    class_weights: Tensor | None
    folder: Path | None  # checkpoints; None: none are written
    metrics: Path | None
    keep: checkpoint.Keep
    frozen: bool = False  # only the head is trained

    @property
    def recipe(self) -> Recipe:
        return self.batches.recipe

    @property
    def regularizers(self) -> dict[str, float]:
        """Names and weights of what the recipe regularizes."""
        return {name: request.weight for name, request in parse_requests(self.recipe.regularize).items()}

    def regularized(self, model: nn.Module) -> nn.Module:
        """The model as a step calls it: with regularizers where the recipe has any."""
        requests = parse_requests(self.recipe.regularize)
        return Regularized(model, requests, self.batches.images.size) if requests else model


def train(
    plan: Plan, display: Display, *, minutes: float | None = None, on_epoch: Callable[[dict[str, Any]], None] | None = None
) -> State:
    """Train to the end and return the state; with checkpoints there, continue from the last one."""
    accelerator, recipe, batches = plan.accelerator, plan.recipe, plan.batches
    model = plan.model
    regularized = plan.regularized(model)
    recorded = can_be_recorded(accelerator, batches, regularized)
    optimizer = build_optimizer(model, recipe, recorded=recorded)
    average = ModelEma(model, recipe.ema) if recipe.ema else None
    names = step_names(plan.regularizers)
    exact = torch.float64 if accelerator.device.type != "mps" else torch.float32
    sums = torch.zeros(len(names), device=accelerator.device, dtype=exact)
    state = State(model, optimizer, average, sums, batches.total_steps, scaler=getattr(accelerator, "scaler", None))
    continued = state.restore(plan.folder) if plan.folder else None
    if continued is None and minutes:
        state.total_steps = int(agreed(accelerator, steps_within(plan, minutes)))
    elif continued is not None:
        display.message(f"continuing at step {state.step} of {state.total_steps}")
        for name in continued:
            display.message(f"the checkpoint {name} is damaged and was passed over")
    if accelerator.is_main_process:
        cut_back(plan.metrics, state.step)
    pictures = state.total_steps * batches.batch_size
    run, faster = compiled(regularized, recipe, accelerator.device, pictures, batches.images.size)
    if recorded:
        take_step: PlainStep = CudaGraphStep(accelerator, run, optimizer, batches, plan.class_weights, plan.regularizers)
    else:
        run, prepared = accelerator.prepare(run, optimizer)
        take_step = PlainStep(accelerator, run, prepared, batches, plan.class_weights, plan.regularizers)
    display.message(
        f"{state.total_steps:,} steps of {batches.batch_size} pictures on {accelerator.device.type}, {take_step.name}"
        + (", compiled" if faster else "")
    )
    epochs = math.ceil(state.total_steps / batches.steps_per_epoch)
    evaluate_every = max(1, round(epochs / EVALUATIONS))
    warmup = min(batches.warmup_steps, state.total_steps // 10)
    counted = recorded or accelerator.scaler is not None  # a step whose gradient is not finite changes nothing
    stochastic = any(getattr(module, "p", 0) or getattr(module, "drop_prob", 0) for module in model.modules())
    set_mode(plan)
    display.start(state.step, state.total_steps)
    order, epoch_started, epoch_samples, saved = None, time.perf_counter(), 0, time.perf_counter()
    with stop_signals() as stopping, attached(regularized):
        while state.step < state.total_steps:
            started = time.perf_counter()
            epoch = state.step // batches.steps_per_epoch
            if order is None or state.step % batches.steps_per_epoch == 0:
                order = batches.order(epoch)
                when = torch.tensor(epoch, device=accelerator.device)  # a tensor, so that compiled code takes any epoch
            lr = learning_rate(recipe, state.step, state.total_steps, warmup)
            if stochastic:  # dropout and drop path are functions of the step, too
                torch.manual_seed(((batches.seed * 1_000_003 + state.step) * 4096 + batches.rank) % 2**64)

            seen = take_step(*batches.at(state.step, order), when, lr)  # what `names` names
            state.step += 1
            if average:
                average.update(state.step)
            state.sums += seen.to(sums.dtype)
            epoch_samples += batches.batch_size

            end_of_epoch = state.step % batches.steps_per_epoch == 0 or state.step == state.total_steps
            look = state.step % LOOK_EVERY == 0 or end_of_epoch
            if look:
                speed = epoch_samples / (time.perf_counter() - epoch_started)
                now = dict(zip(names, seen.tolist(), strict=True))
                if not counted:
                    refuse_nonsense(now["loss"] if now["taken"] else math.nan, state.step, lr)
                display.step(state.step, {"loss": now["loss"], "images_per_second": speed})
            state.seconds += time.perf_counter() - started  # after a look, which waits for the device
            if end_of_epoch:
                row = end_epoch(plan, state, epoch + 1, epochs, evaluate_every, lr, epoch_samples, epoch_started)
                write_row(plan, row)
                display.epoch(row)
                if on_epoch:
                    on_epoch(row)
                epoch_started, epoch_samples = time.perf_counter(), 0
                if recipe.patience and row["epoch"] - state.best.epoch >= recipe.patience and plan.validation is not None:
                    display.message(f"no better epoch for {recipe.patience}: stopped early at epoch {row['epoch']}")
                    state.total_steps = state.step
            ask = look or accelerator.num_processes == 1  # several wait for each other to agree
            if minutes and ask and agreed(accelerator, state.seconds) > 1.2 * 60 * minutes:
                display.message(f"the {minutes:g} minutes are over at step {state.step} of {state.total_steps}")
                state.total_steps = state.step
            waited = time.perf_counter() - saved
            due = end_of_epoch and (waited > CHECKPOINT_SECONDS or state.step >= state.total_steps or keeps(plan, epoch + 1))
            if plan.folder and accelerator.is_main_process and (due or waited > MIDDLE_SECONDS or stopping):
                if not counted:
                    refuse_nonsense(seen[0].item() if seen[2] else math.nan, state.step, lr)
                state.save(plan.folder)
                checkpoint.prune(plan.folder, plan.keep, batches.steps_per_epoch)
                saved = time.perf_counter()
            if stopping:
                display.stop()
                raise StoppedError(state.step, stopping[0])
    display.stop()
    return state


def end_epoch(
    plan: Plan, state: State, epoch: int, epochs: int, every: int, lr: float, samples: int, started: float
) -> dict[str, Any]:
    """The row of an epoch; a better one on validation is kept."""
    accelerator = plan.accelerator
    seconds = time.perf_counter() - started
    sums = accelerator.reduce(state.sums, "mean").tolist()
    means = dict(zip(step_names(plan.regularizers), sums, strict=True))
    state.sums.zero_()
    row: dict[str, Any] = {"event": "epoch", "step": state.step, "epoch": epoch, "epochs": epochs}
    taken, skipped = means.pop("taken"), round(means.pop("skipped"))
    scaled = accelerator.scaler is not None  # which skips steps to find its scale
    diverged = taken < 1 if scaled else skipped > MOST_SKIPPED * (taken + skipped)
    refuse_nonsense(math.nan if diverged else 0.0, state.step, lr)
    row |= {name: total / taken for name, total in means.items()} | {"lr": lr, "skipped": skipped}
    row |= {"seconds": round(state.seconds, 3), "images_per_second": samples / seconds}
    if accelerator.device.type == "cuda":
        row["memory"] = torch.cuda.max_memory_allocated()
    last = state.step >= state.total_steps
    if plan.validation is not None and (epoch % every == 0 or last):
        accuracy, loss = validate(
            plan.model, state.average, plan.validation, plan.batches.mean, plan.batches.std,
            objective=plan.batches.objective, precision=accelerator.autocast(),
        )  # fmt: skip
        better = state.best.beaten_by(accuracy, loss)
        if better:
            state.best = type(state.best)(accuracy, loss, state.step, epoch)
            if plan.folder and plan.keep.best and accelerator.is_main_process:
                state.save_best(plan.folder)
        row |= {"val_accuracy": accuracy, "val_loss": loss, "best": better}
    set_mode(plan)
    return row


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """A list that is filled when somebody asks the process to stop; a second Ctrl-C stops it at once."""
    asked: list[int] = []

    def ask(number: int, _: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    with handled(ask):
        yield asked


def set_mode(plan: Plan) -> None:
    """Training mode; a frozen backbone stays in evaluation mode, so that its norms and dropout stay still."""
    plan.model.train()
    if plan.frozen:
        plan.model.eval()
        head: Any = plan.model.get_classifier  # every model here follows timm's conventions
        head().train()


def agreed(accelerator: Accelerator, number: float) -> float:
    """What the main process measured: all must end at the same step."""
    if accelerator.num_processes == 1:
        return number
    return float(broadcast(torch.tensor(number, device=accelerator.device, dtype=torch.float64)))


def steps_within(plan: Plan, minutes: float) -> int:
    """How many steps the time allows, from a rehearsal, so that the schedule can end in time."""
    return max(1, min(plan.batches.total_steps, int(0.9 * 60 * minutes / seconds_per_step(plan))))


def seconds_per_step(plan: Plan) -> float:
    """What a step takes, from a few on a copy of the model."""
    seconds = rehearsed(plan, 12)
    return sorted(seconds)[len(seconds) // 3]  # the first ones only warm up


def rehearsed(plan: Plan, steps: int, most: float = math.inf) -> list[float]:
    """Seconds of each of a few steps on a copy of the model; no more of them than fit into `most` seconds."""
    batches = plan.batches
    model = copy.deepcopy(plan.model)
    regularized = plan.regularized(model)
    recorded = can_be_recorded(plan.accelerator, batches, regularized)
    optimizer = build_optimizer(model, plan.recipe, recorded=recorded)
    kind = CudaGraphStep if recorded else PlainStep
    rehearse = kind(plan.accelerator, regularized, optimizer, batches, plan.class_weights, plan.regularizers)
    order, epoch = batches.order(0), torch.tensor(0, device=plan.accelerator.device)
    seconds: list[float] = []
    for step in range(min(steps, batches.steps_per_epoch)):
        started = time.perf_counter()
        with attached(regularized):
            rehearse(*batches.at(step, order), epoch, plan.recipe.warmup_lr)
        if plan.accelerator.device.type != "cpu":
            torch.accelerator.synchronize()
        seconds.append(time.perf_counter() - started)
        if sum(seconds) > most:
            break
    return seconds


def keeps(plan: Plan, epoch: int) -> bool:
    return bool(plan.keep.every) and epoch % plan.keep.every == 0


def refuse_nonsense(loss: float, step: int, lr: float) -> None:
    if not math.isfinite(loss):
        raise DivergedError(
            f"the loss is {loss} at step {step} with learning rate {lr:.2e}; the last checkpoint is intact. Try a smaller "
            "--lr, --clip 1, or --precision fp32"
        )


def cut_back(metrics: Path | None, step: int) -> None:
    """Forget rows that the checkpoint does not know of."""
    if metrics is not None and metrics.is_file():
        write_text(metrics, "".join(f"{line}\n" for line in checkpoint.rows_until(metrics, step)))


def write_row(plan: Plan, row: dict[str, Any]) -> None:
    if plan.metrics is not None and plan.accelerator.is_main_process:
        with plan.metrics.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
