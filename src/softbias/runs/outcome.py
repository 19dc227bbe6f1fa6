"""After the last step of a run: the chosen weights, scores on the test images, predictions, the model, and the summary."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from softbias.classifier import CROP_MODES
from softbias.data.dataset import Dataset
from softbias.data.splits import Split
from softbias.environment import describe_machine
from softbias.errors import SoftbiasError
from softbias.files import write_text
from softbias.models.cost import count_macs
from softbias.models.inspect import unwrap
from softbias.models.storage import save
from softbias.models.weights import load_state
from softbias.notes import Note
from softbias.runs.artifacts import METRICS, write_results_checksums
from softbias.runs.neighbors import compare_neighbors
from softbias.runs.predictions import Predictions
from softbias.runs.run import Run
from softbias.runs.spec import RunSpec, epoch_rows
from softbias.runs.start import describe
from softbias.training import checkpoint
from softbias.training.evaluate import evaluate_split
from softbias.training.linear import linear_probes, pixel_baseline
from softbias.training.objectives.features import drop_head
from softbias.training.plan import TrainingPlan

FEW_STEPS = 50  # in which hardly any model learns
OF_TRAINING = ("total_seconds", "peak_memory", "peak_memory_of")  # what a later repair of the run does not measure again


def load_selected(plan: TrainingPlan, state: checkpoint.State) -> Note | None:
    """Put the chosen weights into the model: those of the best epoch, or the last (averaged, if the recipe averages).

    A note where the recipe asks for the best epoch and the last weights were taken.
    """
    if plan.recipe.select == "best" and plan.validation is not None:
        if state.best_weights:
            load_state(plan.model, state.best_weights)
            return None
        load_state(plan.model, state.weights())
        return Note("last-instead-of-best", {"best_epoch": state.best.epoch or None, "step": state.step})
    load_state(plan.model, state.weights())
    return None


def finish(
    spec: RunSpec,
    data: Dataset,
    split: Split,
    plan: TrainingPlan,
    state: checkpoint.State,
    directory: Run,
    started: float,
    baseline: bool,
    fallback: Note | None = None,
    lost: Sequence[str] = (),
) -> dict[str, Any]:
    """Score the test images, and write the model, the predictions and, last, the summary.

    fallback   what `load_selected` returned
    lost       what a run that was finished before had lost, see `artifacts`
    """
    model, batches = unwrap(plan.model), plan.batches
    accelerator = plan.accelerator
    objective = batches.objective
    if objective.learns_features:
        drop_head(model)
    summary: dict[str, Any] = {
        "status": "finished",
        "id": spec.id,
        "data": spec.data,
        "start": spec.start.to_dict(),
        "model": spec.model,
        "seed": spec.seed,
        "train_fraction": spec.train_fraction,
        "per_class": spec.per_class,
        "convert": spec.convert,
        "objective": spec.recipe.objective,
        "pretext": objective.pretext,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "macs": count_macs(model, 3, *data.img_size),
        "pictures": {"train": len(split.train), "val": 0 if split.val is None else len(split.val)},
        "img_size": list(data.img_size),
        "train_size": spec.recipe.train_size,
        "steps": state.step,
        "epochs": state.step / batches.steps_per_epoch,
        "seconds": state.seconds,
        "images_per_second": state.step * batches.batch_size / max(state.seconds, 1e-9),
        "selected": spec.recipe.select if plan.validation is not None and fallback is None else "last",
        "best_epoch": state.best.epoch or None,
        "validation_accuracy": state.best.accuracy if state.best.epoch else None,
        "class_weights": plan.balance is not None,
        "regularize": list(spec.recipe.regularize),
        "notes": [note.to_dict() for note in (*directory.notes, *data.notes, *split.notes, *((fallback,) if fallback else ()))],
    }
    summary["peak_memory"] = peak_memory(accelerator.device.type)
    summary["peak_memory_of"] = "the GPU" if accelerator.device.type == "cuda" else "the process"
    if split.test is not None:
        summary["pictures"]["test"] = len(split.test)
    if split.test is not None and not objective.learns_features:
        probabilities, labels, scores = evaluate_split(
            model, data, split.test, batches.mean, batches.std,
            objective=objective, device=accelerator.device, precision=accelerator.autocast(),
        )  # fmt: skip
        summary["test"] = objective.pretext_scores(scores, data.class_names) if objective.pretext else scores
        if spec.data_options.get("score") == "val":
            summary["test"]["what"] = "validation pictures"
    if not accelerator.is_main_process:
        return summary
    if objective.learns_features:
        summary["task"] = objective.task
        summary["neighbors"] = compare_neighbors(model, data, split, batches, spec.seed, directory.neighbors_path)
    if split.test is not None and not objective.pretext:
        files = None if data.files is None else tuple(str(data.files[index]) for index in split.test)
        Predictions(split.test, labels, probabilities, files).write(directory.predictions_path)
        if baseline:
            summary["baseline"] = pixel_baseline(data, split.train, split.test)
        if baseline and plan.frozen:
            summary["probes"] = linear_probes(model, data, split.train, split.test, batches.mean, batches.std, seed=spec.seed)
    preprocessing = {
        "mean": batches.mean,
        "std": batches.std,
        "crop_mode": CROP_MODES[spec.data_options.get("resize_mode") or "crop"],
        **({"value_range": data.value_range} if data.value_range is not None else {}),
    }
    summary["preprocessing"] = preprocessing
    start = spec.start
    save(
        model, directory.model_folder, class_names=objective.output_names(data.class_names), preprocessing=preprocessing,
        card=card_text(spec), license=start.license,
        base_model=start.name if start.kind == "pretrained" else None,
    )  # fmt: skip
    summary["total_seconds"] = time.perf_counter() - started
    earlier = earlier_summary(directory, state.step) if lost else {}
    summary |= {name: earlier[name] for name in OF_TRAINING if name in earlier}
    summary["notes"] += [note.to_dict() for note in idle_regularizers(directory)]
    if state.minutes is not None and state.step < FEW_STEPS:
        summary["notes"].append(Note("few-steps", {"steps": state.step, "minutes": state.minutes}).to_dict())
    if METRICS in lost:
        summary["notes"].append(Note("metrics-lost").to_dict())
    if not earlier or "environment.json" in lost:
        write_text(directory.path / "environment.json", json.dumps(describe_machine(accelerator.device.type), indent=2) + "\n")
    write_text(directory.summary_path, json.dumps(summary, indent=2) + "\n")
    write_results_checksums(directory)
    return summary


def idle_regularizers(run: Run) -> list[Note]:
    """A note for every regularizer whose loss was zero in all of the training that just ended, so that it changed nothing."""
    rows = epoch_rows(run.metrics_path)
    names = dict.fromkeys(key.removesuffix("_active") for row in rows for key in row if key.endswith("_active"))
    return [
        Note("regularizer-idle", {"name": name})
        for name in names
        if not any(row.get(f"{name}_active") for row in rows if f"{name}_active" in row)
    ]


def card_text(spec: RunSpec) -> str | None:
    """What the model card says about the weights that a run began with."""
    if not spec.start.learned:
        return None
    return f"Trained from {describe(spec.start)}{f', converted to {spec.convert}' if spec.convert else ''}."


def earlier_summary(run: Run, step: int) -> dict[str, Any]:
    """The summary that the same training wrote before something was lost; nothing where there is none."""
    try:
        found = run.summary()
    except (OSError, SoftbiasError):
        return {}
    return found if found["steps"] == step else {}


def peak_memory(device: str) -> int:
    """Bytes: of the GPU, or of the whole process on a CPU; 0 where the system does not report it."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.is_file():  # a study resets this peak between two runs of one process
        lines = (line.split() for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        for _, kilobytes, *_ in lines:
            return 1024 * int(kilobytes)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
