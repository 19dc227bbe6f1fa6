"""Triton's compiler needs no GPU. It shows what the interpreter cannot: types of products, shared memory, registers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

from softbias.bench.kernels import SWEEPS
from softbias.kernels import dispatch, distance, launching, triton_api
from softbias.kernels.depthwise import DepthwiseGelu
from softbias.kernels.gated import GatedMix
from softbias.kernels.launching import Program
from softbias.kernels.masked import MaskedAttention
from softbias.kernels.short_seq import LONGEST as SHORT_SEQ
from softbias.kernels.short_seq import GatedShortSeqAttention, ShortSeqAttention

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not triton_api.INSTALLED, reason="Triton is not installed")]

SHARED = 227 * 1024  # bytes that a program may have on Hopper
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}


@pytest.fixture
def launches(monkeypatch) -> list:
    """The launches, with tensors on the meta device."""
    made: list = []

    def record(program, *tensors) -> None:
        made.append((program.kernel, program.tiles, (*tensors, *program.numbers), program.constants))

    monkeypatch.setattr(Program, "__call__", record)
    return made


def compile_for_card(kernel, tiles, arguments, constants, number="fp32", card=90):
    """As a launch would specialize it, for Hopper as a rule: numbers and addresses divisible by 16, and ones."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, fixed, hints = {}, dict(constants), {}
    for index, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        value = arguments[index]
        if isinstance(value, torch.Tensor):
            signature[name], multiple = TYPES[value.dtype], value.storage_offset() * value.element_size()
        elif isinstance(value, float):
            signature[name], multiple = number, 1
        elif value == 1:
            signature[name], fixed[name], multiple = "constexpr", 1, 1
        else:
            signature[name], multiple = "i32", value
        if multiple % 16 == 0:
            hints[index,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, fixed, hints)
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    return triton.compile(source, target=GPUTarget("cuda", card, 32), options=options)


def stack_bytes(compiled, folder: Path) -> int:
    """The bytes that did not fit into registers."""
    import triton

    file = folder / "kernel.cubin"
    file.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    usage = subprocess.run([tool, "--dump-resource-usage", file], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"STACK:(\d+)", usage)[1])


def require_fit(launches: list, folder: Path) -> None:
    assert launches
    for launch in launches:
        compiled = compile_for_card(*launch)
        assert compiled.metadata.shared <= SHARED, launch
        assert "wgmma" in compiled.asm["ptx"], launch
        assert stack_bytes(compiled, folder) == 0, launch


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def launch_masked(kernel: MaskedAttention, qkv, a, b, roll: str = "paper") -> None:
    out, norms, masks = kernel.forward(qkv, a, b, 0.1, 1, roll)
    kernel.backward(torch.empty_like(out), qkv, a, b, out, norms, masks, 0.1, 1, roll)


def launch_gated(
    kernel: GatedMix, images: int, heads: int, height: int, width: int, channels: int, dtype=torch.bfloat16
) -> None:
    tokens = height * width
    v = empty(images, tokens, 3, heads, channels, dtype=dtype).permute(2, 0, 3, 1, 4)[2]
    content_out = empty(images, tokens, heads, channels, dtype=dtype).transpose(1, 2)
    parameters = [empty(*size, dtype=torch.float32) for size in ((heads, 3), (heads,), (heads,))]
    out, maps = kernel.forward(content_out, v, *parameters, height, width)
    kernel.backward(torch.empty_like(out), content_out, v, maps, *parameters, width)


@pytest.mark.parametrize("shape", [(512, 256, 12, 43), (8, 197, 3, 64), (8, 64, 4, 48)], ids=str)
def test_the_penalty_fits_into_registers_and_shared_memory(launches, tmp_path, shape) -> None:
    images, tokens, heads, channels = shape
    q, k, _ = empty(images, tokens, 3, heads, channels).permute(2, 0, 3, 1, 4).unbind(0)
    penalty = empty(tokens, tokens, dtype=torch.float32)
    distance.run(q, k, penalty, 0.1, gradient=False)
    distance.run(q, k, penalty, 0.1, gradient=True)
    distance.run(q, k, penalty, 0.1, gradient=True, weights=empty(images, dtype=torch.float32))
    require_fit(launches, tmp_path)


@pytest.mark.parametrize(
    ("shape", "rank", "roll", "dtype"),
    [
        ((256, 197, 3, 64), 9, "paper", torch.bfloat16),
        ((256, 197, 3, 64), 9, "released", torch.float16),
        ((512, 65, 3, 64), 9, "paper", torch.bfloat16),
        ((512, 65, 3, 64), 9, "none", torch.float16),
        ((8, 256, 4, 48), 33, "paper", torch.bfloat16),
    ],
    ids=str,
)
def test_masked_attention_fits_into_registers_and_shared_memory(launches, tmp_path, shape, rank, roll, dtype) -> None:
    images, tokens, heads, channels = shape
    qkv = empty(images, tokens, 3, heads, channels, dtype=dtype)
    a, b = (empty(heads, rank, tokens, dtype=torch.float32) for _ in range(2))
    launch_masked(MaskedAttention(), qkv, a, b, roll)
    unroll, *products, factors = launches
    names = [launch[0].__name__ for launch in products]
    if tokens <= SHORT_SEQ:
        assert names == ["forward_program", "short_seq_backward_program"]
        require_fit(products[:1], tmp_path)
        compiled = compile_for_card(*products[1])
        assert "wgmma" in compiled.asm["ptx"] and compiled.metadata.shared <= SHARED // 2  # two on a multiprocessor
        assert stack_bytes(compiled, tmp_path) < 512  # forms without a stack read M at every image, and were slower
    else:
        assert names == ["forward_program", "backward_program", "mask_program"]
        require_fit(products, tmp_path)
    for launch in products:  # torch.compile makes doubles of numbers
        assert "mul.f64" not in compile_for_card(*launch, number="fp64").asm["ptx"]
    for launch in (unroll, factors):
        compiled = compile_for_card(*launch)
        assert stack_bytes(compiled, tmp_path) == 0 and compiled.metadata.shared <= SHARED, launch
        wide = "ld.global.v4.b32" if launch[0].__name__ == "factors_program" else "st.global.v4.b32"
        assert wide in compiled.asm["ptx"], launch


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "shape", [(256, 4, 14, 14, 48), (256, 16, 14, 14, 48), (512, 4, 8, 8, 48), (64, 4, 14, 14, 56)], ids=str
)
def test_the_gated_mixture_fits_and_reads_eight_channels_at_once(launches, tmp_path, shape, dtype) -> None:
    launch_gated(GatedMix(), *shape, dtype=dtype)
    assert len(launches) == 6
    products = [launch for launch in launches if "DEPTH" in launch[3]]
    require_fit(products, tmp_path)
    for launch in products:
        ptx = compile_for_card(*launch).asm["ptx"]
        copied = set(re.findall(r"cp\.async\.\w+\.shared\.global[^;]*, (0x\w+|\d+), ", ptx))
        assert copied and {int(size, 0) for size in copied} == {16}, launch
        assert not re.search(r"(ld|st)\.global\.(v2\.)?b16", ptx), launch
        assert "st.global.v4.b32" in ptx, launch
    for launch in launches:
        compiled = compile_for_card(*launch)
        assert stack_bytes(compiled, tmp_path) == 0 and compiled.metadata.shared <= SHARED, launch


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(512, 65, 3, 64), (512, 64, 4, 48), (512, 65, 3, 48)], ids=str)
def test_attention_with_short_sequences_fits_and_reads_eight_channels_at_once(launches, tmp_path, shape, dtype) -> None:
    images, tokens, heads, channels = shape
    qkv = empty(images, tokens, 3, heads, channels, dtype=dtype)
    kernel = ShortSeqAttention()
    kernel.backward(kernel.forward(qkv, 0.1), qkv, 0.1)
    assert len(launches) == 2
    require_fit(launches, tmp_path)
    for launch in launches:
        ptx = compile_for_card(*launch).asm["ptx"]
        assert "ld.global.v4.b32" in ptx and "st.global.v4.b32" in ptx, launch
        assert "mul.f64" not in compile_for_card(*launch, number="fp64").asm["ptx"]  # torch.compile makes doubles of numbers


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gated_attention_with_short_sequences_fits(launches, tmp_path, dtype) -> None:
    qkv = empty(512, 64, 3, 4, 48, dtype=dtype)
    parameters = [empty(*size, dtype=torch.float32) for size in ((4, 3), (4,), (4,))]
    kernel = GatedShortSeqAttention()
    kernel.backward(kernel.forward(qkv, *parameters, 0.1, 8), qkv, *parameters, 0.1, 8)
    assert len(launches) == 3
    require_fit(launches[:2], tmp_path)
    assert all("mul.f64" not in compile_for_card(*launch, number="fp64").asm["ptx"] for launch in launches)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("height", "width", "channels"), [(8, 8, 768), (14, 14, 1536)])
def test_the_depthwise_convolution_stays_in_registers(launches, tmp_path, height, width, channels, dtype) -> None:
    x = empty(64, height * width, channels, dtype=dtype)
    parameters = [empty(*size, dtype=torch.float32) for size in ((channels,), (channels, 1, 3, 3), (channels,))]
    kernel = DepthwiseGelu()
    out = kernel.forward(x, *parameters, height, width)
    kernel.backward(out, x, *parameters, height, width)
    assert len(launches) == 3
    for launch in launches:
        compiled = compile_for_card(*launch)
        assert stack_bytes(compiled, tmp_path) == 0, launch
        assert "shfl" not in compiled.asm["ptx"] or launch[0].__name__ == "parameters_program"
    assert all(compile_for_card(*launch).metadata.shared == 0 for launch in launches[:2])


@pytest.mark.parametrize(("name", "program"), [("mix", 1), ("values", 2), ("pairs", 3)])
def test_every_tile_that_the_benchmark_tries_for_it_fits(launches, tmp_path, name, program) -> None:
    for tiles in SWEEPS[f"gated.{name}"]:
        launch_gated(GatedMix(**{name: tiles}), 256, 4, 14, 14, 48)
    require_fit(launches[program::6], tmp_path)


@pytest.mark.parametrize(("name", "program"), [("unroll", 0), ("factors", 4)])
def test_every_tile_that_the_benchmark_tries_for_a_mask_fits(launches, tmp_path, name, program) -> None:
    qkv, a, b = empty(256, 197, 3, 3, 64), *(empty(3, 9, 197, dtype=torch.float32) for _ in range(2))
    for tiles in SWEEPS[f"masked.{name}"]:
        launch_masked(MaskedAttention(**{name: tiles}), qkv, a, b)
    for launch in launches[program::5]:
        compiled = compile_for_card(*launch)
        assert stack_bytes(compiled, tmp_path) == 0 and compiled.metadata.shared <= SHARED, launch


@pytest.mark.parametrize("card", [86, 89, 120])
def test_kernels_fit_into_the_shared_memory_of_a_geforce(launches, monkeypatch, card) -> None:
    """The launches of a layer of the longest and widest size that is taken there, forward and backward."""
    monkeypatch.setattr(dispatch, "usable", lambda *given, **limits: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: divmod(card, 10))
    monkeypatch.setattr(launching, "_large_smem", {})
    assert not dispatch.masked_attention(empty(8, 129, 3, 2, 64)) and dispatch.masked_attention(empty(8, 128, 3, 2, 64))
    short, gated_short = ShortSeqAttention(), GatedShortSeqAttention()
    for tokens in (64, 65, 128):
        qkv, a, b = empty(8, tokens, 3, 2, 64), *(empty(2, 9, tokens, dtype=torch.float32) for _ in range(2))
        launch_masked(MaskedAttention(), qkv, a, b)
        if tokens <= SHORT_SEQ:
            short.backward(short.forward(qkv, 0.1), qkv, 0.1)
    parameters = [empty(*size, dtype=torch.float32) for size in ((4, 3), (4,), (4,))]
    qkv = empty(8, 64, 3, 4, 64)
    gated_short.backward(gated_short.forward(qkv, *parameters, 0.1, 8), qkv, *parameters, 0.1, 8)
    for side, channels in ((14, 48), (16, 128), (32, 64)):
        launch_gated(GatedMix(), 8, 4, side, side, channels)
    q, k, _ = empty(8, 256, 3, 2, 64).permute(2, 0, 3, 1, 4).unbind(0)
    for gradient in (False, True):
        strides = q.stride(), k.stride(), q.stride()
        distance.plan(q.shape, *strides, 0.1, gradient, False, False, distance.TILES)(
            q, k, *(empty(1, dtype=torch.float32) for _ in range(3)), q, k
        )
    for launch in launches:
        assert compile_for_card(*launch, card=card).metadata.shared <= 99 * 1024, launch
