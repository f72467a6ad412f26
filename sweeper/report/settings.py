"""Names for settings and metrics, and the parts of a setting that figures are drawn over; pure."""

from dataclasses import dataclass

from sweeper.objective import Objective
from sweeper.records import Point, Purpose, Scalar, TrialRecord
from sweeper.space import point_text
from sweeper.study import Study
from sweeper.wording import title

DRAFT, STEPS = "speculative-draft-model-path", "speculative-num-steps"
TOPK, DRAFT_TOKENS = "speculative-eagle-topk", "speculative-num-draft-tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """What a setting says of speculation; None where it says nothing.

    Attributes:
        draft: Label of the draft model, or its path.
        steps: Draft steps.
        topk: Branches a step.
        draft_tokens: Tokens verified a step.
    """

    draft: str | None
    steps: int | None
    topk: int | None
    draft_tokens: int | None


def is_simulated(record: TrialRecord) -> bool:
    """Tell whether the trial ran, or would have run, on the simulated server."""
    server = record.server
    return record.trial.launch.simulated or (server is not None and server.simulated)


def setting_text(record: TrialRecord) -> str:
    """Return the setting in one line, for people; raw text."""
    if record.trial.purpose is Purpose.BASELINE or not record.trial.point:
        return "baseline"
    return point_text(record.trial.point)


def active_point(study: Study, point: Point) -> dict[str, Scalar]:
    """Return the chosen values only, without those that follow from others.

    Two points that differ in one chosen value are a fair pair even where that value changes a
    derived one, as steps change the draft tokens at top-k 1.
    """
    chosen: dict[str, Scalar] = {}
    partial: dict[str, Scalar] = {}
    for parameter in study.space.ordered:
        if parameter.name not in point:
            continue
        active, _ = study.space.resolve(parameter, partial)
        partial[parameter.name] = point[parameter.name]
        if active:
            chosen[parameter.name] = point[parameter.name]
    return chosen


def speculation(study: Study, record: TrialRecord) -> Speculation:
    """Return what the point, else the launch, else the server says of speculation."""

    def find(flag: str) -> object:
        for parameter in study.space.parameters:
            if parameter.flag == flag and parameter.name in record.trial.point:
                return record.trial.point[parameter.name]
        if flag in record.trial.launch.flags:
            return record.trial.launch.flags[flag]
        return record.server.flags.get(flag) if record.server else None

    draft = find(DRAFT)
    return Speculation(
        draft=None if draft is None else str(draft),
        steps=_integer(find(STEPS)),
        topk=_integer(find(TOPK)),
        draft_tokens=_integer(find(DRAFT_TOKENS)),
    )


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def axis_title(objective: Objective) -> str:
    """Return an axis title with its unit and workload, "TTFT p99, ms (busy)"."""
    return title(objective.metric, objective.workload)
