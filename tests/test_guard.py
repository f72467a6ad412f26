import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sweeper.errors import FailureClass
from sweeper.judging.guard import guard, ineffective
from sweeper.records import Measurement, RequestTiming, TrialRecord, TrialState, Workload
from tests.build import make_record

WORKLOAD = Workload(name="single")
LOOP = "the same again " * 60


def prose(seed: int) -> str:
    letters = random.Random(seed)
    return " ".join("".join(letters.choices("abcdefghij", k=6)) for _ in range(80))


def answers(texts: Sequence[str], repeat: int = 0) -> tuple[RequestTiming, ...]:
    return tuple(
        RequestTiming(
            workload="single",
            repeat=repeat,
            prompt_id=f"p{index}",
            prompt_kind="chat",
            sent_ns=index,
            text=text,
        )
        for index, text in enumerate(texts)
    )


def trial(texts: Sequence[str], **changes: object) -> TrialRecord:
    return replace(make_record(1), requests=answers(texts), **changes)  # type: ignore[arg-type]


SOUND = [prose(i) for i in range(5)]


def test_equal_answers_are_counted_and_the_trial_stays_as_it_is() -> None:
    looked = guard(trial([*SOUND[:4], prose(9)]), answers(SOUND), [WORKLOAD])
    measurement = looked.measurements[0]
    assert looked.state is TrialState.COMPLETE
    assert measurement.answers_equal_share == pytest.approx(0.8)
    assert measurement.degenerate_share == 0.0


def test_rubbish_where_the_baseline_is_sound_is_infeasible_and_keeps_what_it_measured() -> None:
    looked = guard(trial([LOOP] * 5), answers(SOUND), [WORKLOAD])
    assert looked.state is TrialState.INFEASIBLE
    assert looked.failure is not None
    assert looked.failure.kind is FailureClass.OUTPUT_DEGENERATE
    assert "5 of 5 answers are broken" in looked.failure.line
    assert looked.measurements[0].output_tok_s == 100.0


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ([LOOP] * 5, [LOOP] * 5),
        ([LOOP, *SOUND[1:]], SOUND),
        ([LOOP, LOOP, *SOUND[2:]], [SOUND[0], SOUND[1], LOOP, *SOUND[3:]]),
    ],
    ids=["the baseline loops as well", "one of five", "as often as the baseline"],
)
def test_loops_that_chance_explains_condemn_nobody(mine: list[str], theirs: list[str]) -> None:
    assert guard(trial(mine), answers(theirs), [WORKLOAD]).state is TrialState.COMPLETE


def test_without_a_baseline_only_the_share_of_broken_answers_is_told() -> None:
    looked = guard(trial([LOOP] * 5), (), [WORKLOAD])
    assert looked.state is TrialState.COMPLETE
    assert looked.measurements[0].degenerate_share == 1.0
    assert looked.measurements[0].answers_equal_share is None


def test_answers_of_a_warm_temperature_are_not_compared() -> None:
    warm = replace(WORKLOAD, temperature=0.7)
    looked = guard(trial(SOUND), answers(SOUND), [warm])
    assert looked.measurements[0].answers_equal_share is None
    assert looked.measurements[0].degenerate_share == 0.0


def test_a_prompt_sent_several_times_in_a_pass_is_paired_by_its_place() -> None:
    twice = [replace(r, prompt_id="p0") for r in answers(SOUND[:2])]
    record = replace(make_record(1), requests=tuple(twice))
    looked = guard(record, twice, [WORKLOAD])
    assert looked.measurements[0].answers_equal_share == 1.0


def test_a_count_of_five_hundred_tokens_with_a_text_of_one_sign_is_found() -> None:
    """Case B7: the server's count stands, and the text is what condemns the trial."""
    record = trial(["!" * 512] * 5)
    record = replace(
        record,
        measurements=(Measurement(workload="single", requests=5, output_tokens=2560),),
    )
    looked = guard(record, answers(SOUND), [WORKLOAD])
    assert looked.failure is not None
    assert looked.measurements[0].output_tokens == 2560


def drafted(length: float | None, **more: object) -> Measurement:
    return Measurement(workload="single", requests=5, accept_length=length, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "measured",
    [
        drafted(1.0, accepted_histogram=(400, 0, 0, 0)),
        drafted(1.0, accepted_histogram=(400,)),
        drafted(1.02, accepted_histogram=(392, 8)),
        drafted(1.0, accept_source="log", output_tokens=400),
    ],
    ids=["as the simulated server says it", "as SGLang says it", "a few", "by the log"],
)
def test_a_draft_of_which_nothing_is_accepted_is_found_however_it_is_told(
    measured: Measurement,
) -> None:
    failure = ineffective([drafted(2.0, accepted_histogram=(50, 50, 50)), measured])
    assert failure is not None
    assert failure.kind is FailureClass.SPEC_INEFFECTIVE
    assert "verify steps" in failure.line


@pytest.mark.parametrize(
    "measured",
    [
        drafted(None, output_tokens=400),
        drafted(1.0, accepted_histogram=(9,)),
        drafted(1.0, accept_source="log", output_tokens=9),
        drafted(1.0, accept_source="log"),
        drafted(1.2, accepted_histogram=(400, 100)),
    ],
    ids=["no speculation", "few steps", "few tokens", "uncounted", "some"],
)
def test_what_is_not_known_to_accept_nothing_is_left_alone(measured: Measurement) -> None:
    assert ineffective([measured]) is None
