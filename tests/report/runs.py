"""Runs of every kind that a page must survive."""

import functools
import json
from collections.abc import Callable
from pathlib import Path

from sweeper.errors import FailureClass
from sweeper.records import Measurement, Scalar, TrialRecord, TrialState
from sweeper.report.run import Run, make_run
from sweeper.store import Store
from sweeper.study import Study
from tests.report import build

#: Texts that do harm where they are not escaped, or not cut.
HOSTILE = (
    "</script><script>document.title='broken'</script>",
    '"><img src=x onerror="document.title=\'broken\'">',
    "<b>bold</b> &lt; %{x} $x$ <a href='javascript:alert(1)'>a</a>",
    "/models/" + "very-long-name/" * 25,
    "\u202egnp.exe \u2066isolate",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
    "\U0001f469\u200d\U0001f680 \U0001f525",
    "line\none\r\ntwo\x00\x1b[31mred",
)

HOSTILE_SPACE = """
study: hostile
engine: {kind: simulated, model: MODEL, gpus: 1, flags: {speculative-algorithm: EAGLE3}}
parameters:
  draft: {flag: speculative-draft-model-path, choices: {CHOICES}}
  steps: {flag: speculative-num-steps, values: [1, 2]}
  topk: {flag: speculative-eagle-topk, values: [1]}
workloads: [{name: "<i>busy</i>", repeats: 1}]
objectives: [{maximize: output_tok_s}]
"""


def run_of(study: Study, records: list[TrialRecord], name: str = "run") -> Run:
    return make_run(name, study, records, build.reader(records))


def empty() -> Run:
    return run_of(build.study(), [])


def one_trial() -> Run:
    study = build.study()
    return run_of(study, build.night(study, 1))


def all_failed() -> Run:
    study = build.study()
    points = list(study.space.points())[:6]
    kinds = (FailureClass.OOM, FailureClass.WATCHDOG, FailureClass.UNKNOWN)
    return run_of(study, [build.failed(study, n, p, kinds[n % 3]) for n, p in enumerate(points)])


def a_night() -> Run:
    study = build.study()
    return run_of(study, build.night(study, 40))


def two_objectives() -> Run:
    study = build.study("two-objectives")
    return run_of(study, build.night(study, 24))


def no_accept_length() -> Run:
    """Return a run whose second objective the baseline, without speculation, does not have."""
    one = "{maximize: output_tok_s, workload: single}"
    more = "{maximize: accept_length}, {minimize: ttft_p99_ms, workload: single}"
    study = build.small_study(build.SPACE.replace(one, f"{one}, {more}"))
    speeds = (90.0, None), (80.0, 1.9), (95.0, 1.4)
    records = [
        build.record(
            study,
            number,
            build.point(number) if accept else None,
            measurements=[
                Measurement(
                    workload="single",
                    requests=5,
                    output_tok_s=tok_s,
                    accept_length=accept,
                    ttft_p99_ms=300.0 + number,
                )
            ],
        )
        for number, (tok_s, accept) in enumerate(speeds)
    ]
    return run_of(study, records)


def nothing_but_counts() -> Run:
    """Return a run whose measurements lack every number."""
    study = build.small_study()
    bare = Measurement(workload="single", requests=0)
    return run_of(
        study,
        [
            build.record(study, 0, measurements=[bare], phases_s={}),
            build.record(study, 1, build.point(1), measurements=[bare], phases_s={}),
            build.record(study, 2, build.point(2), measurements=[], state=TrialState.PRUNED),
            build.record(study, 3, build.point(3), tok_s=0.0),
        ],
    )


def real() -> Run:
    """Return a run that claims to be of real GPUs."""
    study = build.small_study(build.SPACE.replace("kind: simulated", "kind: sglang"))
    return run_of(
        study,
        [
            build.record(study, 0, tok_s=90.0),
            build.record(study, 1, build.point(1), tok_s=80.0),
            build.record(study, 2, build.point(2), tok_s=95.0),
        ],
    )


def hostile() -> Run:
    """Return a run whose every name and log line means harm."""
    choices = ", ".join(f"{json.dumps(t)}: {json.dumps(t)}" for t in HOSTILE)
    text = HOSTILE_SPACE.replace("CHOICES", choices).replace("MODEL", json.dumps(HOSTILE[0]))
    study = build.small_study(text)
    records = [build.record(study, 0, tok_s=90.0)]
    for number, name in enumerate(HOSTILE, start=1):
        at: dict[str, Scalar] = {"draft": name, "steps": 1 + number % 2, "topk": 1}
        sent = build.requests(workload="<i>busy</i>", prompts=[(t, t) for t in HOSTILE])
        records.append(build.record(study, number, at, tok_s=90.0 + number, requests=sent))
        records.append(build.failed(study, number + 20, at, line=name))
    return run_of(study, records, name=HOSTILE[0])


RUNS: dict[str, Callable[[], Run]] = {
    f.__name__: functools.cache(f)
    for f in (
        empty,
        one_trial,
        all_failed,
        a_night,
        two_objectives,
        no_accept_length,
        nothing_but_counts,
        real,
        hostile,
    )
}


def store_run(folder: Path, study: Study, records: list[TrialRecord]) -> None:
    """Write a run as a sweep would."""
    store = Store(folder)
    store.create()
    store.keep_study(study.text)
    for record in records:
        store.write(record)
