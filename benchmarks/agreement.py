"""What the agreement of draft TP adds to a round: `PYTHON_WITH_TORCH -m benchmarks.agreement`.

Ranks, one for each GPU or two on the CPU (or with scripts/one_gpu two on one GPU), settle rounds of
a chain of three steps, and in turn do nothing but the all-gather of rows of the same size, which is
the limit:

    us      microseconds of a round, the median over blocks of rounds that end with the GPU idle
    ratio   by the bare all-gather's
    ops     operations of PyTorch that a round calls; each takes the processor's time, and a small
            model waits for that

Every tenth round the ranks draft otherwise than rank 0, and what was corrected is checked; one rank
has nobody to agree with.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

STEPS = 3
BLOCK = 50
EVERY = 10


def loaded(path: Path) -> ModuleType:
    """Return the module of an `agreement.py`, this project's or another version of it."""
    spec = importlib.util.spec_from_file_location(f"agreement_{abs(hash(path))}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def one_round(requests: int, shift: int, device: Any) -> list[Any]:
    """Return lengths, last tokens, parents, order and tokens of a round; `shift` moves tokens."""
    import torch

    def whole(width: int) -> Any:
        return torch.arange(width, device=device).repeat(requests, 1)

    lengths = torch.arange(100, 100 + requests, device=device)
    last = torch.arange(requests, dtype=torch.int32, device=device)
    return [lengths, last, whole(STEPS) - 1, whole(STEPS), whole(STEPS) + shift]


def rank(
    number: int, size: int, options: argparse.Namespace, versions: Sequence[tuple[str, Path]]
) -> None:
    """Be one rank; rank 0 prints a JSON object of microseconds and operations by kind."""
    import torch
    from torch import distributed
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):  # type: ignore[misc] # torch is not installed here
        calls = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            Counting.calls += 1
            return func(*args, **(kwargs or {}))

    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(number % gpus)
    device = torch.device("cuda" if gpus else "cpu")
    backend = "nccl" if gpus else "gloo"
    distributed.init_process_group(
        backend, init_method=options.meeting, rank=number, world_size=size
    )
    same = one_round(options.requests, 0, device)
    other = one_round(options.requests, 1000 * number, device)
    row = torch.zeros(1 + options.requests * (2 + 3 * STEPS), dtype=torch.int64, device=device)
    rows = row.new_empty(size * row.numel())
    tellers = {
        name: loaded(path).Agreement(
            distributed.group.WORLD, most_requests=options.requests, strict=False
        )
        for name, path in versions
    }

    def gather(_: int) -> None:
        distributed.all_gather_into_tensor(rows, row)

    def settling(teller: Any) -> Callable[[int], None]:
        return lambda i: teller.settle(*(other if i % EVERY == 0 else same))

    kinds = {
        "all-gather": gather,
        **{name: settling(teller) for name, teller in tellers.items()},
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for block in range(options.blocks + 1):
        for kind, once in kinds.items():
            distributed.barrier()
            if gpus:
                torch.cuda.synchronize()
            begun = time.perf_counter()
            for i in range(BLOCK):
                once(i)
            if gpus:
                torch.cuda.synchronize()
            if block:  # the first warms up
                times[kind].append((time.perf_counter() - begun) / BLOCK * 1e6)
    calls = {}
    for kind, once in kinds.items():
        with Counting():
            Counting.calls = 0
            once(1)
        calls[kind] = Counting.calls
    # The look at a round may come two rounds later.
    for teller in tellers.values():
        for _ in range(2):
            teller.settle(*same)
        expected = (options.blocks + 1) * BLOCK // EVERY if size > 1 else 0
        assert teller.corrected == expected, (teller.corrected, expected)
    if number == 0:
        told = {kind: (statistics.median(times[kind]), calls[kind]) for kind in kinds}
        name = torch.cuda.get_device_name() if gpus else "CPU"
        print(json.dumps({"on": name, "ranks": size, "kinds": told}), flush=True)
    distributed.barrier()
    # A thread of gloo that is still at work when Python ends would abort the process.
    os._exit(0)


def measured(size: int, words: Sequence[str]) -> dict[str, Any]:
    """Run a group of ranks and return what rank 0 printed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.agreement", *words]
        command += ["--ranks", str(size)]
        ranks = [
            subprocess.Popen(
                [*command, "--rank", str(number), "--meeting", f"file://{folder}/meeting"],
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(size)
        ]
        # One that failed leaves the others waiting for it.
        while any(process.poll() is None for process in ranks):
            if any(process.returncode for process in ranks):
                break
            time.sleep(0.1)
        for process in ranks:
            process.kill()
        out = [process.communicate()[0] for process in ranks]
    if any(process.returncode for process in ranks):
        sys.exit("a rank failed")
    found: dict[str, Any] = json.loads(out[0].splitlines()[-1])
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    own = Path(__file__).parents[1] / "sweeper" / "draft_tp" / "agreement.py"
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=1, help="of a round (1)")
    parser.add_argument("--blocks", type=int, default=40, help=f"of {BLOCK} rounds each (40)")
    parser.add_argument("--ranks", type=int, help="default: the GPUs, or two on the CPU")
    parser.add_argument("--beside", type=Path, help="another agreement.py to compare with")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    versions = [("settle", own), *([("beside", options.beside)] if options.beside else [])]
    if options.rank is not None:
        rank(options.rank, options.ranks, options, versions)
        return
    import torch

    size = options.ranks or torch.cuda.device_count() or 2
    words = [f"--requests={options.requests}", f"--blocks={options.blocks}"]
    words += [f"--beside={options.beside}"] if options.beside else []
    found = measured(size, words)
    print(f"{found['ranks']} ranks on {found['on']}, {options.requests} requests a round")
    print("kind        us      ratio  ops")
    limit = found["kinds"]["all-gather"][0]
    for kind, (us, calls) in found["kinds"].items():
        print(f"{kind:<10}  {us:<6.1f}  {us / limit:<5.2f}  {calls}")


if __name__ == "__main__":
    main()
