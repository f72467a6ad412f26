"""A driver whose slot is stopped in the middle of a trial, as a script: `hung.py FOLDER`.

Prints `lost WHY` when the trial is given up and `next STATE` when the slot has run another.
"""

import os
import signal
import sys
import time
from pathlib import Path

#: Before Ray is imported: loopback only, no token to share.
os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_AUTH_MODE="disabled")

import ray

from sweeper.cluster.nodes import Shape
from sweeper.cluster.ray_executor import RayExecutor
from sweeper.engines.sglang import SGLang
from tests.cluster.stages import assignment, is_in


def main() -> None:
    folder = Path(sys.argv[1])
    executor = RayExecutor(
        SGLang(),
        study="hung",
        shape=Shape(gpus=1),
        simulated=True,
        address=None,
        folder=str(folder),
        silent_s=3.0,
    )
    try:
        given = assignment("hung", 0, folder, "serving")
        executor.submit("slot-0", given)
        while not is_in("serving", folder / given.log, executor.status()["slot-0"].stage):
            time.sleep(0.1)
        held = executor._slots["slot-0"]
        pid = ray.get(held.actor.__ray_call__.remote(lambda _: os.getpid()))
        os.kill(pid, signal.SIGSTOP)
        while not (outcomes := executor.wait(0.5)):
            executor.status()
        print(f"lost {outcomes[0].lost}", flush=True)
        while not (free := executor.free_slots()):
            time.sleep(0.1)
        executor.submit(free[0], assignment("hung", 1, folder, None))
        while not (outcomes := executor.wait(0.5)):
            executor.status()
        record = outcomes[0].record
        print(f"next {record.state if record else outcomes[0].lost}", flush=True)
    finally:
        executor.close()


if __name__ == "__main__":
    main()
