import math
import statistics
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sweeper.config import parse_study
from sweeper.judging.verdict import LAUNCH_NOISE, judge, launch_ratio, shell_command
from sweeper.records import Purpose, TrialRecord
from sweeper.study import Study
from tests.build import make_launch, make_record
from tests.test_config import GOOD


@pytest.fixture
def study() -> Study:
    text = GOOD.replace("slo: [single.ttft_p99_ms < 500]\n", "")
    return parse_study(text, "space.yaml").resolved(gpus_present=False)


def passes(*tok_s: float) -> dict[str, object]:
    return {"repeats_tok_s": tok_s}


def test_nothing_measured_is_said_in_words(study: Study) -> None:
    verdict = judge([], study)
    assert "no setting was measured" in verdict.sentence
    assert verdict.command == ""


def test_a_winner_beyond_the_interval_beats_the_baseline(study: Study) -> None:
    base = make_record(0, 90.0, purpose=Purpose.BASELINE, measurement=passes(89.9, 90.1))
    fast = make_record(2, 95.0, measurement=passes(94.9, 95.1))
    verdict = judge([base, fast], study)
    assert verdict.beats_baseline
    assert verdict.winner is not None
    assert verdict.winner.key == fast.trial.launch.key
    assert verdict.sentence.startswith("SIMULATED: ")
    assert "beats the baseline" in verdict.sentence
    assert "--speculative-num-steps 2" in verdict.command


@pytest.mark.parametrize("speed", [90.0, 91.0, 92.0])
def test_a_lead_within_the_noise_is_no_win_and_the_command_is_the_baselines(
    study: Study, speed: float
) -> None:
    base = make_record(0, 90.0, purpose=Purpose.BASELINE, launch=make_launch())
    verdict = judge([base, make_record(2, speed)], study)
    assert not verdict.beats_baseline
    assert "no setting is shown to beat the baseline" in verdict.sentence
    assert "speculative" not in verdict.command


def test_slower_than_the_baseline_is_said_so(study: Study) -> None:
    base = make_record(0, 90.0, purpose=Purpose.BASELINE)
    verdict = judge([base, make_record(2, 71.0)], study)
    assert "no setting beats the baseline" in verdict.sentence


def test_without_a_baseline_the_best_is_named_and_not_compared(study: Study) -> None:
    verdict = judge([make_record(2, 71.0)], study)
    assert verdict.ratio is None
    assert "no baseline to compare with" in verdict.sentence
    assert verdict.command


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    truth, hits, rounds = 1.04, 0, 400

    def launch(level: float) -> list[float]:
        own = level * math.exp(random.normal(0, LAUNCH_NOISE))
        return [own * math.exp(random.normal(0, 0.01)) for _ in range(3)]

    for _ in range(rounds):
        ratio = launch_ratio([launch(90 * truth)], [launch(90)])
        hits += ratio.low <= truth <= ratio.high
    assert 0.92 <= hits / rounds <= 0.995


def test_more_launches_make_the_interval_narrower() -> None:
    widths = []
    for launches in (1, 2, 4):
        ratio = launch_ratio([[94, 95]] * launches, [[90, 91]] * launches)
        widths.append(math.log(ratio.high / ratio.low))
    assert widths == sorted(widths, reverse=True)
    assert ratio.mid == pytest.approx(statistics.geometric_mean([94 / 90, 95 / 91]))


def test_the_command_runs_in_a_shell_with_every_word_as_it_was(tmp_path: Path) -> None:
    show = tmp_path / "show args.sh"
    show.write_text('#!/bin/sh\nprintf "%s\\n" "$NAME" "$@"\n')
    show.chmod(0o755)
    launch = make_launch(
        command=(str(show),),
        model="/models/it's a model; rm -rf $HOME",
        flags={"flag-with-text": "a 'b' \"c\" `d`", "list": (1, 2), "on": True, "off": False},
        env={"NAME": "x y; $(false)"},
    )
    text = shell_command(launch)
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "x y; $(false)",
        "--model-path",
        "/models/it's a model; rm -rf $HOME",
        "--flag-with-text",
        "a 'b' \"c\" `d`",
        "--list",
        "1",
        "2",
        "--on",
    ]


def test_secrets_in_the_command_are_hidden() -> None:
    launch = make_launch(
        command=("/mnt/disk_1/bin/python", "--admin-api-key", "s3cret"),
        flags={"api-key": "s3cret"},
        env={"HF_TOKEN": "s3cret"},
    )
    assert "s3cret" not in shell_command(launch)
    assert "/mnt/disk_1/bin/python" in shell_command(launch)


def confirmed(number: int, tok_s: float, of: TrialRecord, *repeats_tok_s: float) -> TrialRecord:
    """Return a fresh launch of another trial's setting."""
    record = make_record(number, tok_s, measurement=passes(*(repeats_tok_s or (tok_s,))))
    return replace(record, trial=replace(of.trial, number=number, purpose=Purpose.CONFIRM))


def test_only_confirmations_are_judged_once_there_are_some(study: Study) -> None:
    base = make_record(0, 90.0, purpose=Purpose.BASELINE, launch=make_launch())
    lucky, good = make_record(2, 99.0), make_record(3, 96.0)
    unconfirmed = make_record(4, 98.0)
    records = [base, lucky, good, unconfirmed]
    records += [confirmed(5, 90.1, base), confirmed(6, 91.0, lucky), confirmed(7, 95.5, good)]
    records += [confirmed(8, 89.9, base), confirmed(9, 91.0, lucky), confirmed(10, 95.5, good)]
    verdict = judge(records, study)
    assert verdict.winner is not None
    assert verdict.winner.key == good.trial.launch.key
    assert verdict.winner.values == (95.5,)
    assert verdict.beats_baseline
    assert verdict.ratio is not None
    assert verdict.ratio.mid == pytest.approx(95.5 / 90, rel=1e-3)


def test_an_unconfirmed_winner_is_said_to_be_one(study: Study) -> None:
    base = make_record(0, 90.0, purpose=Purpose.BASELINE, launch=make_launch())
    assert any("not launched again" in n for n in judge([base, make_record(2, 99.0)], study).notes)


def test_the_best_of_many_equals_needs_a_wider_lead_than_one_alone(study: Study) -> None:
    base = make_record(0, 90.0, purpose=Purpose.BASELINE, launch=make_launch())
    alone = judge([base, make_record(2, 93.0)], study)
    many = judge([base, *(make_record(n, 93.0 - n / 100) for n in range(2, 12))], study)
    assert alone.beats_baseline
    assert not many.beats_baseline


def test_a_drift_is_taken_out_and_said(study: Study) -> None:
    bases = [
        replace(
            make_record(number, tok_s, purpose=Purpose.BASELINE, launch=make_launch()),
            started_at=f"2026-11-29T{number:02d}:00:00+00:00",
        )
        for number, tok_s in ((0, 100.0), (3, 97.0), (6, 94.0), (9, 91.0), (12, 88.0))
    ]
    late = replace(make_record(10, 94.5), started_at="2026-11-29T10:00:00+00:00")
    verdict = judge([*bases, late], study)
    assert "the node drifted" in verdict.sentence
    assert verdict.beats_baseline
    assert verdict.ratio is not None
    assert verdict.ratio.mid == pytest.approx(1.05, rel=0.01)


def test_launches_that_differ_widely_widen_the_interval(study: Study) -> None:
    base = make_record(0, 90.0, purpose=Purpose.BASELINE, launch=make_launch())
    fast = make_record(2, 99.0)
    noisy = [base, fast]
    for number, (a, b) in enumerate([(80.0, 99.0), (97.0, 88.0), (91.0, 110.0)]):
        noisy += [confirmed(3 + 2 * number, a, base), confirmed(4 + 2 * number, b, fast)]
    verdict = judge(noisy, study)
    assert verdict.launch_noise > 0.05
    assert not verdict.beats_baseline


def test_broken_answers_cannot_win_even_where_the_guard_had_no_baseline_yet(study: Study) -> None:
    sound = {"degenerate_share": 0.0}
    base = make_record(0, 90.0, purpose=Purpose.BASELINE, launch=make_launch(), measurement=sound)
    rubbish = make_record(2, 150.0, measurement={"degenerate_share": 1.0})
    verdict = judge([base, rubbish, make_record(3, 80.0, measurement=sound)], study)
    assert verdict.winner is not None
    assert verdict.winner.records[0].trial.number == 3
