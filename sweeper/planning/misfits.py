"""Which stored trials can be compared, when the space file has changed or the GPUs did; pure."""

from collections import Counter
from collections.abc import Sequence

from sweeper.planning.strata import kinds, on_hardware
from sweeper.records import Purpose, TrialRecord
from sweeper.study import Study


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


def comparable(
    records: Sequence[TrialRecord], study: Study, hardware: str | None = None
) -> tuple[tuple[TrialRecord, ...], list[str]]:
    """Return the trials that can be shown side by side, and why others are not.

    For looking back: failures of a broken installation stay, and the newest trial says which
    context counts, as an older Sweeper may have named it otherwise. If nothing fits, all stay.

    Args:
        records: Stored trials by number.
        study: The study as its space file is now, its engine resolved.
        hardware: The kind of GPUs; that of most measured trials if None.
    """
    if not records:
        return (), []
    base, context = study.baseline_launch().key, records[-1].trial.context
    left: Counter[str] = Counter()
    stored = len(records)
    records = on_hardware(records, hardware or next(iter(kinds(records)), None))
    if len(records) < stored:
        left["measured on other hardware, which is judged by itself"] = stored - len(records)
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
