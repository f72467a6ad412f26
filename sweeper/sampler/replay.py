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


def encode(space: Space, point: Point, *, flat: bool = False) -> dict[str, Any]:
    """Return the parameters of a canonical point as Optuna stores them.

    Args:
        space: The space.
        point: The point.
        flat: Whether inactive parameters are among them, each with its first value. Samplers that
            look at several parameters at once see only those that all trials have.
    """
    found: dict[str, Any] = {}
    partial: dict[str, Scalar] = {}
    for parameter in space.ordered:
        active, _ = space.resolve(parameter, partial)
        if parameter.name in point:
            partial[parameter.name] = point[parameter.name]
        if active and parameter.name in point:
            value = point[parameter.name]
        elif flat:
            value = parameter.values[0]
        else:
            continue
        ranked = isinstance(distribution(parameter), IntDistribution)
        found[parameter.name] = _ranks(parameter).index(value) if ranked else value
    return found


def suggest(trial: optuna.Trial, space: Space, *, flat: bool = False) -> dict[str, Scalar]:
    """Ask `trial` for each active parameter, or for all, and return the canonical point."""
    partial: dict[str, Scalar] = {}
    for parameter in space.ordered:
        active, otherwise = space.resolve(parameter, partial)
        asked = _ask(trial, parameter) if active or flat else None
        value = asked if active else otherwise
        if value is not None:
            partial[parameter.name] = value
    return space.canonical(partial)


def _ask(trial: optuna.Trial, parameter: Parameter) -> Scalar:
    made = distribution(parameter)
    if isinstance(made, IntDistribution):
        return _ranks(parameter)[trial.suggest_int(parameter.name, made.low, made.high)]
    found = trial.suggest_categorical(parameter.name, parameter.values)
    assert found is not None  # None is no value of a parameter.
    return found


def _ranks(parameter: Parameter) -> list[Scalar]:
    return sorted(parameter.values, key=float)


def finished_trial(
    record: TrialRecord,
    space: Space,
    objectives: Sequence[Objective],
    slos: Sequence[Slo],
    *,
    flat: bool = False,
) -> FrozenTrial | None:
    """Return `record` as a finished Optuna trial; None if its point is not in the space.

    What has no number is FAIL, never a made-up number: samplers do not look at failed trials. A
    trial stopped early keeps what it measured, as PRUNED. A baseline, whose point is empty, becomes
    a trial without parameters.
    """
    point = record.trial.point
    if point and not space.contains(point):
        return None
    numbers = values(record, objectives)
    so_far = None if numbers else _measured_so_far(record, objectives)
    limits = {slo.text: excess for slo in slos if (excess := slo.excess(record)) is not None}
    params = encode(space, point, flat=flat) if point else {}
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
        state=_ended_as(numbers, so_far),
        values=list(numbers) if numbers else None if so_far is None else [so_far],
        intermediate_values={} if so_far is None else {0: so_far},
        params=params,
        distributions={name: distribution(by_name[name]) for name in params},
        user_attrs=attributes,
        constraints=None if numbers is None and so_far is None else limits,
    )
    _date(trial, record)
    return trial


def _measured_so_far(record: TrialRecord, objectives: Sequence[Objective]) -> float | None:
    """Return what a trial that was stopped early measured of a study's only objective."""
    if record.state is not State.PRUNED or len(objectives) != 1:
        return None
    return objectives[0].value(record)


def _ended_as(numbers: Sequence[float] | None, so_far: float | None) -> TrialState:
    if numbers:
        return TrialState.COMPLETE
    return TrialState.FAIL if so_far is None else TrialState.PRUNED


def _date(trial: FrozenTrial, record: TrialRecord) -> None:
    try:
        started = datetime.fromisoformat(record.started_at)
    except ValueError:
        return
    # Optuna's times are local and without a zone.
    trial.datetime_start = trial.datetime_complete = started.astimezone().replace(tzinfo=None)


def running_trial(space: Space, point: Point, key: str, *, flat: bool = False) -> FrozenTrial:
    """Return a trial in flight, so that a sampler does not propose its neighbourhood again."""
    params = encode(space, point, flat=flat)
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
