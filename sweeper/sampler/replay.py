"""Stored trials <-> Optuna's: distributions, encoded points, finished trials."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweeper.errors import UserError
from sweeper.objective import Objective, Slo, values
from sweeper.records import Point, Scalar, TrialRecord
from sweeper.records import TrialState as State
from sweeper.redaction import redact_text
from sweeper.space import Parameter, Space

optuna.logging.set_verbosity(optuna.logging.WARNING)


def distribution(parameter: Parameter) -> BaseDistribution:
    """Return how Optuna sees a parameter: the rank of a number, or one of some labels."""
    if parameter.is_numeric and len(parameter.values) > 1:
        return IntDistribution(0, len(parameter.values) - 1)
    return CategoricalDistribution(parameter.values)


def encode(space: Space, point: Point) -> dict[str, Any]:
    """Return the active parameters of a canonical point as Optuna stores them."""
    found: dict[str, Any] = {}
    partial: dict[str, Scalar] = {}
    for parameter in space.ordered:
        active, _ = space.resolve(parameter, partial)
        if parameter.name not in point:
            continue
        value = partial[parameter.name] = point[parameter.name]
        if active:
            ranked = isinstance(distribution(parameter), IntDistribution)
            found[parameter.name] = _ranks(parameter).index(value) if ranked else value
    return found


def suggest(trial: optuna.Trial, space: Space) -> dict[str, Scalar]:
    """Ask `trial` for each active parameter and return the canonical point."""
    partial: dict[str, Scalar] = {}
    for parameter in space.ordered:
        active, value = space.resolve(parameter, partial)
        if active:
            made = distribution(parameter)
            if isinstance(made, IntDistribution):
                value = _ranks(parameter)[trial.suggest_int(parameter.name, made.low, made.high)]
            else:
                value = trial.suggest_categorical(parameter.name, parameter.values)
        if value is not None:
            partial[parameter.name] = value
    return space.canonical(partial)


def _ranks(parameter: Parameter) -> list[Scalar]:
    return sorted(parameter.values, key=float)


def finished_trial(
    record: TrialRecord,
    space: Space,
    objectives: Sequence[Objective],
    slos: Sequence[Slo],
) -> FrozenTrial | None:
    """Return `record` as a finished Optuna trial; None if its point is not in the space.

    What has no number is FAIL, never a made-up number: samplers do not look at failed trials. A
    baseline, whose point is empty, becomes a trial without parameters.
    """
    point = record.trial.point
    if point and not space.contains(point):
        return None
    numbers = values(record, objectives)
    limits = {slo.text: excess for slo in slos if (excess := slo.excess(record)) is not None}
    params = encode(space, point)
    attributes = {
        "number": record.trial.number,
        "launch": record.trial.launch.key,
        "purpose": str(record.trial.purpose),
        "state": str(record.state),
    }
    reason = record.reason or (str(record.failure) if record.failure else None)
    if reason:
        attributes["reason"] = redact_text(reason)
    by_name = {p.name: p for p in space.parameters}
    trial = create_trial(
        state=TrialState.COMPLETE if numbers else _ended_as(record, objectives),
        values=list(numbers) if numbers else None,
        params=params,
        distributions={name: distribution(by_name[name]) for name in params},
        user_attrs=attributes,
        constraints=limits if numbers else None,
    )
    _date(trial, record)
    return trial


def _ended_as(record: TrialRecord, objectives: Sequence[Objective]) -> TrialState:
    pruned = record.state is State.PRUNED and len(objectives) == 1
    return TrialState.PRUNED if pruned else TrialState.FAIL


def _date(trial: FrozenTrial, record: TrialRecord) -> None:
    try:
        started = datetime.fromisoformat(record.started_at)
    except ValueError:
        return
    # Optuna's times are local and without a zone.
    trial.datetime_start = trial.datetime_complete = started.astimezone().replace(tzinfo=None)


def running_trial(space: Space, point: Point, key: str) -> FrozenTrial:
    """Return a trial in flight, so that a sampler does not propose its neighbourhood again."""
    params = encode(space, point)
    by_name = {p.name: p for p in space.parameters}
    return create_trial(
        state=TrialState.RUNNING,
        params=params,
        distributions={name: distribution(by_name[name]) for name in params},
        user_attrs={"launch": key},
    )


def new_study(
    objectives: Sequence[Objective],
    sampler: optuna.samplers.BaseSampler | None = None,
    storage: optuna.storages.BaseStorage | str | None = None,
    name: str | None = None,
) -> optuna.Study:
    """Return an empty Optuna study with the directions of `objectives`."""
    if not objectives:
        raise UserError("a study needs an objective")
    return optuna.create_study(
        directions=["maximize" if o.maximize else "minimize" for o in objectives],
        sampler=sampler,
        storage=storage,
        study_name=name,
    )
