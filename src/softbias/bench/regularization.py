"""The cost of a regularizer: time and memory of a training step with it, over one without.

    python -m softbias.bench.regularization --batch 80 512 --json results/regularization.json

A step is forward, backward and AdamW in bf16 on synthetic images. It is timed plainly, compiled, as a recorded CUDA graph,
and both, as `softbias fit` runs it. All candidates are in memory together and take turns, ten steps at a time; a ratio is
taken within a round, so drift of the machine cancels. "by definition" is the same loss from the whole map, by autograd.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from softbias.bench.measuring import Row, compared, forget, interleaved, print_rows
from softbias.environment import describe_machine
from softbias.files import write_text
from softbias.models import create_model
from softbias.regularizers import parse_regularizers
from softbias.regularizers.attach import Regularized, attached

STEPS = 10  # of a candidate in a round
MODES = ("eager", "compiled", "recorded", "compiled, recorded")
CANDIDATES: dict[str, tuple[str | None, bool]] = {  # name -> regularizer, and whether fused
    "base": (None, True),
    "distance": ("distance:layer=2", True),
    "style": ("style:layer=2", True),
    "distance by definition": ("distance:layer=2", False),
    "style by definition": ("style:layer=2", False),
}
COMPARED = tuple(CANDIDATES)[1:]


def random_images(batch: int, img_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Noise of a different strength in every patch of 16, so that styles differ; and labels of four rotations."""
    generator = torch.Generator().manual_seed(0)
    strength = torch.rand(batch, 3, img_size // 16, img_size // 16, generator=generator)
    noise = torch.randn(batch, 3, img_size, img_size, generator=generator)
    images = noise * strength.repeat_interleave(16, 2).repeat_interleave(16, 3)
    return images.to(device), torch.randint(4, (batch,), generator=generator).to(device)


class Candidate:
    """A model with its optimizer, and one training step of it."""

    def __init__(
        self, model: str, regularizer: str | None, fused: bool, images: Tensor, labels: Tensor, mode: str, **options: Any
    ) -> None:
        torch.manual_seed(0)
        self.images, self.labels = images, labels
        bare: nn.Module = create_model(model, num_classes=4, img_size=images.shape[-1], **options).to(images.device).train()
        configs = parse_regularizers([regularizer] if regularizer else [])
        self.weights = [each.weight for each in configs.values()]
        self.model: nn.Module = Regularized(bare, configs, fused=fused) if configs else bare
        self.attachment = attached(self.model)
        self.attachment.__enter__()
        self.run: Any = torch.compile(self.model) if "compiled" in mode else self.model
        self.optimizer = torch.optim.AdamW(
            bare.parameters(), lr=torch.tensor(1e-5, device=images.device), fused=True, capturable=images.is_cuda
        )
        self.graph: torch.cuda.CUDAGraph | None = None
        self.memory = self.prepare(recorded="recorded" in mode)

    def step(self) -> None:
        if self.graph is not None:
            self.graph.replay()
        else:
            self.optimizer.zero_grad(set_to_none=True)
            self.work()

    def work(self) -> None:
        with torch.autocast(self.images.device.type, torch.bfloat16):
            logits, *values = self.run(self.images) if self.weights else [self.run(self.images)]
            loss = cross_entropy(logits.float(), self.labels)
            for weight, value in zip(self.weights, values[0] if values else [], strict=True):
                loss = loss + weight * value.mean()
        loss.backward()
        self.optimizer.step()

    def steps(self) -> None:
        for _ in range(STEPS):
            self.step()

    def prepare(self, *, recorded: bool) -> int | None:
        """Warm up, record a graph if `recorded`, and return the bytes of a step beside weights and optimizer state."""
        on_gpu = self.images.is_cuda
        if not on_gpu:
            self.step()
            return None
        side = torch.cuda.Stream()  # a graph must be warmed up on another stream
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(5):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        if recorded:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.work()
        else:
            self.step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def close(self) -> None:
        self.attachment.__exit__(None, None, None)


def measure(
    batch_sizes: Sequence[int] = (80, 512),
    device: str = "cuda",
    *,
    model: str = "arvit_base",
    img_size: int = 256,
    modes: Sequence[str] = MODES,
    candidates: Sequence[str] = COMPARED,
    rounds: int = 20,
    targets: Mapping[str, float] | None = None,
    **options: Any,
) -> Iterator[Row]:
    """A row for every batch size, mode and candidate: milliseconds of a step, bytes, and both over those of the base."""
    where = torch.device(device)
    for batch in batch_sizes:
        images, labels = random_images(batch, img_size, where)
        for mode in modes:
            names = ("base", *candidates)
            prepared = {name: Candidate(model, *CANDIDATES[name], images, labels, mode, **options) for name in names}
            steps: dict[str, Callable[[], object]] = {name: each.steps for name, each in prepared.items()}
            timings = interleaved(steps, where, rounds=rounds, warmup=2)
            least = prepared["base"].memory
            for name, each in prepared.items():
                more: dict[str, Any] = {"target": (targets or {}).get(name), "higher": False, "memory": each.memory}
                if name != "base" and each.memory and least:
                    more["memory_ratio"] = each.memory / least
                how = f"{mode} training, batch {batch}, {img_size} px"
                value = 1e3 * timings[name].median / STEPS
                given = timings[name], "base", timings["base"]
                yield compared(f"{model}, {name}", how, value, "ms", *given, slower=True, **more)
                each.close()
            del prepared, steps
            forget()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m softbias.bench.regularization", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[80, 512])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="arvit_base")
    parser.add_argument("--img-size", type=int, default=256)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--candidates", nargs="+", choices=list(CANDIDATES), default=list(CANDIDATES))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, help="also write the rows, hardware and versions to this file")
    given = parser.parse_args(arguments)
    modes = given.modes if given.device.startswith("cuda") else [mode for mode in given.modes if "recorded" not in mode]
    candidates = [name for name in given.candidates if name != "base"]
    options = {"model": given.model, "img_size": given.img_size, "modes": modes, "candidates": candidates}
    rows = list(measure(given.batch, given.device, rounds=given.rounds, **options))
    print_rows(rows)
    about = describe_machine(given.device) | {"dtype": "bfloat16", "rounds": given.rounds, "steps_per_round": STEPS}
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        write_text(given.json, json.dumps({"environment": about, "rows": [row.to_dict() for row in rows]}, indent=2) + "\n")


if __name__ == "__main__":
    main()
