"""SGLang plugin: PyTorch's operations in place of three kernels of SGLang's."""

import logging
import os

logger = logging.getLogger(__name__)


def register() -> None:
    """Replace them where `ONE_GPU_NATIVE` is 1."""
    if os.environ.get("ONE_GPU_NATIVE") != "1":
        return
    from sglang.srt.layers.activation import SiluAndMul
    from sglang.srt.layers.layernorm import RMSNorm
    from sglang.srt.layers.rotary_embedding import RotaryEmbedding

    for operation in (SiluAndMul, RMSNorm, RotaryEmbedding):
        operation.forward_cuda = operation.forward_native
        logger.info("one_gpu: PyTorch's %s", operation.__name__)
