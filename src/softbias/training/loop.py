"""The training loop, top to bottom.

    for every step: lr(step) → batch(seed, step) → loss → gradient → clip → optimizer → averaged weights
    for every epoch: a line of metrics, validation, a checkpoint

All that a step needs is a function of the step and of the state in the checkpoint. So a run that was stopped at any moment
continues to the same weights as one that never stopped.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from softbias.environment import StopSignal, on_stop_signal
from softbias.errors import SoftbiasError
from softbias.files import require_regular, sync, write_text
from softbias.regularizers.attach import attached
from softbias.training import checkpoint
from softbias.training.acceleration import agreed
from softbias.training.batches import Epoch
from softbias.training.checkpoint import Best, State
from softbias.training.display import Display
from softbias.training.evaluate import validate
from softbias.training.optim import learning_rate
from softbias.training.pace import Pace
from softbias.training.plan import Prepared, TrainingPlan, prepare

OnEpoch = Callable[[dict[str, Any]], None]
OVERTIME = 1.2  # a run that was given a time stops after this many times that time


class DivergedError(SoftbiasError):
    """The loss is no longer a number."""


class StoppedError(Exception):
    """The process was asked to stop (Ctrl-C, SIGTERM); the state is saved."""

    def __init__(self, step: int, number: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.step, self.signal = step, number
        self.path: Path | None = None  # of the run, where it is known


def train(plan: TrainingPlan, display: Display, *, minutes: float | None = None, on_epoch: OnEpoch | None = None) -> State:
    """Train to the end and return the state; where there is a checkpoint, continue from it."""
    prepared = prepare(plan, display, minutes)
    state, batches, settings = prepared.state, plan.batches, plan.settings
    if plan.accelerator.is_main_process:
        cut_back(plan.metrics, state.step)
    display.start(state.step, state.total_steps)
    epoch: Epoch | None = None
    meter, saver, pace = Meter(), Saver(prepared), Pace(plan, state, display)
    with stop_signals() as signals, attached(prepared.regularized):
        while state.step < state.total_steps:
            started = time.perf_counter()
            if epoch is None or state.step % batches.steps_per_epoch == 0:
                epoch = batches.epoch(state.step // batches.steps_per_epoch)
            lr = learning_rate(plan.recipe, state.step, state.total_steps, prepared.warmup_steps)
            prepared.seed_dropout(state.step)

            seen = prepared.take_step(*batches.at(state.step, epoch), epoch.number, lr)
            state.advance(seen)
            meter.count(batches.batch_size)

            corrected = pace.correct()
            end_of_epoch = state.step % batches.steps_per_epoch == 0 or state.step == state.total_steps
            look = end_of_epoch or state.step % settings.look_every == 0
            if look:
                check_finite(prepared, seen, lr)
                display.step(state.step, {"loss": seen[0].item(), "images_per_second": meter.speed()})
            state.seconds += time.perf_counter() - started  # after a look, which waits for the device
            if end_of_epoch:
                row = end_epoch(prepared, epoch, lr, meter)
                display.epoch(row)
                if on_epoch:
                    on_epoch(row)
                meter = Meter()
            reason = reason_to_end(prepared, look, end_of_epoch)
            if reason:
                display.message(reason)
                state.total_steps = state.step
            if saver.is_due(end_of_epoch, corrected or bool(signals)):
                check_finite(prepared, seen, lr)
                saver.save()
            if signals:
                display.stop()
                raise StoppedError(state.step, signals[0])
    display.stop()
    return state


class Meter:
    """Images per second of the epoch under way."""

    def __init__(self) -> None:
        self.started, self.images = time.perf_counter(), 0

    def count(self, images: int) -> None:
        self.images += images

    def speed(self) -> float:
        return self.images / (time.perf_counter() - self.started)


class Saver:
    """Writes checkpoints: at the end of an epoch, in the middle of a long one, when the number of steps is decided anew, and
    when the process is asked to stop."""

    def __init__(self, prepared: Prepared) -> None:
        self.plan, self.state, self.saved = prepared.plan, prepared.state, time.perf_counter()

    def is_due(self, end_of_epoch: bool, at_once: bool) -> bool:
        plan, state, waited = self.plan, self.state, time.perf_counter() - self.saved
        if plan.folder is None or not plan.accelerator.is_main_process:
            return False
        kept = state.step >= state.total_steps or plan.keep.keeps(state.step, plan.batches.steps_per_epoch)
        at_the_end = end_of_epoch and (kept or waited > plan.settings.checkpoint_seconds)
        return at_once or at_the_end or waited > plan.settings.middle_seconds

    def save(self) -> None:
        assert self.plan.folder is not None
        if self.plan.metrics is not None and self.plan.metrics.is_file():
            sync(self.plan.metrics)  # a checkpoint never outlives the rows before it
        self.state.save(self.plan.folder)
        checkpoint.prune(self.plan.folder, self.plan.keep, self.plan.batches.steps_per_epoch)
        self.saved = time.perf_counter()


def end_epoch(prepared: Prepared, epoch: Epoch, lr: float, meter: Meter) -> dict[str, Any]:
    """The row of an epoch, also written to the metrics; weights that are better on validation are kept."""
    plan, state, accelerator = prepared.plan, prepared.state, prepared.plan.accelerator
    speed = meter.speed()
    means = dict(zip(prepared.take_step.names, state.sums.tolist(), strict=True))
    state.sums.zero_()
    number = epoch.past + 1
    row: dict[str, Any] = {"event": "epoch", "step": state.step, "epoch": number, "epochs": prepared.epochs}
    taken, skipped = means.pop("taken"), round(means.pop("skipped"))
    scaled = accelerator.scaler is not None  # loss scaling skips steps to find its scale
    if taken < 1 if scaled else skipped > plan.settings.most_skipped * (taken + skipped):
        raise diverged(math.nan, state.step, lr)
    row |= {name: total / taken for name, total in means.items()} | {"lr": lr, "skipped": skipped}
    row |= {"seconds": round(state.seconds, 3), "images_per_second": speed}
    if accelerator.device.type == "cuda":
        row["memory"] = torch.cuda.max_memory_allocated()
    due = number % prepared.evaluate_every == 0 or state.step >= state.total_steps
    if plan.watched is not None and due:
        row["test_accuracy"] = validate(plan, plan.watched, state.ema)[0]
    if plan.validation is not None and due:
        accuracy, loss = validate(plan, plan.validation, state.ema)
        better = state.best.beaten_by(accuracy, loss)
        if better:
            state.best = Best(accuracy, loss, state.step, number)
            if plan.keep.best or plan.recipe.select == "best":
                state.keep_best()
        row |= {"val_accuracy": accuracy, "val_loss": loss, "best": better}
    plan.set_mode()
    if plan.metrics is not None and accelerator.is_main_process:
        with plan.metrics.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
    return row


def reason_to_end(prepared: Prepared, look: bool, end_of_epoch: bool) -> str | None:
    """Why the run ends before its last step: no better epoch for too long, or its time is over."""
    plan, state = prepared.plan, prepared.state
    patience = plan.recipe.patience
    if end_of_epoch and patience and plan.validation is not None:
        epoch = math.ceil(state.step / plan.batches.steps_per_epoch)
        if epoch - state.best.epoch >= patience:
            return f"no better epoch for {patience}: stopped early at epoch {epoch}"
    asks = look or plan.accelerator.num_processes == 1  # several processes wait for each other to agree
    if state.minutes is not None and asks and agreed(plan.accelerator, state.elapsed) > OVERTIME * 60 * state.minutes:
        return f"the {state.minutes:g} minutes are over at step {state.step} of {state.total_steps}"
    return None


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """A list that is filled when the process is asked to stop; a second request stops it at once."""
    received: list[int] = []

    def receive(number: int, _: Any) -> None:
        if received:
            raise StopSignal(number)
        received.append(number)

    with on_stop_signal(receive):
        yield received


def check_finite(prepared: Prepared, seen: Tensor, lr: float) -> None:
    """Refuse a loss that is not a number, unless such steps are skipped and counted."""
    if not prepared.skips:
        values = dict(zip(prepared.take_step.names, seen.tolist(), strict=True))
        loss = values["loss"] if values["taken"] == 1 else math.nan
        if not math.isfinite(loss):
            raise diverged(loss, prepared.state.step, lr)


def diverged(loss: float, step: int, lr: float) -> DivergedError:
    return DivergedError(
        f"the loss is {loss} at step {step} with learning rate {lr:.2e}; the last checkpoint is intact. Try a smaller "
        "--lr, --clip 1, or --precision fp32"
    )


def cut_back(metrics: Path | None, step: int) -> None:
    """Forget rows that are later than the checkpoint."""
    if metrics is not None and os.path.lexists(metrics):
        require_regular(metrics, metrics.stat().st_mode)  # opening a pipe would wait for a reader
        write_text(metrics, "".join(f"{line}\n" for line in checkpoint.rows_until(metrics, step)))
