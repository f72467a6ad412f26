"""A driver whose Ray is lost and started anew, and which then gets SIGTERM: `signals.py FOLDER`.

Prints how many wishes to stop its own handler has counted.
"""

import os
import signal
import sys
import time
from pathlib import Path

from sweeper.cluster import connect
from sweeper.engines.sglang import SGLang
from sweeper.terminal.interrupt import Interrupt
from tests.cluster.stages import assignment


def main() -> None:
    folder, study = Path(sys.argv[1]), f"signals-{os.getpid()}"
    interrupt = Interrupt()
    interrupt.install()
    executor = connect(
        SGLang(), study=study, gpus=1, simulated=True, address=None, folder=str(folder)
    )
    import ray

    try:
        raylet: int = ray.get(ray.remote(_parent).remote())
        (slot,) = executor.free_slots()
        executor.submit(slot, assignment(study, 0, folder, "loading"))
        os.kill(raylet, signal.SIGKILL)
        while not executor.wait(0.5):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
        print(interrupt.count, interrupt.status, flush=True)
    finally:
        executor.close()


def _parent() -> int:
    return os.getppid()


if __name__ == "__main__":
    main()
