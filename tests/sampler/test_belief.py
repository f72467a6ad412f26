"""What the model believes of settings that were not launched."""

from dataclasses import replace

import numpy as np
import pytest

from sweeper.planning.plan import make_plan
from sweeper.records import Point
from sweeper.sampler.belief import Model
from sweeper.sampler.evidence import Evidence, evidence_of, targets_of
from sweeper.sampler.propose import Proposer
from sweeper.sampler.table import make_table
from sweeper.study import Study
from tests.sampler.worlds import PLAIN, SMALL, record, rng, small_study

STEPS = 4000


def chain(study: Study, number: int, steps: int, nccl: str, chance: float) -> Evidence:
    """Return what a launch of a chain shows whose positions are all accepted with this chance."""
    point = study.space.canonical({"steps": steps, "topk": 1, "nccl": nccl})
    survive = [chance**i for i in range(steps + 1)]
    counts = [STEPS * (a - b) for a, b in zip(survive, [*survive[1:], 0.0], strict=True)]
    return Evidence(
        number=number,
        key=study.launch(point).key,
        values=(50.0 * sum(survive),),
        accepted={"single": {"": tuple(counts)}},
        gpu_s=100.0,
        unfit=False,
    )


def gain_by_ring(study: Study, ring: float) -> float:
    """Return by how much Ring is believed to lengthen a chain that was launched without it."""
    table = make_table(study, make_plan(study))
    evidence = [
        chain(study, 1, 4, "default", 0.6),
        chain(study, 2, 2, "ring", ring),
        chain(study, 3, 1, "ring", ring),
        chain(study, 4, 2, "tree", 0.6),
        chain(study, 5, 3, "tree", 0.6),
    ]
    belief = Model(table, targets_of(study)).believe(evidence, rng(0))
    rows = [
        table.row[study.launch(study.space.canonical({"steps": 4, "topk": 1, "nccl": n})).key]
        for n in ("ring", "default")
    ]
    with_ring, without = belief.log_lengths["single"].mean(axis=0)[rows]
    return float(np.exp(with_ring - without) - 1)


def test_acceptance_that_depends_on_nccl_is_carried_over_to_other_shapes() -> None:
    # 0.6 -> 0.65 lengthens a chain of four from 2.31 to 2.53 tokens a step.
    assert gain_by_ring(small_study(), 0.65) == pytest.approx(0.095, abs=0.03)


def test_acceptance_that_does_not_depend_on_nccl_is_left_alone() -> None:
    assert gain_by_ring(small_study(), 0.6) == pytest.approx(0.0, abs=0.004)


def test_a_question_about_the_same_trials_is_answered_without_another_fit() -> None:
    study = small_study()
    proposer = Proposer(make_table(study, make_plan(study)), targets_of(study))
    evidence = [chain(study, n, n, "default", 0.6) for n in (1, 2, 3)]
    fits = 0
    believe = proposer.model.believe

    class Counting(Model):
        def believe(self, *given: object) -> object:  # type: ignore[override]
            nonlocal fits
            fits += 1
            return believe(*given)  # type: ignore[arg-type]

    proposer.model = Counting(proposer.table, proposer.targets)
    taken = {e.key for e in evidence}
    proposer.stopping(evidence, (1,))
    for _ in range(6):
        key = proposer.propose(evidence, taken, taken, (1,))
        assert key is not None
        taken.add(key)
    assert fits == 1
    proposer.stopping([*evidence, chain(study, 4, 4, "ring", 0.6)], (1,))
    assert fits == 2


def test_a_lucky_setting_is_believed_less_than_it_showed() -> None:
    study = small_study()
    table = make_table(study, make_plan(study))
    evidence = [
        chain(study, number, steps, nccl, 0.6)
        for number, (steps, nccl) in enumerate(
            [(steps, nccl) for steps in (1, 2, 3, 4) for nccl in ("default", "ring", "tree")], 1
        )
    ]
    speed = evidence[3].values[0]
    assert speed is not None
    lucky = replace(evidence[3], values=(speed * 1.06,))
    merits = Proposer(table, targets_of(study)).merit([*evidence[:3], lucky, *evidence[4:]], (0,))
    assert set(merits) == {e.key for e in evidence}
    # Its neighbours by NCCL have the same chain and the same step time.
    above = merits[lucky.key] - merits[evidence[4].key]
    assert 0 < above < 0.75 * np.log(1.06)


def test_a_chain_longer_than_the_modelled_positions_is_believed_as_it_was_measured() -> None:
    study = small_study(SMALL.replace("values: [1, 2, 3, 4]", "values: [1, 2, 4, 15]"))
    table = make_table(study, make_plan(study))
    evidence = [chain(study, n, n, "default", 0.9) for n in (1, 2, 4, 15)]
    belief = Model(table, targets_of(study)).believe(evidence, rng(0))
    for item in evidence:
        believed = belief.logs[0][:, table.row[item.key]].mean()
        assert item.values[0] is not None
        assert np.exp(believed) == pytest.approx(item.values[0], rel=0.05)


def test_nothing_is_believed_of_what_was_not_measured() -> None:
    study = small_study()
    table = make_table(study, make_plan(study))
    failed = replace(chain(study, 1, 2, "ring", 0.6), values=(None,), unfit=True)
    assert Proposer(table, targets_of(study)).merit([failed], (0,)) == {}


def test_a_favourite_that_disappoints_does_not_end_the_sweep() -> None:
    """At 41 trials the model is fitted to 40, and still believes the last one to be the best."""
    text = PLAIN.replace("[0.7, 0.8, 0.9]", "[0.71, 0.72, 0.73, 0.74, 0.75]")
    study = small_study(text.replace("[1024, 2048, 4096, 16384]", "[1, 2, 3, 4]"))
    plan = make_plan(study)
    shares: dict[object, float] = {0.72: 1.03, 0.73: 1.01, 0.74: 1.04, 0.75: 1.10, 2: 1.05}
    shares |= {3: 1.12, 4: 1.07, "ring": 1.10, "tree": 1.04}

    def speed(point: Point) -> float:
        return 50.0 * float(np.prod([shares.get(value, 1.0) for value in point.values()]))

    slow = [point for point, _ in plan.settings.values() if speed(point) < 60.0]
    drawn = [slow[index] for index in rng(1).permutation(len(slow))[:39]]
    targets = targets_of(study)
    known = [
        evidence_of(record(study, n, p, speed=speed), targets) for n, p in enumerate([{}, *drawn])
    ]
    assert len(known) == 40
    proposer = Proposer(make_table(study, plan), targets)
    key = proposer.propose(known, {e.key for e in known}, {e.key for e in known}, (0,))
    assert key is not None
    favourite = plan.settings[key][0]
    fallen = record(study, 40, favourite, speed=lambda point: 0.8 * speed(point))
    found = proposer.stopping([*known, evidence_of(fallen, targets)], (0,))
    assert found.launched == 40
    assert found.chance > 0.5
