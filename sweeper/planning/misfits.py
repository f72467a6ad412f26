"""Which stored trials can be compared, when the space file has changed or the GPUs did; pure."""

from collections import Counter
from collections.abc import Sequence

from sweeper.planning.strata import hardware_of, kinds, on_hardware
from sweeper.records import Purpose, TrialRecord
from sweeper.study import Study

_ELSEWHERE = "measured on other hardware, which is judged by itself"


def misfit(record: TrialRecord, study: Study, *, baseline_key: str, context: str) -> str | None:
    """Return why a stored trial cannot be compared with those of the study as it is now.

    Args:
        record: The trial.
        study: The study, its engine resolved.
        baseline_key: Identity of the study's baseline, which takes a while to compute.
        context: What a comparable trial's context is.

    Returns:
        The reason, in words that fit several trials; None where it can be compared.
    """
    trial = record.trial
    if trial.context != context:
        return "other workloads or another simulation"
    if trial.purpose is Purpose.BASELINE or not trial.point:
        return None if trial.launch.key == baseline_key else "the baseline's flags have changed"
    if not study.space.contains(trial.point):
        return "their setting is outside the space"
    if study.launch(trial.point).key != trial.launch.key:
        return "flags that all launches share have changed"
    return None


def as_run(study: Study, records: Sequence[TrialRecord], hardware: str | None = None) -> Study:
    """Return the study with its engine decided as the newest of its trials was launched.

    Without a trial "auto" stays: whether there are GPUs is not known then, nor that there are none.

    Args:
        study: The study as its space file says it.
        records: Stored trials by number.
        hardware: The kind of GPUs that it is about; any if None.
    """
    if not records:
        return study
    return study.resolved(gpus_present=not _newest(records, hardware).trial.launch.simulated)


def _newest(records: Sequence[TrialRecord], hardware: str | None) -> TrialRecord:
    """Return the newest trial on the hardware; one whose GPUs were not told only without others."""
    known = [r for r in records if hardware is None or hardware_of(r) == hardware]
    return (known or records)[-1]


def comparable(
    records: Sequence[TrialRecord], study: Study, hardware: str | None = None
) -> tuple[tuple[TrialRecord, ...], list[str]]:
    """Return the trials that can be shown side by side, and why others are not.

    For looking back: failures of a broken installation stay, and the newest trial on the hardware
    says which context counts, as an older Sweeper may have named it otherwise, and whether
    simulated or real ones do. If nothing fits, all of these stay.

    Args:
        records: Stored trials by number.
        study: The study as its space file is now, its engine resolved.
        hardware: The kind of GPUs; that of most measured trials like the newest if None.
    """
    left: Counter[str] = Counter()
    if hardware is not None:
        records = _less(records, on_hardware(records, hardware), _ELSEWHERE, left)
    if not records:
        return (), []
    simulated = _newest(records, hardware).trial.launch.simulated
    alike = [r for r in records if r.trial.launch.simulated == simulated]
    records = _less(records, alike, "real" if simulated else "simulated", left)
    if hardware is None:
        here = on_hardware(records, next(iter(kinds(records)), None))
        records = _less(records, here, _ELSEWHERE, left)
    base, context = study.baseline_launch().key, records[-1].trial.context
    kept = []
    for record in records:
        why = misfit(record, study, baseline_key=base, context=context)
        if why is None:
            kept.append(record)
        else:
            left[why] += 1
    if not kept:
        return tuple(records), [
            f"no trial fits the space file, so all are shown: {', '.join(left)}"
        ]
    return tuple(kept), [f"{n} of the stored trials: {why}" for why, n in left.items()]


def _less(
    records: Sequence[TrialRecord], kept: Sequence[TrialRecord], why: str, left: Counter[str]
) -> Sequence[TrialRecord]:
    """Return `kept`, and count in `left` why the others are not among them."""
    if len(kept) < len(records):
        left[why] += len(records) - len(kept)
    return kept
