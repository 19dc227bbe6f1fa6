"""Our kernels beside plain PyTorch on one GPU: `python -m softbias.bench.kernels [--cases …] [--sweep …]`.

Every candidate is captured as a CUDA graph and its replays are timed, interleaved, with device events: what a kernel of 50 µs
costs is then measured, and not the Python around it. Errors are relative, ‖found − exact‖ / ‖exact‖, on fresh random inputs,
against float64. `extra MB` is the peak memory of one step above its inputs.
"""

from __future__ import annotations

import argparse
import math
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from softbias.attention.positional import kernel_centers, place_weights
from softbias.bench.timing import interleaved, ratio
from softbias.kernels import distance, gated, masked
from softbias.kernels.tiles import Tiles

DEVICE = torch.device("cuda")
DTYPE = torch.bfloat16
CHECKED = 4  # images compared with float64
DISTANCE = ((80, 12, 256, 43), (512, 12, 256, 43))  # images, heads, tokens, channels: ARViT at 256 px
MASKED = ((256, 3, 197, 64), (512, 3, 65, 64))  # ibit_tiny at 224 px, and at 32 px with patches of 4
GATED = ((256, 4, 196, 48), (256, 16, 196, 48), (512, 4, 64, 48))  # convit_tiny and convit_base, and convit_tiny at 32 px
GATED_TILES = (  # size, other, depth, warps, stages
    (128, 128, 32, 8, 3),
    (128, 128, 32, 8, 4),
    (128, 128, 64, 8, 3),
    (128, 64, 32, 4, 4),
    (64, 128, 32, 4, 4),
    (64, 256, 32, 8, 3),
    (256, 64, 32, 8, 3),
    (256, 128, 32, 8, 3),
    (128, 256, 32, 8, 3),
)
SWEEP: dict[str, list[Any]] = {
    "distance": [Tiles(s, w, n) for s, w, n in ((16, 8, 2), (32, 8, 1), (32, 8, 2), (32, 8, 3), (64, 8, 2), (32, 16, 2))],
    "forward": [
        Tiles(s, w, n) for s, w, n in ((16, 8, 1), (16, 8, 2), (32, 4, 2), (32, 8, 1), (32, 8, 2), (32, 16, 2), (64, 8, 2))
    ],
    "backward": [Tiles(s, w, n) for s, w, n in ((16, 8, 1), (16, 8, 2), (32, 8, 1), (32, 8, 2), (32, 16, 2), (16, 16, 2))],
    "mask": [
        Tiles(s, w, n, o)
        for s, w, n, o in ((64, 4, 2, 64), (64, 8, 2, 64), (64, 8, 3, 64), (64, 8, 2, 128), (64, 8, 3, 128), (32, 4, 3, 128))
    ],
    "unroll": [Tiles(s, w, 1) for s, w in ((16, 1), (16, 4), (32, 2), (32, 4), (32, 8), (64, 8))],
    "factors": [Tiles(s, w, 1, o) for s, w, o in ((2048, 4, 8), (4096, 4, 8), (8192, 4, 8), (8192, 8, 8), (8192, 8, 16))],
    "mix": [Tiles(s, w, n, o, d) for s, o, d, w, n in GATED_TILES],
    "mix backward": [Tiles(s, w, n, o, d) for s, o, d, w, n in GATED_TILES],
    "pairs": [
        Tiles(s, w, n, o, d)
        for s, o, d, w, n in (
            (128, 128, 64, 8, 3),
            (128, 128, 64, 8, 4),
            (128, 128, 32, 8, 4),
            (128, 64, 64, 4, 4),
            (64, 64, 64, 4, 4),
            (64, 128, 64, 4, 3),
            (128, 256, 64, 8, 3),
        )
    ],
    "parts": [132, 264, 396, 528],
}


@dataclass
class Case:
    """One function with several forms: each takes the inputs and returns the output; weights make a scalar of it."""

    name: str
    forms: dict[str, Callable[..., Tensor]]
    inputs: tuple[Tensor, ...]  # with gradients
    exact: Callable[[int], tuple[Tensor, ...]] = field(repr=False)  # output and gradients for the first images, in float64
    weights: Tensor
    flops: tuple[float, float]  # forward, and forward with backward, at least
    megabytes: tuple[float, float]


def distance_case(images: int, heads: int, tokens: int, channels: int) -> Case:
    qkv = torch.randn(images, tokens, 3, heads, channels, device=DEVICE, dtype=DTYPE)
    q, k, _ = (x.detach().requires_grad_() for x in qkv.permute(2, 0, 3, 1, 4).unbind(0))
    penalty = torch.rand(tokens, tokens, device=DEVICE) * 2 - 1
    weights = torch.rand(images, device=DEVICE) / images
    halved, scale = penalty.half(), channels**-0.5

    def exact(few: int) -> tuple[Tensor, ...]:
        inputs = [x[:few].detach().double().requires_grad_() for x in (q, k)]
        value = distance.plain_attention_penalty(inputs[0], inputs[1], penalty.double(), scale)
        return value, *torch.autograd.grad((value * weights[:few].double()).sum(), inputs)

    product, array = 2 * images * heads * tokens**2 * channels, images * heads * tokens * channels * 2 / 1e6
    forms = {
        "kernel": lambda q, k: distance.attention_penalty(q, k, penalty, scale),
        "kernel, recomputing": lambda q, k: distance.attention_penalty(q, k, penalty, scale, recompute=True),
        "kernel, half penalty": lambda q, k: distance.attention_penalty(q, k, halved, scale),
        "plain": lambda q, k: distance.plain_attention_penalty(q, k, penalty, scale),
    }
    name = f"distance {images}x{heads}x{tokens}x{channels}"
    return Case(name, forms, (q, k), exact, weights, (product, 3 * product), (2 * array, 4 * array))


def masked_case(images: int, heads: int, tokens: int, channels: int) -> Case:
    """Factors of rank 9, with a class token."""
    qkv = torch.randn(images, tokens, 3, heads, channels, device=DEVICE, dtype=DTYPE)
    factors = torch.randn(2, heads, 9, tokens, device=DEVICE) / 3
    inputs = tuple(x.detach().requires_grad_() for x in (qkv, factors[0], factors[1]))
    weights = torch.randn(images, tokens, heads, channels, device=DEVICE, dtype=DTYPE)

    def exact(few: int) -> tuple[Tensor, ...]:
        """The factors' gradients need all images."""
        firsts: list[Tensor] = []
        totals = torch.zeros_like(factors, dtype=torch.float64)
        for part, seed in zip(qkv.split(few), weights.split(few), strict=True):
            exactly = tuple(x.detach().double().requires_grad_() for x in (part, *factors))
            output = plain(*exactly)
            of_part, *of_factors = torch.autograd.grad(output, exactly, seed.double())
            totals += torch.stack(of_factors)
            firsts = firsts or [output.detach(), of_part]
        return *firsts, *totals

    def kernel(qkv: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return masked.masked_attention(qkv, a, b, channels**-0.5, 1, "paper")

    def plain(qkv: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return masked.plain_masked_attention(qkv, a, b, channels**-0.5, 1, "paper")

    def full(qkv: Tensor, *_: Tensor) -> Tensor:
        """What DeiT does, for its time."""
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return scaled_dot_product_attention(q, k, v).transpose(1, 2)

    product, array = 2 * images * heads * tokens**2 * channels, images * heads * tokens * channels * 2 / 1e6
    forms: dict[str, Callable[..., Tensor]] = {"kernel": kernel, "plain": plain, "(full attention)": full}
    name = f"masked {images}x{heads}x{tokens}x{channels}"
    return Case(name, forms, inputs, exact, weights, (2 * product, 7 * product), (4 * array, 12 * array))


def gated_case(images: int, heads: int, tokens: int, channels: int) -> Case:
    side = math.isqrt(tokens)
    v = torch.randn(images, tokens, 3, heads, channels, device=DEVICE, dtype=DTYPE).permute(2, 0, 3, 1, 4)[2]
    anywhere = torch.randn(images, tokens, heads, channels, device=DEVICE, dtype=DTYPE).transpose(1, 2)
    weight = (place_weights(kernel_centers(heads), 1.0) + 0.1 * torch.randn(heads, 3)).to(DEVICE)
    bias, gate = torch.zeros(heads, device=DEVICE), torch.randn(heads, device=DEVICE)
    inputs = tuple(x.detach().requires_grad_() for x in (anywhere, v, weight, gate))
    weights = torch.randn(images, tokens, heads, channels, device=DEVICE, dtype=DTYPE)

    def exact(few: int) -> tuple[Tensor, ...]:
        """The gradients of the parameters need all images."""
        firsts: list[Tensor] = []
        totals = [torch.zeros_like(x, dtype=torch.float64) for x in inputs[2:]]
        for a, values, seed in zip(inputs[0].split(few), inputs[1].split(few), weights.split(few), strict=True):
            exactly = tuple(x.detach().double().requires_grad_() for x in (a, values, *inputs[2:]))
            output = plain(*exactly)
            *of_part, dweight, dgate = torch.autograd.grad(output, exactly, seed.double())
            for total, more in zip(totals, (dweight, dgate), strict=True):
                total += more
            firsts = firsts or [output.detach(), *of_part]
        return *firsts, *totals

    def kernel(anywhere: Tensor, v: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
        return gated.gated_mix(anywhere, v, weight, bias, gate, side, side)

    def plain(anywhere: Tensor, v: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
        return gated.plain_gated_mix(anywhere, v, weight, bias, gate, side, side)

    def matmul(anywhere: Tensor, v: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
        """The map repeated for every image, as broadcasting does it."""
        nearby = gated.place_map(weight, bias, side, side).to(v.dtype) @ v
        return torch.lerp(anywhere, nearby, gate.sigmoid().to(v.dtype)[:, None, None]).transpose(1, 2)

    product, array = 2 * images * heads * tokens**2 * channels, images * heads * tokens * channels * 2 / 1e6
    forms = {
        "kernel": kernel,
        "plain": plain,
        "matmul": matmul,
        "(no place)": lambda anywhere, *_: anywhere.transpose(1, 2).clone(),
    }
    name = f"gated {images}x{heads}x{tokens}x{channels}"
    return Case(name, forms, inputs, exact, weights, (product, 3 * product), (3 * array, 8 * array))


def step(case: Case, form: str, backward: bool) -> Callable[[], tuple[Tensor, ...]]:
    def run() -> tuple[Tensor, ...]:
        if not backward:
            with torch.no_grad():
                return (case.forms[form](*case.inputs),)
        output = case.forms[form](*case.inputs)
        return output, *torch.autograd.grad(output, case.inputs, case.weights.to(output.dtype), allow_unused=True)

    return run


def captured(run: Callable[[], Any]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def errors(case: Case, form: str) -> str:
    found = [x.clone() for x in step(case, form, True)()]
    again = step(case, form, True)()
    same = all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    parts = []
    for a, b in zip(found, case.exact(CHECKED), strict=True):
        parts.append(f"{float((a[: len(b)].double() - b).norm() / b.norm()):.1e}")
    return " ".join(parts) + ("" if same else " NOT THE SAME TWICE")


def extra_megabytes(run: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


@contextmanager
def reported(what: str) -> Iterator[None]:
    """A candidate that fails is named, and the others go on."""
    try:
        yield
    except Exception as error:
        print(f"{what}: FAILED {type(error).__name__}: {str(error)[:400]}")
        print("".join(traceback.format_exc().splitlines(keepends=True)[-6:]))


def measure(case: Case, rounds: int) -> None:
    print(f"\n{case.name}: form, fwd ms, fwd+bwd ms, speed-up fwd and fwd+bwd over plain, extra MB, TFLOP/s, GB/s, errors")
    graphs: dict[bool, dict[str, Callable[[], None]]] = {False: {}, True: {}}
    notes = {}
    for form in case.forms:
        with reported(f"{case.name}, {form}"):
            wrong = "" if form.startswith("(") else errors(case, form)
            notes[form] = extra_megabytes(step(case, form, True)), wrong
            ready = {backward: captured(step(case, form, backward)) for backward in graphs}
            for backward, replay in ready.items():
                graphs[backward][form] = replay
    times = {backward: interleaved(replays, DEVICE, rounds=rounds) for backward, replays in graphs.items()}
    for form, (memory, wrong) in notes.items():
        if form not in times[True]:
            continue
        forward, both = (times[backward][form] for backward in (False, True))
        gains = [ratio(t[form], t["plain"])[0] if "plain" in t else float("nan") for t in (times[False], times[True])]
        print(
            f"  {form:22} {forward.median * 1e3:7.3f} {both.median * 1e3:7.3f}  {gains[0]:5.2f} {gains[1]:5.2f}  {memory:7.0f}"
            f"  {case.flops[1] / both.median / 1e12:5.0f} {case.megabytes[1] / both.median / 1e3:5.0f}  {wrong}"
        )


def sweep(names: list[str], rounds: int) -> None:
    for name, module, attribute, shapes, build in (
        ("distance", distance, "TILES", DISTANCE[1:], distance_case),
        ("forward", masked, "FORWARD", MASKED, masked_case),
        ("backward", masked, "BACKWARD", MASKED, masked_case),
        ("mask", masked, "MASK", MASKED, masked_case),
        ("unroll", masked, "UNROLL", MASKED, masked_case),
        ("factors", masked, "FACTORS", MASKED, masked_case),
        ("mix", gated, "MIX", GATED, gated_case),
        ("mix backward", gated, "VALUES", GATED, gated_case),
        ("pairs", gated, "PAIRS", GATED, gated_case),
        ("parts", gated, "PROGRAMS", GATED, gated_case),
    ):
        if name not in names:
            continue
        usual = getattr(module, attribute)
        for shape in shapes:
            case, replays = build(*shape), {}
            for tiles in SWEEP[name]:
                setattr(module, attribute, {True: tiles, False: tiles} if name == "distance" else tiles)
                with reported(f"{name} {tiles}"):
                    for backward in (False, True) if name == "distance" else (name not in ("forward", "unroll", "mix"),):
                        replays[f"{tiles} {'with' if backward else 'without'} gradient"] = captured(
                            step(case, "kernel", backward)
                        )
            setattr(module, attribute, usual)
            print(f"\nsweep of {name}, {case.name}, usual {usual}")
            for form, timing in sorted(interleaved(replays, DEVICE, rounds=rounds).items(), key=lambda pair: pair[1].median):
                print(f"  {timing.median * 1e3:7.3f} ms  {form}")


def ceilings() -> None:
    a = torch.randn(8192, 8192, device=DEVICE, dtype=DTYPE)
    big = torch.randn(2**28, device=DEVICE)
    other = torch.empty_like(big)
    times = interleaved({"product": lambda: a @ a, "copy": lambda: other.copy_(big)}, DEVICE, rounds=15)
    product, copy = times["product"].median, times["copy"].median
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: product {2 * 8192**3 / product / 1e12:.0f} TFLOP/s, "
        f"copy {2 * 2**30 / copy / 1e9:.0f} GB/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", nargs="+", default=[], choices=list(SWEEP), help="time other tiles of these kernels as well")
    parser.add_argument("--cases", nargs="*", default=["distance", "masked", "gated"], choices=["distance", "masked", "gated"])
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.manual_seed(0)
    ceilings()
    cases = {"distance": (distance_case, DISTANCE), "masked": (masked_case, MASKED), "gated": (gated_case, GATED)}
    for name in options.cases:
        build, shapes = cases[name]
        for shape in shapes:
            with reported(str(shape)):
                measure(build(*shape), options.rounds)
            torch.cuda.empty_cache()
    sweep(options.sweep, options.rounds)


if __name__ == "__main__":
    main()
