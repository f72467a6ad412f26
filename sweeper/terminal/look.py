"""One look at a run's folder: the stored trials, the living driver, and the logs without a trial yet.

    Store -> look() -> Look -> head_lines()    for people
                            -> facts()         for scripts

It reads only.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sweeper.config import parse_study
from sweeper.judging.standings import Standing, numbers, with_baseline
from sweeper.judging.verdict import Verdict, judge
from sweeper.planning.misfits import as_run, comparable
from sweeper.records import TrialRecord
from sweeper.redaction import redact_text
from sweeper.store import Store
from sweeper.study import Study
from sweeper.terminal.lines import record_line
from sweeper.wording import duration, plain_number, shorten, visible

_TAIL_BYTES = 4096
#: Characters of a line for people; JSON has all.
LINE_LIMIT = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Underway:
    """A trial that has a log and no result yet.

    Attributes:
        number: Its number.
        line: The last line of its log, secrets hidden.
        age_s: Real seconds since the log was written to.
    """

    number: int
    line: str
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at a run.

    Attributes:
        folder: The run's folder.
        study: Its study, resolved as the trials say.
        records: Trials that belong to the study as its space file is now.
        problems: What was left out, a line each.
        driver: Process number of the living driver; None without one.
        underway: Trials in flight; empty without a driver.
        verdict: The answer so far.
    """

    folder: Path
    study: Study
    records: tuple[TrialRecord, ...]
    problems: tuple[str, ...]
    driver: str | None
    underway: tuple[Underway, ...]
    verdict: Verdict

    @property
    def launches(self) -> int:
        """Server starts of finished trials."""
        return sum(r.launched for r in self.records)


def look(folder: Path, now: datetime) -> Look:
    """Read a run's folder.

    Raises:
        UserError: It holds no study, or its space file is not valid.
    """
    store = Store(folder)
    study = parse_study(store.study_text(), str(folder / "study.yaml"))
    driver = store.driver()
    found = store.records()
    study = as_run(study, found)
    records, left_out = comparable(found, study)
    return Look(
        folder=folder,
        study=study,
        records=tuple(records),
        problems=(*store.problems, *left_out),
        driver=driver,
        underway=tuple(_underway(store, found, now)) if driver else (),
        verdict=judge(records, study),
    )


def _underway(store: Store, records: Sequence[TrialRecord], now: datetime) -> list[Underway]:
    """Return the trials after the last finished one that have a log; older ones were given up."""
    done = {r.trial.number for r in records}
    found = []
    for path in sorted((store.folder / "logs").glob("*.log")):
        if not path.stem.isdigit() or int(path.stem) in done:
            continue
        try:
            with path.open("rb") as handle:
                handle.seek(max(path.stat().st_size - _TAIL_BYTES, 0))
                tail = handle.read().decode("utf-8", "replace").split("\n")
                changed = os.fstat(handle.fileno()).st_mtime
        except OSError:
            continue
        line = next((t.strip() for t in reversed(tail) if t.strip()), "")
        found.append(
            Underway(
                number=int(path.stem),
                line=visible(redact_text(line)),
                age_s=max(now.timestamp() - changed, 0.0),
            )
        )
    started = _driver_began(store)
    return [u for u in found if now.timestamp() - u.age_s >= started]


def _driver_began(store: Store) -> float:
    """Return when the driver took the lock, in seconds of the epoch; 0 if nobody can say."""
    try:
        return (store.folder / ".lock").stat().st_mtime
    except OSError:
        return 0.0


def head_lines(seen: Look) -> list[str]:
    """Return how far the sweep is and what it found, in lines without control characters."""
    study, records = seen.study, seen.records
    state = f"running (process {seen.driver})" if seen.driver else "no driver is running"
    spent = sum(r.gpu_hours for r in records)
    states = Counter(str(r.state) for r in records)
    count = ", ".join(f"{n} {name}" for name, n in sorted(states.items())) or "no trial yet"
    lines = [
        f"{'SIMULATED ' if seen.verdict.simulated else ''}{study.name}: {state}",
        (
            f"{seen.launches} of {study.budget.launches} launches, {plain_number(spent)} "
            f"GPU-hours; {count}"
        ),
    ]
    lines += [
        f"now: #{u.number}, {duration(u.age_s)} ago: {shorten(u.line, 120)}" for u in seen.underway
    ]
    lines.append(seen.verdict.sentence if records else "nothing measured yet")
    failed = [r for r in records if r.failure is not None]
    if failed:
        lines.append(f"last of {len(failed)} failures: {record_line(failed[-1], study)}")
        policy = failed[-1].failure.policy if failed[-1].failure else None
        if policy is not None:
            lines.append(f"remedy: {policy.remedy}")
    lines += [f"note: {n}" for n in (*seen.verdict.notes, *seen.problems)]
    return [shorten(visible(line), LINE_LIMIT) for line in lines]


def facts(seen: Look) -> dict[str, object]:
    """Return the same for scripts: names do not change, unknown is null."""
    study, verdict = seen.study, seen.verdict
    change = verdict.change
    failed = next((r for r in reversed(seen.records) if r.failure is not None), None)
    return {
        "run": str(seen.folder),
        "study": study.name,
        "simulated": verdict.simulated,
        "driver": seen.driver,
        "launches": seen.launches,
        "budget_launches": study.budget.launches,
        "gpu_hours": sum(r.gpu_hours for r in seen.records),
        "states": dict(Counter(str(r.state) for r in seen.records)),
        "running": [{"number": u.number, "log_age_s": u.age_s} for u in seen.underway],
        "sentence": verdict.sentence,
        "beats_baseline": verdict.beats_baseline,
        "ratio": None if change is None else [change.low, change.mid, change.high],
        "command": verdict.command or None,
        "best": _setting(verdict.winner, seen),
        "baseline": _setting(verdict.baseline, seen),
        "settings": [
            _setting(s, seen) for s in with_baseline(seen.records, study.objectives, study.slos)
        ],
        "last_failure": None if failed is None else _failure(failed),
        "notes": list(verdict.notes),
        "problems": list(seen.problems),
    }


def _setting(standing: Standing | None, seen: Look) -> dict[str, object] | None:
    if standing is None:
        return None
    objectives = seen.study.objectives
    own = numbers(standing, seen.records, objectives)
    return {
        "key": standing.key,
        "point": dict(standing.records[0].trial.point),
        "baseline": standing.is_baseline,
        "values": {o.label: value for o, value in zip(objectives, own, strict=True)},
        "broken": list(standing.broken),
        "trials": [r.trial.number for r in standing.records],
    }


def _failure(record: TrialRecord) -> Mapping[str, object]:
    failure = record.failure
    assert failure is not None
    return {
        "number": record.trial.number,
        "class": str(failure.kind),
        "stage": str(failure.stage),
        "line": redact_text(failure.line),
        "remedy": failure.policy.remedy,
        "log": record.log,
    }
