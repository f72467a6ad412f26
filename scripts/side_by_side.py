"""Start servers for many settings of a study on the same GPUs at once, and measure them in turn.

    python -m scripts.side_by_side SPACE --all --at-once 24 --seconds 1500 --flag sleep-on-idle \\
        --flag max-total-tokens=30000 --flag mem-fraction-static=0.95 \\
        --env SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK=0

A sweep gives each server its GPUs alone, one after another. Where the model is small and the
machine is lent by the minute, that spends most of the loan on starts. Here a batch of servers is
started at once, the baseline's among them; then one after another is measured while the others
are idle, as many rounds as `--rounds` says, and the next batch follows while there is time. With
`--restart` each round is measured on servers that were started for it.
Servers of fewer GPUs than there are take them by turns.

`--flag` and `--env` are for every server. The KV pools must fit on the GPUs side by side; what the
others take meanwhile looks to SGLang like memory that its weights took and, where GPUs fill
unevenly, like another tenant: hence the share and the variable above.

The rows are those of a sweep, in RUNS/STUDY-side. The same command goes on where it was; a server
that fails is stopped and left out, and tried again by the next command if that was the machine's
fault.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.standing import Scene, Standing, counters, host_facts, measure_once, standing
from sweeper.bench.process import ClientProcess
from sweeper.clock import Clock
from sweeper.config import find_space, load_study
from sweeper.errors import UserError
from sweeper.planning.plan import make_plan
from sweeper.records import (
    FlagValue,
    Purpose,
    Trial,
    TrialRecord,
)
from sweeper.serving import detect
from sweeper.store import Store, write_text
from sweeper.study import Study


def todo(study: Study, records: Sequence[TrialRecord], *, everything: bool) -> list[Trial]:
    """Return the settings that have no row yet, in order, the baseline left out.

    A row of a failure that was the machine's, such as a port that was taken, is none.

    Args:
        study: The study.
        records: Rows so far.
        everything: All settings of the space, not only the known ones.
    """
    done = {
        record.trial.launch.key
        for record in records
        if record.failure is None or not record.failure.policy.retry
    }
    points = list(study.known)
    if everything:
        points += [point for point, _ in make_plan(study).settings.values()]
    made: dict[str, Trial] = {}
    for point in points:
        trial = replace(
            _baseline(study), purpose=Purpose.KNOWN, point=point, launch=study.launch(point)
        )
        if trial.launch.key not in done:
            made.setdefault(trial.launch.key, trial)
    return list(made.values())


def _baseline(study: Study) -> Trial:
    return Trial(
        study=study.name,
        number=0,
        purpose=Purpose.BASELINE,
        point={},
        launch=study.baseline_launch(),
        context=study.context,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is done.

    Attributes:
        everything: All settings of the space, not only the known ones.
        at_once: Servers of a batch, the baseline's among them.
        rounds: How often each server is measured.
        restart: Each round is measured on servers that were started for it.
        seconds: Nothing begins that would end later, by the longest of its kind so far; the first
            start and the first measurement excepted.
    """

    everything: bool
    at_once: int
    rounds: int
    restart: bool
    seconds: float


class Pace:
    """Tells whether what begins now still ends in time, by the longest of its kind so far."""

    def __init__(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds
        self._longest_s: dict[str, float] = {}

    def allows(self, *kinds: str) -> bool:
        """Tell whether one of each kind would be done in time."""
        needed_s = [self._longest_s.get(kind, -math.inf) for kind in kinds]
        return time.monotonic() + sum(needed_s) <= self._end_s

    @contextmanager
    def taking(self, kind: str) -> Iterator[None]:
        """Note how long the block takes."""
        begun_s = time.monotonic()
        yield
        taken_s = time.monotonic() - begun_s
        self._longest_s[kind] = max(taken_s, self._longest_s.get(kind, 0.0))


def run(
    study: Study,
    runs: Path,
    extent: Extent,
    *,
    flags: Mapping[str, FlagValue],
    env: Mapping[str, str],
    say: Callable[[str], None],
) -> int:
    """Start, measure and store; return how many settings failed.

    Args:
        study: The study.
        runs: Folder of all results.
        extent: How much.
        flags: Flags of all servers.
        env: Variables of all servers.
        say: Told a line for each measurement.
    """
    folder = runs / f"{study.name}-side"
    store = Store(folder)
    store.create()
    write_text(folder / "study.yaml", study.text)
    records = store.records()
    left = todo(study, records, everything=extent.everything)
    clock = Clock(study.engine.simulation.time_scale if study.simulated else 1.0)
    gpus = detect()
    host = host_facts(gpus, sharing=min(extent.at_once, len(left) + 1))
    scene = Scene(
        study=study, folder=folder, flags=flags, env=env, clock=clock, gpus=gpus, host=host
    )
    number = max((record.trial.number for record in records), default=-1) + 1
    pace, failed = Pace(extent.seconds), 0
    with ClientProcess.start() as client:
        while left and pace.allows("start", "measurement"):
            batch, left = left[: extent.at_once - 1], left[extent.at_once - 1 :]
            planned = [_baseline(study), *batch]
            numbered = [replace(trial, number=number + i) for i, trial in enumerate(planned)]
            for record in measured(scene, numbered, client, extent, pace):
                store.write(record)
                say(_line(record))
                number = max(number, record.trial.number + 1)
                failed += record.failure is not None
    return failed


def measured(
    scene: Scene, planned: Sequence[Trial], client: ClientProcess, extent: Extent, pace: Pace
) -> Iterator[TrialRecord]:
    """Start a batch, once or for each round, and yield each measurement of it."""
    starts, turns = (extent.rounds, 1) if extent.restart else (1, extent.rounds)
    for restart in range(starts):
        if restart and not pace.allows("start", "measurement"):
            return
        first = restart * len(planned)
        trials = [replace(trial, number=trial.number + first) for trial in planned]
        with ExitStack() as stack:
            with pace.taking("start"):
                servers = stack.enter_context(standing(scene, trials))
            yield from _rounds(scene, servers, client, turns, pace)


def _rounds(
    scene: Scene, servers: Sequence[Standing], client: ClientProcess, rounds: int, pace: Pace
) -> Iterator[TrialRecord]:
    """Measure the servers of a batch in turn; one that fails is left out of later rounds."""
    alive = list(servers)
    for turn in range(rounds):
        for server in list(alive):
            if not pace.allows("measurement"):
                return
            number = server.assignment.trial.number + turn * len(servers)
            with pace.taking("measurement"):
                record = measure_once(scene, server, client, number)
            if record.failure is not None or server.server is None:
                alive.remove(server)
                if server.server is not None:
                    # One that hangs goes on taking the GPUs' time from the others.
                    server.server.stop()
            elif told := counters(server.server, scene.study):
                with (scene.folder / "counters.jsonl").open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps({"number": number, **told}) + "\n")
            yield record


def _line(record: TrialRecord) -> str:
    speeds = ", ".join(f"{m.workload} {m.output_tok_s:.1f} tok/s" for m in record.measurements)
    said = f"{record.failure.kind}: {record.failure.line}" if record.failure else speeds
    return f"{record.trial.number} {dict(record.trial.point) or 'baseline'}: {said}"


def _flag(text: str) -> tuple[str, FlagValue]:
    name, is_set, value = text.partition("=")
    return name.removeprefix("--"), value if is_set else True


def _variable(text: str) -> tuple[str, str]:
    name, is_set, value = text.partition("=")
    if not is_set:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.side_by_side")
    parser.add_argument("space")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--seconds", type=float, required=True, help="the whole time")
    parser.add_argument("--all", action="store_true", help="all settings, not only the known")
    parser.add_argument("--at-once", type=int, default=16, help="servers of a batch (16)")
    parser.add_argument("--rounds", type=int, default=1, help="measurements of each server (1)")
    parser.add_argument("--restart", action="store_true", help="start anew for each round")
    parser.add_argument(
        "--flag", type=_flag, action="append", default=[], help="NAME=VALUE, for every server"
    )
    parser.add_argument(
        "--env", type=_variable, action="append", default=[], help="NAME=VALUE, for every server"
    )
    options = parser.parse_args(argv)
    try:
        study = load_study(find_space(options.space))
        failed = run(
            study.resolved(gpus_present=bool(detect().devices())),
            options.runs,
            Extent(
                everything=options.all,
                at_once=max(2, options.at_once),
                rounds=max(1, options.rounds),
                restart=options.restart,
                seconds=options.seconds,
            ),
            flags=dict(options.flag),
            env=dict(options.env),
            say=lambda line: print(line, flush=True),  # noqa: T201 - a command's own output
        )
    except UserError as error:
        sys.stderr.write(f"side_by_side: {error}\n")
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
