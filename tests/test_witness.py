"""What a running trial is compared with, and so stopped early for."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sweeper.config import parse_study
from sweeper.judging.pruning import certainly_worse
from sweeper.judging.witness import Witness
from sweeper.records import Purpose, RequestTiming, TrialRecord
from sweeper.study import Study
from tests.build import make_launch, make_record, make_requests, make_trial
from tests.test_config import GOOD


@pytest.fixture
def study() -> Study:
    text = GOOD.replace("{launches: 5}", "{launches: 5, prune_confidence: 0.999}")
    return parse_study(text, "space.yaml").resolved(gpus_present=False)


def ran(number: int, tok_s: float, ttft_ms: float, **changes: object) -> TrialRecord:
    measured = {"ttft_p99_ms": ttft_ms}
    return make_record(number, tok_s, measurement=measured, **changes)  # type: ignore[arg-type]


def seen(study: Study, records: Sequence[TrialRecord], *, resumed: bool) -> Witness:
    """Return a witness of these trials, seen as they ended or read back at a later start."""
    stored = {r.trial.number: r.requests for r in records}

    def requests_of(number: int) -> Sequence[RequestTiming]:
        return stored[number]

    if resumed:
        return Witness(study, [replace(r, requests=()) for r in records], requests_of)
    witness = Witness(study, [], requests_of)
    for record in records:
        witness.look(record)
    return witness


@pytest.mark.parametrize("resumed", [False, True])
def test_the_best_that_keeps_all_limits_is_what_others_are_stopped_for(
    study: Study, resumed: bool
) -> None:
    base = ran(0, 90.0, 100.0, purpose=Purpose.BASELINE, launch=make_launch())
    quick_but_late, good = ran(1, 200.0, 900.0), ran(2, 110.0, 100.0)
    witness = seen(study, [base, good, quick_but_late], resumed=resumed)
    rival = witness.rival(make_trial(3))
    assert rival is not None
    assert max(rival.speeds.values()) == pytest.approx(110.0)
    # It would win: what is quicker breaks the limit.
    assert not certainly_worse(make_requests(120.0), rival)
    assert certainly_worse(make_requests(80.0), rival)


@pytest.mark.parametrize("resumed", [False, True])
def test_where_nothing_keeps_the_limits_nothing_is_stopped(study: Study, resumed: bool) -> None:
    witness = seen(study, [ran(1, 200.0, 900.0)], resumed=resumed)
    assert witness.rival(make_trial(2)) is None
