"""What each parameter does to the first objective; pure.

(study, records) -> HeatInfo, PairedInfo, MarginalInfo, ImportanceInfo
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sweeper.errors import UserError
from sweeper.judging.standings import Standing, standings
from sweeper.objective import Objective
from sweeper.records import Scalar, TrialRecord
from sweeper.report.settings import active_point, is_simulated, setting_text, speculation
from sweeper.space import point_text, suggest
from sweeper.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Steps by draft tokens for one draft; the best setting of each cell.

    Attributes:
        draft: The draft's label or path, raw text.
        steps: Draft steps of all drafts, rising.
        draft_tokens: Draft tokens of all drafts, rising.
        values: Best value of each cell, shape (steps, draft_tokens); None where not measured.
        settings: The setting that reached it, raw text; the same shape.
        counts: Settings measured in the cell; the same shape.
    """

    draft: str
    steps: tuple[int, ...]
    draft_tokens: tuple[int, ...]
    values: tuple[tuple[float | None, ...], ...]
    settings: tuple[tuple[str | None, ...], ...]
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatInfo:
    """A map for each draft, and the range of all values.

    Attributes:
        objective: What is shown.
        maps: One for each draft, in order of first trial.
        low: The lowest value of all; None without values.
        high: The highest value of all; None without values.
        simulated: Whether any of them is simulated.
    """

    objective: Objective
    maps: tuple[HeatMap, ...]
    low: float | None
    high: float | None
    simulated: bool


def heat_info(study: Study, records: Sequence[TrialRecord]) -> HeatInfo:
    """Return the best value by steps and draft tokens, draft by draft."""
    objective = study.objectives[0]
    drafts: dict[str, dict[tuple[int, int], list[tuple[float, str]]]] = {}
    found = _searched(study, records)
    for standing in found:
        spec = speculation(study, standing.records[0])
        if spec.steps is None or spec.draft_tokens is None:
            continue
        cells = drafts.setdefault(spec.draft or "draft", {})
        cells.setdefault((spec.steps, spec.draft_tokens), []).append(
            (standing.values[0], setting_text(standing.records[0]))
        )
    places = {place for cells in drafts.values() for place in cells}
    maps = tuple(_heat_map(draft, cells, objective, places) for draft, cells in drafts.items())
    values = [v for m in maps for row in m.values for v in row if v is not None]
    return HeatInfo(
        objective=objective,
        maps=maps,
        low=min(values, default=None),
        high=max(values, default=None),
        simulated=any(is_simulated(r) for s in found for r in s.records),
    )


def _heat_map(
    draft: str,
    cells: Mapping[tuple[int, int], list[tuple[float, str]]],
    objective: Objective,
    places: Collection[tuple[int, int]],
) -> HeatMap:
    steps = tuple(sorted({s for s, _ in places}))
    tokens = tuple(sorted({t for _, t in places}))
    top = {k: max(v, key=lambda found: objective.gain(found[0])) for k, v in cells.items()}
    return HeatMap(
        draft=draft,
        steps=steps,
        draft_tokens=tokens,
        values=tuple(
            tuple(top[s, t][0] if (s, t) in top else None for t in tokens) for s in steps
        ),
        settings=tuple(
            tuple(top[s, t][1] if (s, t) in top else None for t in tokens) for s in steps
        ),
        counts=tuple(tuple(len(cells.get((s, t), ())) for t in tokens) for s in steps),
    )


def _searched(study: Study, records: Sequence[TrialRecord]) -> list[Standing]:
    """Return the settings of the space that have a value, limits not regarded."""
    return [
        s
        for s in standings(records, study.objectives[:1])
        if not s.is_baseline and s.records[0].trial.point
    ]


def _values(study: Study, parameter: str) -> tuple[Scalar, ...]:
    for found in study.space.parameters:
        if found.name == parameter:
            return found.values
    names = [p.name for p in study.space.parameters]
    raise UserError(f"{parameter!r} is no parameter{suggest(parameter, names)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two settings that differ in one chosen value only.

    Attributes:
        others: What they have in common, raw text.
        reference: Value of the objective with the reference choice.
        other: Value of the objective with the other choice.
        ratio: Other by reference, turned so that more than 1 is better.
    """

    others: str
    reference: float
    other: float
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedInfo:
    """One parameter's values against its first one, everything else the same.

    Attributes:
        parameter: The parameter's name.
        reference: The value that all are compared with.
        choices: The other values that have a pair, in the order of the space.
        pairs: The pairs of each choice.
        ratios: Geometric mean of each choice's ratios.
        simulated: Whether any of them is simulated.
    """

    parameter: str
    reference: Scalar
    choices: tuple[Scalar, ...]
    pairs: tuple[tuple[Pair, ...], ...]
    ratios: tuple[float, ...]
    simulated: bool


def paired_info(
    study: Study, records: Sequence[TrialRecord], parameter: str, reference: Scalar | None = None
) -> PairedInfo:
    """Return the effect of one parameter by pairs of settings.

    Args:
        study: The study.
        records: Its records.
        parameter: Name of the parameter.
        reference: The value that all are compared with; the space's first if None.

    Raises:
        UserError: There is no such parameter.
    """
    objective = study.objectives[0]
    values = _values(study, parameter)
    against = values[0] if reference is None else reference
    groups: dict[tuple[tuple[str, Scalar], ...], dict[Scalar, Standing]] = {}
    for standing in _searched(study, records):
        chosen = active_point(study, standing.records[0].trial.point)
        if parameter in chosen:
            value = chosen.pop(parameter)
            groups.setdefault(tuple(chosen.items()), {})[value] = standing
    pairs: dict[Scalar, list[Pair]] = {v: [] for v in values if v != against}
    simulated = False
    for others, group in groups.items():
        for value, found in pairs.items():
            if against not in group or value not in group:
                continue
            a, b = group[against], group[value]
            if min(a.values[0], b.values[0]) <= 0:
                continue
            simulated |= any(is_simulated(r) for r in (*a.records, *b.records))
            ratio = b.values[0] / a.values[0]
            found.append(
                Pair(
                    others=point_text(dict(others)) if others else "nothing else chosen",
                    reference=a.values[0],
                    other=b.values[0],
                    ratio=ratio if objective.maximize else 1 / ratio,
                )
            )
    kept = {value: found for value, found in pairs.items() if found}
    return PairedInfo(
        parameter=parameter,
        reference=against,
        choices=tuple(kept),
        pairs=tuple(tuple(found) for found in kept.values()),
        ratios=tuple(
            math.exp(statistics.fmean(math.log(p.ratio) for p in found)) for found in kept.values()
        ),
        simulated=simulated,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginalInfo:
    """The objective by the values of one parameter, whatever the others were.

    Attributes:
        objective: What is shown.
        parameter: The parameter's name.
        choices: Its values that were measured, numbers rising, others in the
            order of the space.
        values: The objective of each setting, by choice.
        medians: Median of each choice.
        simulated: Whether any of them is simulated.
    """

    objective: Objective
    parameter: str
    choices: tuple[Scalar, ...]
    values: tuple[tuple[float, ...], ...]
    medians: tuple[float, ...]
    simulated: bool


def marginal_info(study: Study, records: Sequence[TrialRecord], parameter: str) -> MarginalInfo:
    """Return the first objective by the values of one parameter."""
    groups: dict[Scalar, list[float]] = {value: [] for value in _values(study, parameter)}
    found = _searched(study, records)
    for standing in found:
        point = standing.records[0].trial.point
        if parameter in point:
            groups.setdefault(point[parameter], []).append(standing.values[0])
    kept = {value: tuple(sorted(numbers)) for value, numbers in groups.items() if numbers}
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in kept):
        kept = dict(sorted(kept.items()))
    return MarginalInfo(
        objective=study.objectives[0],
        parameter=parameter,
        choices=tuple(kept),
        values=tuple(kept.values()),
        medians=tuple(statistics.median(numbers) for numbers in kept.values()),
        simulated=any(is_simulated(r) for s in found for r in s.records),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportanceInfo:
    """How much of the objective's variation each parameter explains.

    Attributes:
        objective: What is explained.
        parameters: Names, the most important first.
        shares: 0 to 1, in the same order.
        simulated: Whether any measurement behind it is simulated.
    """

    objective: Objective
    parameters: tuple[str, ...]
    shares: tuple[float, ...]
    simulated: bool


def importance_info(
    study: Study, records: Sequence[TrialRecord], importances: Mapping[str, float]
) -> ImportanceInfo:
    """Return the sampler's importances, sorted."""
    ranked = sorted(importances.items(), key=lambda item: (-item[1], item[0]))
    return ImportanceInfo(
        objective=study.objectives[0],
        parameters=tuple(name for name, _ in ranked),
        shares=tuple(share for _, share in ranked),
        simulated=any(is_simulated(r) for r in records if r.measurements),
    )
