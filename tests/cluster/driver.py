"""A driver to be killed, as a script: `driver.py FOLDER STUDY STAGE...`; one server in each stage.

Prints `raylet PID` and `held` once every server is in its stage. A line on its input ends Ray. If
Ray itself is lost, one short trial is run on what the executor makes of it: `next STATE`.
"""

import itertools
import os
import sys
import threading
from pathlib import Path

from sweeper.cluster import Assignment, Outcome, connect
from sweeper.engines.sglang import SGLang
from tests.cluster.stages import assignment, is_in

#: Given one after another until as many as there are slots are in their stages at once.
_MOST_TRIALS = 12


def main() -> None:
    folder, study, *stages = Path(sys.argv[1]), sys.argv[2], *sys.argv[3:]
    executor = connect(
        SGLang(),
        study=study,
        gpus=1,
        simulated=True,
        address=None,
        folder=str(folder),
        slots_per_node=len(stages),
    )
    import ray

    raylet: int = ray.get(ray.remote(_parent).remote())
    print(f"raylet {raylet}", flush=True)
    stage_of = dict(zip(executor.free_slots(), stages, strict=True))
    numbers = itertools.count()
    given: dict[str, Assignment] = {}
    ended: list[Outcome] = []
    waiting = set(stage_of)
    while waiting:
        # All are free at first; later one whose trial a busy machine ended before its time.
        for slot in executor.free_slots():
            if (number := next(numbers)) > _MOST_TRIALS:
                sys.exit(f"not all came into their stages: {ended}")
            given[slot] = assignment(study, number, folder, stage_of[slot], stop_s=960.0)
            executor.submit(slot, given[slot])
            waiting.add(slot)
        ended += executor.wait(0.05)
        now = executor.status()
        waiting = {
            slot
            for slot in waiting
            if slot not in now
            or not is_in(stage_of[slot], folder / given[slot].log, now[slot].stage)
        }
    print("held", flush=True)

    def end_on_input() -> None:
        if sys.stdin.readline():
            executor.close()
            print("closed", flush=True)

    threading.Thread(target=end_on_input, daemon=True).start()
    while not (outcomes := executor.wait(0.5)):
        executor.status()
    print(f"lost {outcomes[0].lost}", flush=True)
    slot = executor.free_slots()[0]
    executor.submit(slot, assignment(study, 99, folder, None))
    while not (records := [o.record for o in executor.wait(0.5) if o.record is not None]):
        pass
    print(records[0].failure, file=sys.stderr, flush=True)
    print(f"next {records[0].state}", flush=True)
    executor.close()


def _parent() -> int:
    return os.getppid()


if __name__ == "__main__":
    main()
