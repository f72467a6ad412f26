"""What each prompt shows: speed, gain over the baseline, acceptance by position; pure.

(standings, requests) -> PromptInfo, GainInfo, PositionInfo
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from sweeper.judging.standings import Standing
from sweeper.records import RequestTiming
from sweeper.report.settings import is_simulated, setting_text
from sweeper.statistics.intervals import stream_speeds
from sweeper.statistics.measurement import Interval

#: Returns all requests of one trial, by its number.
RequestReader = Callable[[int], Sequence[RequestTiming]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSpeeds:
    """One setting's speed by prompt.

    Attributes:
        setting: The setting, raw text.
        is_baseline: Whether it is the baseline.
        speeds: tok/s of each request, by prompt; empty where none ended well.
    """

    setting: str
    is_baseline: bool
    speeds: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptInfo:
    """Speed by prompt of a few settings.

    Attributes:
        workload: Where it was measured.
        prompts: (id, kind) of each prompt, raw text, in the order of sending.
        settings: One row a setting.
        simulated: Whether any of them is simulated.
    """

    workload: str
    prompts: tuple[tuple[str, str], ...]
    settings: tuple[PromptSpeeds, ...]
    simulated: bool


def prompt_info(chosen: Sequence[Standing], workload: str, requests: RequestReader) -> PromptInfo:
    """Return the speed of each stream by prompt: output tokens / (last token - sent)."""
    prompts: dict[str, str] = {}
    by_setting: list[dict[str, list[float]]] = []
    for standing in chosen:
        speeds: dict[str, list[float]] = {}
        for request in _sent(standing, workload, requests):
            prompts.setdefault(request.prompt_id, request.prompt_kind)
            speeds.setdefault(request.prompt_id, []).extend(stream_speeds([request]))
        by_setting.append(speeds)
    return PromptInfo(
        workload=workload,
        prompts=tuple(prompts.items()),
        settings=tuple(
            PromptSpeeds(
                setting=_name(standing),
                is_baseline=standing.is_baseline,
                speeds=tuple(tuple(speeds.get(p, ())) for p in prompts),
            )
            for standing, speeds in zip(chosen, by_setting, strict=True)
            if speeds
        ),
        simulated=any(is_simulated(r) for s in chosen for r in s.records),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GainInfo:
    """How many times as fast as the baseline each prompt is with one setting.

    Attributes:
        setting: The setting, raw text.
        workload: Where it was measured.
        prompts: (id, kind) of the prompts that both have, raw text.
        ratios: Setting by baseline, each the ratio of mean speeds.
        overall: The verdict on both over all prompts, with its interval; None without one.
        simulated: Whether it is simulated.
    """

    setting: str
    workload: str
    prompts: tuple[tuple[str, str], ...]
    ratios: tuple[float, ...]
    overall: Interval | None
    simulated: bool


def gain_info(
    winner: Standing,
    baseline: Standing,
    workload: str,
    requests: RequestReader,
    overall: Interval | None = None,
) -> GainInfo:
    """Return the paired comparison by prompt; a prompt's speed is sum of tokens by sum of times."""
    sides = [list(_sent(s, workload, requests)) for s in (winner, baseline)]
    kinds = {r.prompt_id: r.prompt_kind for side in sides for r in side}
    speeds = [_mean_speeds(side) for side in sides]
    common = [p for p in kinds if p in speeds[0] and p in speeds[1]]
    return GainInfo(
        setting=_name(winner),
        workload=workload,
        prompts=tuple((p, kinds[p]) for p in common),
        ratios=tuple(speeds[0][p] / speeds[1][p] for p in common),
        overall=overall,
        simulated=any(is_simulated(r) for s in (winner, baseline) for r in s.records),
    )


def _mean_speeds(requests: Sequence[RequestTiming]) -> dict[str, float]:
    tokens: dict[str, int] = {}
    times: dict[str, int] = {}
    for r in requests:
        if stream_speeds([r]) and r.output_tokens and r.last_ns:
            tokens[r.prompt_id] = tokens.get(r.prompt_id, 0) + r.output_tokens
            times[r.prompt_id] = times.get(r.prompt_id, 0) + r.last_ns - r.sent_ns
    return {p: tokens[p] / times[p] * 1e9 for p in tokens}


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """How often each draft position was accepted.

    Attributes:
        name: A setting or a kind of prompt, raw text.
        steps: Verify steps behind it.
        rates: Index j: share of the steps in which more than j draft tokens were accepted.
    """

    name: str
    steps: int
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionInfo:
    """Acceptance by position, of a few settings and of one setting by kind of prompt.

    Attributes:
        workload: Where it was measured.
        settings: One row a setting that speculates.
        kind_setting: The setting that `kinds` is of, raw text; None without one.
        kinds: One row a kind of prompt.
        simulated: Whether any of them is simulated.
    """

    workload: str
    settings: tuple[Acceptance, ...]
    kind_setting: str | None
    kinds: tuple[Acceptance, ...]
    simulated: bool


def position_info(
    chosen: Sequence[Standing], workload: str, requests: RequestReader
) -> PositionInfo:
    """Return acceptance by position; by kind for the first setting that has histograms."""
    rows: list[Acceptance] = []
    kinds: tuple[Acceptance, ...] = ()
    for standing in chosen:
        by_kind: dict[str, tuple[int, ...]] = {}
        for request in _sent(standing, workload, requests):
            if request.error is None and request.accepted_histogram:
                before = by_kind.get(request.prompt_kind, ())
                by_kind[request.prompt_kind] = _added(before, request.accepted_histogram)
        total: tuple[int, ...] = ()
        for histogram in by_kind.values():
            total = _added(total, histogram)
        if not sum(total):
            continue
        if not kinds:
            kinds = tuple(_acceptance(kind, h) for kind, h in by_kind.items())
        rows.append(_acceptance(_name(standing), total))
    return PositionInfo(
        workload=workload,
        settings=tuple(rows),
        kind_setting=rows[0].name if rows else None,
        kinds=kinds,
        simulated=any(is_simulated(r) for s in chosen for r in s.records),
    )


def _acceptance(name: str, histogram: Sequence[int]) -> Acceptance:
    steps = sum(histogram)
    rates = tuple(sum(histogram[j + 1 :]) / steps for j in range(len(histogram) - 1))
    return Acceptance(name=name, steps=steps, rates=rates)


def _added(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    return tuple(x + y for x, y in zip_longest(a, b, fillvalue=0))


def _name(standing: Standing) -> str:
    return "baseline" if standing.is_baseline else setting_text(standing.records[0])


def _sent(standing: Standing, workload: str, requests: RequestReader) -> Sequence[RequestTiming]:
    return [
        request
        for record in standing.records
        for request in record.requests or requests(record.trial.number)
        if request.workload == workload
    ]
