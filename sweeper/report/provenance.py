"""Where numbers come from, and what two runs have in common; pure.

(study, records) -> ProvenanceInfo;   two runs -> CompareInfo
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sweeper.judging.standings import standings
from sweeper.objective import Objective
from sweeper.records import TrialRecord, TrialState
from sweeper.redaction import redact_text, redact_words
from sweeper.report.settings import is_simulated, setting_text
from sweeper.report.trouble import flag_text
from sweeper.study import Study

#: Lines of a difference of two space files that are shown.
DIFF_LINES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenanceInfo:
    """What produced the numbers.

    Attributes:
        rows: (name, values), each value once, raw text; no values where nothing is known.
    """

    rows: tuple[tuple[str, tuple[str, ...]], ...]


def provenance_info(study: Study, records: Sequence[TrialRecord]) -> ProvenanceInfo:
    """Return versions, hardware, places and counts of one study."""
    servers = [r.server for r in records if r.server]
    hosts = [r.host for r in records if r.host]
    launches = [r.trial.launch for r in records]
    states = [r.state for r in records]
    times = sorted(r.started_at[:19] + "Z" for r in records)
    flags = sorted(study.engine.flags.items())
    rows: list[tuple[str, Iterable[str]]] = [
        ("space file", [study.source]),
        ("engine", [launch.engine for launch in launches]),
        ("program", [" ".join(redact_words(launch.command)) for launch in launches]),
        ("engine version", [s.version for s in servers]),
        ("simulated", ["yes" if is_simulated(r) else "no" for r in records]),
        ("engine seconds in a real second", [f"{s.time_scale:g}" for s in servers]),
        ("model", [launch.model for launch in launches]),
        ("GPUs of a server", [str(launch.gpus) for launch in launches]),
        ("GPU", [h.gpu_name for h in hosts if h.gpu_name]),
        ("driver", [h.driver_version for h in hosts if h.driver_version]),
        ("host", [h.host for h in hosts]),
        ("slot", [h.slot for h in hosts]),
        ("KV pool, tokens", _range([s.max_total_tokens for s in servers])),
        (
            "flags of every launch",
            [f"--{k}" if v is True else f"--{k} {flag_text(k, v)}" for k, v in flags],
        ),
        ("workloads", [_workload(study, i) for i in range(len(study.workloads))]),
        ("objectives", [("max " if o.maximize else "min ") + o.label for o in study.objectives]),
        ("limits", [slo.text for slo in study.slos]),
        ("sampler and seed", [f"{study.sampler}, {study.seed}"]),
        ("budget", [_budget(study)]),
        ("trials", [f"{states.count(s)} {s}" for s in TrialState if s in states]),
        ("first and last start", times[:1] + times[-1:]),
    ]
    return ProvenanceInfo(
        rows=tuple((name, tuple(dict.fromkeys(values))) for name, values in rows)
    )


def _range(values: Sequence[int | None]) -> list[str]:
    known = [v for v in values if v is not None]
    if not known:
        return []
    low, high = min(known), max(known)
    return [f"{low:,}"] if low == high else [f"{low:,} to {high:,}"]


def _workload(study: Study, index: int) -> str:
    w = study.workloads[index]
    load = f"sent as in {w.arrivals}"
    if w.concurrency is not None:
        load = f"{w.concurrency} at once"
    elif w.request_rate is not None:
        load = f"{w.request_rate:g}/s"
    length = f"{w.repeats} x" if w.repeats is not None else f"{w.duration_s:g} s of"
    return f"{w.name}: {length} {w.prompts}, {load}, {w.max_tokens} tokens"


def _budget(study: Study) -> str:
    hours = f", {study.budget.hours:g} hours" if study.budget.hours is not None else ""
    return f"{study.budget.launches} launches{hours}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonSetting:
    """One setting that both runs measured.

    Attributes:
        setting: The setting, raw text.
        values: The first objective in the first and the second run.
        ratio: Second by first; None if one is not above 0.
    """

    setting: str
    values: tuple[float, float]
    ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareInfo:
    """Two runs, before and after.

    Attributes:
        names: Names of the runs, raw text.
        objective: The first run's first objective, which is compared.
        changed: (name, values before, values after) of provenance that differs.
        diff: Lines of the space files' difference, without secrets.
        common: Settings that both measured, the largest change first.
        only: How many settings only the first and only the second measured.
        simulated: Whether any of them is simulated.
    """

    names: tuple[str, str]
    objective: Objective
    changed: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]
    diff: tuple[str, ...]
    common: tuple[CommonSetting, ...]
    only: tuple[int, int]
    simulated: bool


def compare_info(
    names: tuple[str, str],
    studies: tuple[Study, Study],
    records: tuple[Sequence[TrialRecord], Sequence[TrialRecord]],
) -> CompareInfo:
    """Return what two runs have in common and what changed between them.

    Settings are matched by their points, not by their launches, so that runs of two engine
    versions or with other fixed flags can be compared.
    """
    objective = studies[0].objectives[0]
    before, after = (_values(found, objective) for found in records)
    facts = [
        dict(provenance_info(study, found).rows)
        for study, found in zip(studies, records, strict=True)
    ]
    common = [
        CommonSetting(
            setting=setting,
            values=(before[setting], after[setting]),
            ratio=_ratio(before[setting], after[setting]),
        )
        for setting in before
        if setting in after
    ]
    diff = difflib.unified_diff(
        studies[0].text.splitlines(), studies[1].text.splitlines(), *names, lineterm="", n=1
    )
    return CompareInfo(
        names=names,
        objective=objective,
        changed=tuple(
            (name, facts[0][name], facts[1][name])
            for name in facts[0]
            if facts[0][name] != facts[1][name]
        ),
        diff=tuple(redact_text(line) for line in diff)[:DIFF_LINES],
        common=tuple(sorted(common, key=lambda c: -abs((1 if c.ratio is None else c.ratio) - 1))),
        only=(len(before.keys() - after.keys()), len(after.keys() - before.keys())),
        simulated=any(is_simulated(r) for found in records for r in found if r.measurements),
    )


def _values(records: Sequence[TrialRecord], objective: Objective) -> Mapping[str, float]:
    return {
        "baseline" if s.is_baseline else setting_text(s.records[0]): s.values[0]
        for s in standings(records, (objective,))
    }


def _ratio(before: float, after: float) -> float | None:
    return None if min(before, after) <= 0 else after / before
