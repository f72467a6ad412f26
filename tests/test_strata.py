"""Kinds of hardware are never compared: the budget's parts, the rows, the names of files, the page."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.cluster import SweepNumbers, merged
from sweeper.judging.verdict import judge
from sweeper.planning.misfits import comparable
from sweeper.planning.strata import beside, divide, hardware_of, kinds, on_hardware
from sweeper.records import HostFacts, TrialRecord
from sweeper.report import write_report
from sweeper.store import Store
from sweeper.study import Budget, Study
from sweeper.terminal.results import write_results
from tests.report import build

STUDY = build.small_study()


def on(record: TrialRecord, kind: str | None) -> TrialRecord:
    return replace(record, host=HostFacts(host="node", slot=f"slot {kind}", gpu_name=kind))


def two_kinds() -> list[TrialRecord]:
    """Return rows of which the worst on the new GPUs are faster than the best on the old ones."""
    new = [build.record(STUDY, 0, tok_s=200.0)]
    new += [build.record(STUDY, n, build.point(n), tok_s=200.0 + 10 * n) for n in (1, 2, 3)]
    old = [build.record(STUDY, 4, tok_s=90.0), build.record(STUDY, 5, build.point(1), tok_s=120.0)]
    return [*(on(r, "H200") for r in new), *(on(r, "A100") for r in old)]


def with_budget(**changes: object) -> Study:
    return replace(STUDY, budget=replace(Budget(), **changes))  # type: ignore[arg-type]


@given(
    launches=st.integers(2, 500),
    slots=st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.integers(1, 9), min_size=1),
)
def test_the_parts_of_a_budget_are_the_whole_and_none_is_too_small(
    launches: int, slots: dict[str | None, int]
) -> None:
    study = with_budget(launches=launches, confirm=launches // 3, hours=8.0)
    parts = divide(study, slots)
    assert parts.keys() <= slots.keys()
    budgets = [own.budget for own in parts.values()]
    assert sum(b.launches for b in budgets) == launches
    assert sum(b.confirm for b in budgets) == launches // 3
    assert sum(b.hours or 0.0 for b in budgets) == pytest.approx(8.0)
    assert all(b.launches >= 2 for b in budgets)
    assert all(b.confirm <= b.launches for b in budgets)
    counts = [slots[kind] for kind in parts]
    assert counts == sorted(counts, reverse=True)


def test_one_kind_has_the_whole_budget() -> None:
    study = with_budget(launches=1, hours=None)
    assert divide(study, {None: 3}) == {None: study}


def test_a_kind_whose_part_is_too_small_gives_it_to_the_others() -> None:
    parts = divide(with_budget(launches=9), {"H200": 8, "A100": 1})
    assert {kind: own.budget.launches for kind, own in parts.items()} == {"H200": 9}


def test_rows_of_other_hardware_are_left_out_and_unnamed_ones_kept() -> None:
    records = [on(r, kind) for r, kind in zip(two_kinds(), ["H200", None, "A100"], strict=False)]
    assert [r.trial.number for r in on_hardware(records, "A100")] == [1, 2]
    assert on_hardware(records, None) == records
    assert kinds(two_kinds()) == ["H200", "A100"]
    assert kinds([]) == []


def test_no_verdict_spans_two_kinds() -> None:
    best = {}
    for kind in ("H200", "A100"):
        records = on_hardware(two_kinds(), kind)
        verdict = judge(records, STUDY)
        assert verdict.baseline is not None
        assert verdict.winner is not None
        judged = [*verdict.baseline.records, *verdict.winner.records]
        assert {hardware_of(r) for r in judged} == {kind}
        best[kind] = verdict.winner.key
    # Each kind has its own best setting.
    assert len(set(best.values())) == 2


def test_what_is_looked_back_at_is_one_kind_and_says_so() -> None:
    kept, left = comparable(two_kinds(), STUDY)
    assert {hardware_of(r) for r in kept} == {"H200"}
    assert left == [
        "2 of the stored trials: measured on other hardware, which is judged by itself"
    ]
    kept, _ = comparable(two_kinds(), STUDY, "A100")
    assert [r.trial.number for r in kept] == [4, 5]


def test_each_kind_has_a_page(tmp_path: Path) -> None:
    with Store(tmp_path / "small") as store:
        store.create()
        store.keep_study(STUDY.text)
        for record in two_kinds():
            store.write(record)
    write_report(tmp_path / "small")
    first = (tmp_path / "small" / "report.html").read_text("utf-8")
    second = (tmp_path / "small" / "report-a100.html").read_text("utf-8")
    assert "small on H200" in first
    assert "small on A100" in second
    assert not list((tmp_path / "small").glob("report-h200*"))


def test_no_answer_of_an_earlier_order_of_kinds_stays_behind(tmp_path: Path) -> None:
    """A kind that overtakes another has its answer in the first file, and only there."""
    folder = tmp_path / "small"

    def write_all(records: list[TrialRecord]) -> None:
        for record in records:
            store.write(record)
        found = store.records()
        by_kind = {k: (STUDY, on_hardware(found, k), "it ended") for k in kinds(found)}
        write_results(store, by_kind)

    with Store(folder) as store:
        store.create()
        store.keep_study(STUDY.text)
        few = [r for r in two_kinds() if r.trial.number in (4, 5)]
        write_all(few + [r for r in two_kinds() if r.trial.number == 0])
        assert {p.name for p in folder.glob("best*.sh")} == {"best.sh", "best-h200.sh"}
        assert (folder / "report-h200.html").exists()
        write_all([r for r in two_kinds() if r.trial.number in (1, 2, 3)])
    assert {p.name for p in folder.glob("best*.sh")} == {"best.sh", "best-a100.sh"}
    assert {p.name for p in folder.glob("*.html")} == {"report.html", "report-a100.html"}
    assert (folder / "best.sh").read_text().splitlines()[1] == "# On H200:"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("NVIDIA H200", "best.sh"),
        ("", "best.sh"),
        ("NVIDIA A100-SXM4-80GB", "best-nvidia-a100-sxm4-80gb.sh"),
        ("../../etc", "best-etc.sh"),
    ],
)
def test_a_kinds_files_have_its_name(kind: str, name: str) -> None:
    assert beside("best.sh", kind, ["NVIDIA H200", "NVIDIA A100-SXM4-80GB"]) == name


def test_published_numbers_of_two_kinds_add_up_but_for_their_speeds() -> None:
    def part(kind: str, speed: float, busy: float) -> SweepNumbers:
        return SweepNumbers(
            study="s",
            engine="sglang",
            state="confirming" if kind == "A100" else "searching",
            launches={"complete": 2, kind: 1},
            running=1,
            launches_left=3,
            settings_left=4,
            best_tok_s={kind: speed},
            phases_s={"start": 1.5},
            gpu_hours=2.0,
            busy_share=busy,
            slots_s=100.0,
        )

    both = merged([part("H200", 200.0, 1.0), part("A100", 100.0, 0.5)])
    assert both.launches == {"complete": 4, "H200": 1, "A100": 1}
    assert both.best_tok_s == {"H200": 200.0, "A100": 100.0}
    assert (both.running, both.launches_left, both.settings_left) == (2, 6, 8)
    assert (both.state, both.busy_share, both.gpu_hours) == ("searching", 0.75, 4.0)
    assert both.gpu_hours_left is None
    assert both.phases_s == {"start": 3.0}
