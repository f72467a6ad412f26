"""The search: evidence in, the next launch key out, and when to stop.

start     about three launches that differ in shape and in all factors at once
exploit   the largest chance of being best, by price
mix       that and the knowledge gradient in turn
"""

import operator
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sweeper.sampler.acquire import (
    Mask,
    chance_of_best,
    chance_of_better,
    hypervolume,
    knowledge,
)
from sweeper.sampler.belief import Belief, Model
from sweeper.sampler.evidence import Evidence, Target
from sweeper.sampler.failures import chance_to_work
from sweeper.sampler.start import first_launch
from sweeper.sampler.table import Table
from sweeper.speculation import Array, fit

#: Launches after which knowledge is asked for in turn with chance.
EXPLOIT_LAUNCHES = 14
#: Settings with a smaller chance to work at all are launched last.
HOPE = 0.1
#: A sweep may stop once the chance of something better is below this, and not before this many
#: launches: the model's own doubt is not to be trusted earlier.
STOP_CHANCE, STOP_LAUNCHES = 0.05, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """How likely a better setting is left.

    Attributes:
        chance: That one not launched is more than a tie better than all launched.
        launched: Settings of the plan that were launched.
        settings: Settings of the plan.
    """

    chance: float
    launched: int
    settings: int


def basis(launches: int) -> int:
    """Return how many of so many finished trials the model is fitted to: all below 40.

    From then on at least nine in ten, so that a long sweep fits it a few times in each doubling.
    """
    stride = 1 if launches < 40 else 1 << ((launches // 10).bit_length() - 1)
    return launches - launches % stride


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """What the model believes after some trials, kept for the next question about them."""

    known: tuple[Evidence, ...]
    seed: tuple[int, ...]
    belief: Belief
    gains: tuple[Array, ...]
    feasible: Mask
    price: Array
    worth: dict[str, Array]


class Proposer:
    """Proposes launches of a plan, as a function of what it is given.

    It keeps the features of the settings, and the last belief and merits for the next question
    about the same trials.
    """

    def __init__(self, table: Table, targets: Sequence[Target]) -> None:
        self.table = table
        self.targets = tuple(targets)
        self.model = Model(table, targets)
        self._last: _View | None = None
        self._merits: tuple[list[Evidence], tuple[int, ...], dict[str, float]] | None = None

    def propose(
        self,
        evidence: Iterable[Evidence],
        taken: Collection[str],
        launched: Collection[str],
        seed: Sequence[int],
    ) -> str | None:
        """Return the key of the setting to launch next; None if all are taken.

        Args:
            evidence: All finished trials, in the order of their numbers.
            taken: Launch keys that are not free.
            launched: Those of them that are finished or in flight; the others are ruled out.
            seed: Seeds all chance.
        """
        table = self.table
        known = [e for e in evidence if e.key in table.row]
        free = np.array([key not in taken for key in table.keys[: table.plan_rows]])
        if not free.any():
            return None
        works = self.works(known)
        row = first_launch(table, launched, free & (works > 0.5))
        if row is not None:
            return table.keys[row]
        view = self._view(known, seed)
        count = table.plan_rows
        launches = len({key for key in launched if key in table.row} | {e.key for e in known})
        worth = self._worth(view, launches)[:count]
        # The mean decides among settings that no sample calls the best.
        mean = view.gains[0][:, :count].mean(axis=0)
        score = (worth + 1e-6 * np.exp(mean - mean.max())) * works / view.price[:count]
        likely = free & (works >= HOPE)
        score[~(likely if likely.any() else free)] = -np.inf
        return table.keys[int(np.argmax(score))]

    def stopping(self, evidence: Iterable[Evidence], seed: Sequence[int]) -> Stopping:
        """Return how likely a better setting is left, by the first objective."""
        table = self.table
        known = [e for e in evidence if e.key in table.row]
        view = self._view(known, seed)
        feasible = view.feasible.copy()
        # A setting that cannot or probably cannot work is no hope.
        unfit = {e.key for e in known if e.unfit}
        # Nor is one that the model has not seen yet known to be as good as hoped.
        fitted = {e.key for e in view.known if e.measured}
        late = {e.key for e in known if e.measured and e.key not in fitted}
        feasible[:, : table.plan_rows] &= self.works(known) > 0.5
        feasible[:, [table.row[key] for key in sorted(unfit | late)]] = False
        tried = {e.key for e in known if e.measured} | unfit
        launched = np.array([key in tried for key in table.keys])
        return Stopping(
            chance=chance_of_better(view.gains[0], feasible, launched, view.belief.misfit[0]),
            launched=int(launched[: table.plan_rows].sum()),
            settings=table.plan_rows,
        )

    def merit(self, evidence: Iterable[Evidence], seed: Sequence[int]) -> dict[str, float]:
        """Return what the model makes of each measured setting, larger is better.

        The logarithm of the first objective, or less it: a measured one was lucky as well as
        good, and the settings that share its parameters tell how much.

        Args:
            evidence: Finished trials, in the order of their numbers.
            seed: Seeds all chance.
        """
        table = self.table
        known = [e for e in evidence if e.key in table.row]
        measured = [e.key for e in known if e.measured]
        if not measured:
            return {}
        last = self._merits
        if last is not None and last[1] == tuple(seed) and _same(last[0], known):
            return last[2]
        belief = self.model.believe(known, np.random.default_rng([*seed, len(known)]))
        mean = self.gains(belief)[0][0].mean(axis=0)
        merits = {key: float(mean[table.row[key]]) for key in measured}
        self._merits = (known, tuple(seed), merits)
        return merits

    def _view(self, known: Sequence[Evidence], seed: Sequence[int]) -> _View:
        """Return what the model believes after the trials that it is fitted to."""
        fitted = tuple(known[: basis(len(known))])
        last = self._last
        if last is not None and last.seed == tuple(seed) and _same(last.known, fitted):
            return last
        belief = self.model.believe(fitted, np.random.default_rng([*seed, len(fitted)]))
        gains, feasible = self.gains(belief)
        self._last = _View(
            known=fitted,
            seed=tuple(seed),
            belief=belief,
            gains=gains,
            feasible=feasible,
            price=self.price(fitted),
            worth={},
        )
        return self._last

    def gains(self, belief: Belief) -> tuple[tuple[Array, ...], Mask]:
        """Return each objective's log so that larger is better, and where limits are kept."""
        gains = []
        feasible = np.ones(belief.logs[0].shape, dtype=np.bool_)
        for target, logs, seen in zip(self.targets, belief.logs, belief.seen, strict=True):
            if target.bound is None:
                gains.append(logs if target.maximize else -logs)
            elif target.bound > 0 and seen:
                limit = np.log(target.bound)
                feasible &= logs >= limit if target.maximize else logs <= limit
        return tuple(gains), feasible

    def works(self, known: Sequence[Evidence]) -> Array:
        """Return for each setting of the plan the chance that it can work at all."""
        table = self.table
        inside = set(table.keys[: table.plan_rows]) & {e.key for e in known}
        fine = {e.key for e in known if e.measured} & inside
        unfit = {e.key for e in known if e.unfit} & inside - fine
        return chance_to_work(
            table.points[: table.plan_rows],
            [table.points[table.row[key]] for key in sorted(unfit)],
            [table.points[table.row[key]] for key in sorted(fine)],
        )

    def price(self, known: Sequence[Evidence]) -> Array:
        """Return the expected GPU-seconds of each row's launch, by the mean one's; around 1."""
        design = self.model.price_design
        rows = [self.table.row[e.key] for e in known if e.gpu_s]
        logs = np.log([e.gpu_s for e in known if e.gpu_s])
        if len(rows) < 3:
            return np.ones(len(self.table.keys))
        middle = float(np.median(logs))
        noise = np.full(len(rows), 0.1**2)
        found = fit(design.rows[rows], logs - middle, noise, 0 * design.mean, design.sd)
        return np.asarray(np.exp(np.clip(design.rows @ found.mean, -1.0, 1.0)))

    def _worth(self, view: _View, launches: int) -> Array:
        """Return the gain of a launch of each row, at this number of settings launched."""
        gains, feasible = view.gains, view.feasible
        kind = "chance"
        # The first objective decides the winner, so every third launch is for it alone.
        if len(gains) > 1 and launches % 3:
            kind = "volume"
        elif len(gains) == 1 and launches >= EXPLOIT_LAUNCHES and launches % 2:
            kind = "knowledge"
        if kind not in view.worth:
            match kind:
                case "volume":
                    measured = {e.key for e in view.known if e.measured}
                    launched = np.array([key in measured for key in self.table.keys])
                    rng = np.random.default_rng([*view.seed, len(view.known), 1])
                    view.worth[kind] = hypervolume(gains, feasible, launched, rng)
                case "knowledge":
                    view.worth[kind] = knowledge(gains[0], feasible, view.belief.noise[0])
                case _:
                    view.worth[kind] = chance_of_best(gains[0], feasible)
        return view.worth[kind]


def _same(some: Sequence[Evidence], others: Sequence[Evidence]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))
