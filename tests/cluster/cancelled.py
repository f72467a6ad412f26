"""A driver that gives trials up in the moment in which it submits them: `cancelled.py FOLDER`.

Prints how many of them ended with a record all the same.
"""

import os
import sys
from pathlib import Path

from sweeper.cluster import connect
from sweeper.engines.sglang import SGLang
from tests.cluster.stages import assignment

TRIALS = 30


def main() -> None:
    folder, study = Path(sys.argv[1]), f"cancelled-{os.getpid()}"
    executor = connect(
        SGLang(), study=study, gpus=1, simulated=True, address=None, folder=str(folder)
    )
    measured = 0
    try:
        for number in range(TRIALS):
            (slot,) = executor.free_slots()
            executor.submit(slot, assignment(study, number, folder, None))
            executor.cancel()
            while not (outcomes := executor.wait(0.5)):
                pass
            measured += outcomes[0].record is not None
        # A wish is of one trial; the slot runs the next.
        executor.submit(slot, assignment(study, TRIALS, folder, None))
        while not (outcomes := executor.wait(0.5)):
            pass
        assert outcomes[0].record is not None
    finally:
        executor.close()
    print("measured", measured, flush=True)


if __name__ == "__main__":
    main()
