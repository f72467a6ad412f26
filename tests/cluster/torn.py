"""A server over two nodes whose other rank's owner goes away at the end: `torn.py ADDRESS FOLDER`.

The owner is killed while the first rank stops, when all has been measured. Prints what came of
the trial, and of the one after it.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from sweeper.cluster import Assignment, Outcome, connect
from sweeper.engines.sglang import SGLang
from sweeper.errors import Stage
from tests.cluster.stages import assignment, wait_for

STUDY = "torn-late"


def main() -> None:
    address, folder = sys.argv[1], Path(sys.argv[2])
    executor = connect(
        SGLang(),
        study=STUDY,
        gpus=16,
        nodes=2,
        simulated=True,
        address=address,
        folder=str(folder),
    )
    import ray

    def wide(number: int, stage: str | None) -> Assignment:
        given = assignment(STUDY, number, folder, stage, stop_s=40.0)
        launch = replace(given.trial.launch, gpus=16, flags={"tp-size": 16})
        return replace(given, trial=replace(given.trial, launch=launch))

    def outcome() -> Outcome:
        end = time.monotonic() + 100.0
        while not (found := executor.wait(0.2)):
            assert time.monotonic() < end
        return found[0]

    (slot,) = executor.free_slots()
    executor.submit(slot, wide(0, "stopping"))
    wait_for(lambda: executor.status()[slot].stage is Stage.SHUTDOWN, "the stop", 100.0)
    (other,) = [n for n in ray.util.list_named_actors() if n.endswith("rank 1")]
    ray.kill(ray.get_actor(other, namespace="sweeper"))
    first = outcome()
    executor.submit(slot, wide(1, None))
    second = outcome()
    executor.submit(executor.free_slots()[0], wide(2, None))
    third = outcome()
    print(json.dumps([told(o) for o in (first, second, third)]))
    executor.close()


def told(outcome: Outcome) -> list[object]:
    record = outcome.record
    if record is None:
        return ["lost", str(outcome.lost)]
    return [record.state, record.reason, len(record.measurements)]


if __name__ == "__main__":
    main()
