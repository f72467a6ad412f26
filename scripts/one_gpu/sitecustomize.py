"""All ranks on one GPU, each a host of its own for NCCL; Python imports this when it starts.

The launching process sees a list of devices of which CUDA knows the first only. SGLang gives rank n
the n-th of the list, and a rank that was given another than the first takes the first too.
"""

import os

#: The largest tensor parallelism.
RANKS = 8
#: No machine has a GPU of this number.
UNKNOWN = 64

if os.environ.get("ONE_GPU") == "1":
    given = os.environ.get("CUDA_VISIBLE_DEVICES") or "0"
    others = [str(UNKNOWN + rank) for rank in range(1, RANKS)]
    if "ONE_GPU_ID" not in os.environ:
        os.environ["ONE_GPU_ID"] = given.split(",")[0]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join([os.environ["ONE_GPU_ID"], *others])
    elif given in others:
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["ONE_GPU_ID"]
    os.environ["NCCL_HOSTID"] = str(os.getpid())
