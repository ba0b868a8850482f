"""Choice among the kernels that PyTorch has for attention."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_cudnn_attention() -> Iterator[None]:
    """Compute attention without the kernels of cuDNN; a context, or a decorator of a function.

    PyTorch may choose them on an H100 and newer GPUs. They are prepared anew for each shape, which takes up to some
    tenths of a second (pytorch/pytorch#155958, sgl-project/sglang#4650), and turns and micro-batches have ever new
    shapes; and they can end with an error, as in an evaluation of ``TrlEnv/ToolUse-v0`` with PyTorch 2.11 on an H100.
    vLLM turns them off in its process, too.

    >>> import torch
    >>> with no_cudnn_attention():
    ...     torch.backends.cuda.cudnn_sdp_enabled()
    False
    """
    from torch.backends import cuda

    before = cuda.cudnn_sdp_enabled()
    cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        cuda.enable_cudnn_sdp(before)
