"""Kinds of hardware are strata: each has a baseline, a search and a verdict of its own; pure.

    rows --kinds, on_hardware--> the rows of each kind
    slots of each kind --divide--> a study for each, with its part of the budget

Which setting is the fastest depends on the GPUs, and their speeds differ more than settings do, so
no comparison ever spans two kinds. GPUs whose name was not told are not known to be unlike.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sweeper.records import TrialRecord
from sweeper.study import Study

#: With fewer launches there is a baseline and nothing to compare with it.
_LEAST_LAUNCHES = 2


def hardware_of(record: TrialRecord) -> str | None:
    """Return the name of the GPUs that a trial ran on; None where it was not told."""
    return record.host.gpu_name if record.host is not None else None


def kinds(records: Iterable[TrialRecord]) -> list[str]:
    """Return the kinds that trials were measured on, the most measured first, then the newest."""
    seen: dict[str, tuple[int, int]] = {}
    for record in records:
        name = hardware_of(record)
        if name is not None:
            count, last = seen.get(name, (0, -1))
            seen[name] = (
                count + bool(record.measurements),
                max(last, record.trial.number),
            )
    return sorted(seen, key=lambda name: seen[name], reverse=True)


def on_hardware(records: Iterable[TrialRecord], kind: str | None) -> list[TrialRecord]:
    """Return the trials that may be compared with those on `kind`; all where that is None."""
    return [r for r in records if kind is None or hardware_of(r) in (None, kind)]


def divide(study: Study, slots: Mapping[str | None, int]) -> dict[str | None, Study]:
    """Return for each kind the study with its part of the budget, by the number of its slots.

    Args:
        study: The study with its whole budget.
        slots: Kind -> slots of it; at least one.

    Returns:
        Kind -> study, the kind with most slots first. A kind whose part is too small for a
        baseline and one setting is not among them; the others have what it would have got.
    """
    left = dict(sorted(slots.items(), key=lambda item: (-item[1], item[0] or "")))
    while True:
        launches = _shares(study.budget.launches, left)
        if len(left) == 1 or min(launches.values()) >= _LEAST_LAUNCHES:
            break
        del left[list(left)[-1]]
    confirm, hours = _shares(study.budget.confirm, left), study.budget.hours
    total = sum(left.values())
    return {
        kind: replace(
            study,
            budget=replace(
                study.budget,
                launches=launches[kind],
                confirm=confirm[kind],
                hours=None if hours is None else hours * count / total,
            ),
        )
        for kind, count in left.items()
    }


def _shares(amount: int, slots: Mapping[str | None, int]) -> dict[str | None, int]:
    """Return `amount` divided in proportion to slots; what is over goes to the first ones."""
    total = sum(slots.values())
    parts = {kind: amount * count // total for kind, count in slots.items()}
    for kind in list(parts)[: amount - sum(parts.values())]:
        parts[kind] += 1
    return parts


def beside(name: str, kind: str, all_kinds: Sequence[str]) -> str:
    """Return the name of a file on one kind: the first kind's is `name` itself.

    >>> beside("best.sh", "NVIDIA A100", ["NVIDIA H200", "NVIDIA A100"])
    'best-nvidia-a100.sh'
    """
    if not all_kinds or kind in ("", all_kinds[0]):
        return name
    return _named(name, kind)


def outdated(name: str, all_kinds: Sequence[str]) -> str | None:
    """Return the name that the first kind's file had while another kind was the first."""
    return _named(name, all_kinds[0]) if all_kinds and all_kinds[0] else None


def _named(name: str, kind: str) -> str:
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}-{re.sub(r'[^a-z0-9]+', '-', kind.lower()).strip('-')}{dot}{suffix}"
