"""A driver to be killed, as a script: `driver.py FOLDER STUDY STAGE...`; one server in each stage.

Prints `raylet PID` and `held` once every server is in its stage. A line on its input ends Ray. If
Ray itself is lost, one short trial is run on what the executor makes of it: `next STATE`.
"""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from sweeper.cluster import Assignment, connect
from sweeper.engines.sglang import SGLang
from tests.cluster.stages import assignment, is_in


def main() -> None:
    folder, study, *stages = Path(sys.argv[1]), sys.argv[2], *sys.argv[3:]
    executor = connect(
        SGLang(), study=study, gpus=1, simulated=True, address=None, folder=str(folder)
    )
    import ray

    from sweeper.cluster.slot import Leftovers, Owner, Slot
    from sweeper.cluster.trial import host_name
    from sweeper.serving import ProcessId

    held: list[tuple[str, Assignment]] = []
    actors: list[Any] = []
    for number, stage in enumerate(stages):
        given = assignment(study, number, folder, stage)
        held.append((stage, given))
        if number == 0:
            executor.submit("slot-0", given)
            continue
        name = f"more-{number}"
        actor: Any = (
            ray.remote(Slot)
            .options(num_cpus=0, max_concurrency=4)
            .remote(
                Owner(
                    slot=name,
                    engine=SGLang(),
                    leftovers=Leftovers(mark=f"sweeper/{study}/none/{name}/"),
                    driver=(host_name(), ProcessId.of(os.getpid())),
                    gpu_name="simulated",
                )
            )
        )
        actor.run.remote(given)
        actors.append(actor)
    _, raylet = ray.get(ray.remote(_parent).remote())
    print(f"raylet {raylet}", flush=True)
    waiting = list(range(len(held)))
    while waiting:
        time.sleep(0.05)
        now = [executor.status()["slot-0"], *ray.get([a.status.remote() for a in actors])]
        waiting = [
            i for i in waiting if not is_in(held[i][0], folder / held[i][1].log, now[i].stage)
        ]
    print("held", flush=True)

    def end_on_input() -> None:
        if sys.stdin.readline():
            executor.close()
            print("closed", flush=True)

    threading.Thread(target=end_on_input, daemon=True).start()
    while not (outcomes := executor.wait(0.5)):
        executor.status()
    print(f"lost {outcomes[0].lost}", flush=True)
    (slot,) = executor.free_slots()
    executor.submit(slot, assignment(study, 99, folder, None))
    while not (outcomes := executor.wait(0.5)):
        pass
    record = outcomes[0].record
    print(f"next {record.state if record else outcomes[0].lost}", flush=True)
    executor.close()


def _parent() -> tuple[int, int]:
    return os.getpid(), os.getppid()


if __name__ == "__main__":
    main()
