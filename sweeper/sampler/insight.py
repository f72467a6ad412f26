"""How much each parameter matters, and an SQLite file for optuna-dashboard."""

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import optuna

from sweeper.records import TrialRecord
from sweeper.sampler.replay import finished_trial, new_study
from sweeper.study import Study


def importances(records: Sequence[TrialRecord], study: Study) -> dict[str, float]:
    """Return each parameter's share in the first objective, largest first, summing to 1.

    By the spread of the means of a parameter's values in the logarithm, less what chance alone
    would give. Optuna's PED-ANOVA looks at the best tenth only, which is three launches of thirty,
    and names parameters that have no effect.

    Returns:
        Empty where there is nothing to compare.
    """
    trials = [
        trial
        for record in sorted(records, key=lambda r: r.trial.number)
        if record.trial.point
        and (trial := finished_trial(record, study.space, study.objectives, study.slos))
        and trial.state is optuna.trial.TrialState.COMPLETE
    ]
    logs = np.log([max(t.values[0], 1e-9) for t in trials])
    names = sorted({name for t in trials for name in t.params})
    spread: dict[str, float] = {}
    for name in names:
        groups: dict[object, list[float]] = {}
        for trial, value in zip(trials, logs, strict=True):
            if name in trial.params:
                groups.setdefault(trial.params[name], []).append(float(value))
        members = sum(map(len, groups.values()))
        if len(groups) < 2 or members <= len(groups):
            continue
        values = np.concatenate([np.array(g) for g in groups.values()])
        between = sum(len(g) * (np.mean(g) - values.mean()) ** 2 for g in groups.values())
        within = sum(float(np.sum((np.array(g) - np.mean(g)) ** 2)) for g in groups.values())
        chance = (len(groups) - 1) * within / (members - len(groups))
        spread[name] = max(float(between) - chance, 0.0)
    total = sum(spread.values())
    if total <= 0:
        return {}
    return {n: v / total for n, v in sorted(spread.items(), key=lambda item: -item[1])}


def export_sqlite(records: Sequence[TrialRecord], study: Study, path: Path) -> None:
    """Write the records as an Optuna study into an SQLite file, replacing `path`.

    `optuna-dashboard sqlite:///FILE` shows it. Trials outside today's space are left out.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        storage = optuna.storages.RDBStorage(f"sqlite:///{part}")
        try:
            exported = new_study(study.objectives, storage=storage, name=study.name)
            for objective in study.objectives:
                exported.set_user_attr(objective.label, "objective")
            for record in sorted(records, key=lambda r: r.trial.number):
                trial = finished_trial(record, study.space, study.objectives, study.slos)
                if trial is not None:
                    exported.add_trial(trial)
        finally:
            storage.engine.dispose()
        part.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
