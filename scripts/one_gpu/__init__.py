"""Several tensor-parallel ranks of an SGLang server on one GPU, for tests of correctness.

NCCL refuses two ranks on one GPU of a host, and SGLang gives each rank a GPU of its own. Put this
folder on the servers' PYTHONPATH and set

    ONE_GPU=1                                   each process says that it is a host of its own, and
                                                that all ranks' GPUs are the first (sitecustomize)
    SGLANG_ONE_VISIBLE_DEVICE_PER_PROCESS=1     each rank sees the one GPU that it is given
    NCCL_SOCKET_IFNAME=lo  NCCL_IB_DISABLE=1    NCCL's way between "hosts"
    ONE_GPU_NATIVE=1                            PyTorch in place of kernels made for 16 bits
                                                (native_ops, an SGLang plugin), for --dtype float32

with `--disable-custom-all-reduce`. Ranks wait for each other on the GPU, so run CUDA's MPS, or each
all-reduce waits for a time slice (`python scripts/one_gpu/all_reduce.py` shows both). MPS takes some
sixteen ranks at once. Speeds say nothing of several GPUs; docs/evidence/h200-ranks.md says what does.
"""
