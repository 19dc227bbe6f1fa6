"""Our kernels beside plain PyTorch on one GPU: `python -m softbias.bench.kernels [--cases …] [--sweep …]`.

Every candidate is captured as a CUDA graph and its replays are timed, interleaved, with device events: what a kernel of 50 µs
costs is then measured, and not the Python around it. Errors are relative, ‖found − exact‖ / ‖exact‖, on fresh random inputs,
against float64. `extra MB` is the peak memory of one step above its inputs.
"""
