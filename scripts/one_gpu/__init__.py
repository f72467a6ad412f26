"""Several tensor-parallel ranks of an SGLang server on one GPU, for tests of correctness.

NCCL refuses two ranks on one GPU of a host, and SGLang gives each rank a GPU of its own. Put this
folder on the servers' PYTHONPATH and set

    ONE_GPU=1                                   each process says that it is a host of its own, and
                                                that all ranks' GPUs are the first (sitecustomize)
    SGLANG_ONE_VISIBLE_DEVICE_PER_PROCESS=1     each rank sees the one GPU that it is given
    NCCL_SOCKET_IFNAME=lo  NCCL_IB_DISABLE=1    NCCL's way between "hosts"
    ONE_GPU_NATIVE=1                            PyTorch's operations in place of three kernels, for
                                                --dtype float32 (native_ops, an SGLang plugin)

with `--disable-custom-all-reduce`. Ranks wait for each other on the GPU, so run CUDA's MPS, or each
all-reduce waits for a time slice (`python scripts/one_gpu/all_reduce.py` with and without shows it).
Fourteen ranks at once worked on an H200, sixteen in two servers of eight did not:
docs/evidence/h200-ranks.md. Speeds are not those of several GPUs.
"""
