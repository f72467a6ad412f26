"""How long an all-reduce of two ranks on one GPU takes: `python scripts/one_gpu/all_reduce.py`.

The mean of 61 in one replay of a CUDA graph, rows of 4 x 576 numbers in 32 bits: what a target of
thirty layers waits for in a step.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CALLS = 61


def rank(number: int, meeting: str) -> None:
    """Be one of the two."""
    os.environ |= {"NCCL_HOSTID": str(os.getpid()), "NCCL_IB_DISABLE": "1"}
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    import torch
    from torch import distributed

    torch.cuda.set_device(0)
    distributed.init_process_group("nccl", init_method=meeting, rank=number, world_size=2)
    row = torch.zeros(4, 576, device="cuda")
    for _ in range(20):
        distributed.all_reduce(row)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            distributed.all_reduce(row)
    for _ in range(3):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
    if number == 0:
        sys.stdout.write(f"us an all-reduce: {(time.perf_counter() - begun) / CALLS * 1e6:.1f}\n")
        sys.stdout.flush()
    os._exit(0)


def main() -> int:
    """Start both ranks; return 1 if one failed."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__]
        meeting = f"file://{Path(folder) / 'meeting'}"
        ranks = [subprocess.Popen([*words, str(number), meeting]) for number in (0, 1)]
        try:
            return int(any(process.wait(timeout=100) for process in ranks))
        finally:
            for process in ranks:
                process.kill()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank(int(sys.argv[1]), sys.argv[2])
    sys.exit(main())
