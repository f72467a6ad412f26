"""Flags that nobody sweeps and that differ all the same, by what the servers said they run. Pure.

An engine sets flags by itself, differently with and without speculation: SGLang caps running
requests at 48 only under speculation. A speed that comes from such a flag is not the setting's.
"""

import fnmatch
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sweeper.objective import baseline_keys
from sweeper.records import FlagValue, TrialRecord, TrialState
from sweeper.study import Study

#: Flags of one family follow from each other, so one that is swept excuses the others.
_FAMILIES = ("cuda-graph", "attention-backend")
#: What counts of a flag that holds an object. Its lists of batch sizes follow from speculation, as
#: one on an H200 and the simulated one tell, and its largest prefill from `chunked-prefill-size`.
_COUNTS = {
    "cuda-graph-config": (("decode", "backend"), ("decode", "max_bs"), ("prefill", "backend"))
}
#: What may differ without being a setting.
_NO_SETTING = frozenset(
    {"port", "nccl-port", "host", "dist-init-addr", "node-rank", "log-level", "random-seed"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One flag with its effective values.

    Attributes:
        flag: Its name without dashes.
        trials: Effective value -> numbers of the complete trials that ran with it, in order.
        splits_baseline: Whether the baseline's value is not that of all other trials.
    """

    flag: str
    trials: Mapping[FlagValue | None, tuple[int, ...]]
    splits_baseline: bool

    def __str__(self) -> str:
        parts = [
            _counted("unset" if value is None else value, numbers)
            for value, numbers in self.trials.items()
        ]
        return f"--{self.flag} is not swept but was {' and '.join(parts)}"


def unfair(records: Iterable[TrialRecord], study: Study) -> tuple[Difference, ...]:
    """Return the flags that differ between complete trials though the space leaves them alone.

    Flags that the baseline drops or sets are meant to differ. A flag that a server does not tell
    is not compared. Differences that set the baseline apart come first.
    """
    complete = [r for r in records if r.state is TrialState.COMPLETE and r.server is not None]
    bases = baseline_keys(complete)
    meant = _meant(study)
    found: dict[str, dict[FlagValue | None, list[TrialRecord]]] = {}
    for record in sorted(complete, key=lambda r: r.trial.number):
        assert record.server is not None
        for flag, value in record.server.flags.items():
            if not _is_meant(flag, meant, study):
                found.setdefault(flag, {}).setdefault(_compared(flag, value), []).append(record)
    differences = [
        Difference(
            flag=flag,
            trials={v: tuple(r.trial.number for r in group) for v, group in groups.items()},
            splits_baseline=any(
                any(r.trial.launch.key in bases for r in group) for group in groups.values()
            )
            and any(
                all(r.trial.launch.key not in bases for r in group) for group in groups.values()
            ),
        )
        for flag, groups in found.items()
        if len(groups) > 1
    ]
    return tuple(sorted(differences, key=lambda d: (not d.splits_baseline, d.flag)))


def unfair_templates(records: Iterable[TrialRecord]) -> tuple[str, ...]:
    """Return a line for each workload whose prompts did not stand in one chat template.

    Acceptance depends on it, so that such trials do not compare. Rows that do not say are left
    out.
    """
    found: dict[str, dict[str, list[int]]] = {}
    for record in sorted(records, key=lambda r: r.trial.number):
        if record.state is TrialState.COMPLETE:
            for m in record.measurements:
                if m.chat_template is not None:
                    numbers = found.setdefault(m.workload, {}).setdefault(m.chat_template, [])
                    numbers.append(record.trial.number)
    return tuple(
        f"workload {workload} stood in unlike chat templates: "
        + ", ".join(_counted(template, numbers) for template, numbers in groups.items())
        for workload, groups in found.items()
        if len(groups) > 1
    )


def _counted(value: object, numbers: Sequence[int]) -> str:
    several = "s" if len(numbers) > 1 else ""
    return f"{value} in {len(numbers)} trial{several} (first: {numbers[0]})"


def _compared(flag: str, value: FlagValue | None) -> FlagValue | None:
    """Return what of a flag's value is compared."""
    if flag not in _COUNTS or not isinstance(value, str):
        return value
    try:
        told = json.loads(value)
        return ", ".join(f"{part}.{key} {told[part][key]}" for part, key in _COUNTS[flag])
    except (ValueError, TypeError, KeyError):
        return value


def _meant(study: Study) -> frozenset[str]:
    """Return the flags that the space file varies."""
    swept = {f for p in study.space.parameters for c in p.choices for f in c.flags}
    swept |= {p.flag for p in study.space.parameters if p.flag}
    return frozenset(swept | set(study.baseline.flags))


def _is_meant(flag: str, meant: frozenset[str], study: Study) -> bool:
    if flag in meant or flag in _NO_SETTING:
        return True
    if any(family in flag and any(family in m for m in meant) for family in _FAMILIES):
        return True
    return any(fnmatch.fnmatchcase(flag, pattern) for pattern in study.baseline.drop)
