"""Fused kernels in Triton: for attention that PyTorch's own cannot express, or computes slowly for short sequences, and for a
feed-forward with a depth-wise convolution.

`dispatch` is the way in: a layer asks it for the fused program that serves a call, and gets one or None. Each program has a
twin in plain PyTorch that computes the same. Modules named `*_program` hold the Triton code and are imported at the first
launch, so that nothing here needs Triton to be installed. With TRITON_INTERPRET=1 they run on CPU tensors, in Triton's
interpreter, for tests.

Shapes: B images, H heads, N tokens, D channels per head.
"""
