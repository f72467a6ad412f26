"""Ask and tell: every sampler behind one class that never proposes a setting twice.

    stored records --in order of number--> a fresh Optuna study --ask--> point --canonical, free?
                                                                        no: again, next sub-seed

Each ask is a pure function of the seed, the told records and the taken keys, so a resumed sweep
proposes what an uninterrupted one would have proposed.
"""

import importlib.util
import itertools
import random
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from sweeper.errors import UserError
from sweeper.planning.families import ruled_out, rules
from sweeper.planning.plan import LISTED_POINTS, Plan, refusal
from sweeper.records import Point, Scalar, TrialRecord
from sweeper.sampler.evidence import Evidence, evidence_of, targets_of
from sweeper.sampler.halton import halton_points
from sweeper.sampler.propose import STOP_CHANCE, STOP_LAUNCHES, Proposer
from sweeper.sampler.replay import finished_trial, new_study, running_trial, suggest
from sweeper.sampler.speed import SpeedSampler
from sweeper.sampler.table import make_table
from sweeper.study import SAMPLERS, Study

#: Proposals that may be repeats or forbidden before a free setting is drawn.
ATTEMPTS = 64
#: The same of gp, which takes a second for each.
GP_ATTEMPTS = 4
#: NSGA-II's population: budgets are tens of launches, and its first population is random.
POPULATION = 10
#: Sampler -> packages that it needs besides what Sweeper needs.
NEEDS = {"gp": ("torch", "scipy")}
#: Samplers that look at earlier trials through Optuna; and those of them that look at several
#: parameters at once, which must then be the same in all trials.
_REPLAYED = ("tpe", "gp", "nsga2")
_FLAT = ("gp", "nsga2")
#: Random points tried where the space is too large to list, and where to end when those found
#: nothing and it is walked in order: nearly all of it may be forbidden.
DRAWS = 2000
WALKED = 2 * LISTED_POINTS


class Sampler(Protocol):
    """Proposes settings and learns from finished trials."""

    def tell(self, record: TrialRecord) -> None:
        """Take a finished trial of any state, in any order; a number told again replaces."""

    def ask(self, taken: Collection[str]) -> Point | None:
        """Return a permitted canonical point whose launch key is not in `taken`.

        Returns:
            None when nothing is left.
        """

    def stop_reason(self) -> str | None:
        """Return why launching more is not worth it, in a sentence; None while it is."""

    def merit(self, before: int) -> Mapping[str, float]:
        """Return what is believed of the settings measured by the trials of smaller number.

        Returns:
            Launch key -> a number that is larger for a better first objective, and is less moved
            by luck than what was measured; empty where nothing but that is known.
        """


def make_sampler(study: Study, plan: Plan) -> Sampler:
    """Return the sampler that `study.sampler` names.

    Raises:
        UserError: It needs a package that is not installed, or there is none of that name.
    """
    name = study.sampler
    if name == "auto" and not plan.complete:
        name = "tpe"
    for package in NEEDS.get(name, ()):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"sampler {name} needs {package}: pip install {' '.join(NEEDS[name])}")
    if name not in SAMPLERS:
        raise UserError(f"there is no sampler {name!r}")
    return Asker(study, plan, name)


class Asker:
    """A `Sampler` over the settings of one plan.

    Args:
        study: The study.
        plan: What it can launch.
        name: Name of the sampler, as in a space file.
    """

    def __init__(self, study: Study, plan: Plan, name: str) -> None:
        self.study = study
        self.plan = plan
        self.name = name
        self._flat = name in _FLAT
        self._records: dict[tuple[str, int], TrialRecord] = {}
        self._trials: dict[tuple[str, int], FrozenTrial | None] = {}
        self._evidence: dict[tuple[str, int], Evidence] = {}
        self._targets = targets_of(study)
        self._proposer = (
            Proposer(make_table(study, plan), self._targets) if name == "auto" else None
        )

    def tell(self, record: TrialRecord) -> None:
        """Take a finished trial."""
        place = (record.trial.study, record.trial.number)
        self._records[place] = record
        self._evidence[place] = evidence_of(record, self._targets)
        if self.name in _REPLAYED:
            study = self.study
            self._trials[place] = finished_trial(
                record, study.space, study.objectives, study.slos, flat=self._flat
            )

    def ask(self, taken: Collection[str]) -> Point | None:
        """Return the next point; see `Sampler`."""
        blocked = frozenset(taken)
        if self.name == "grid":
            return next(self._in_order(blocked), None)
        if self.plan.complete and blocked >= self.plan.settings.keys():
            return None
        if self.name == "qmc":
            return self._on_sequence(blocked)
        optuna_study = self._replay(blocked)
        optuna_study.sampler = self._optuna_sampler(blocked)
        for _ in range(GP_ATTEMPTS if self.name == "gp" else ATTEMPTS):
            trial = optuna_study.ask()
            point = self._free(suggest(trial, self.study.space, flat=self._flat), blocked)
            if point is not None:
                return point
            optuna_study.tell(trial, state=TrialState.FAIL)
        return self._any_free(blocked)

    def stop_reason(self) -> str | None:
        """Return why to stop; see `Sampler`."""
        launched = {e.key for e in self._evidence.values()} & self.plan.settings.keys()
        settings = len(self.plan.settings)
        if self.plan.complete and len(launched) == settings:
            return f"all {settings} settings launched"
        if self._proposer is None or len(launched) < STOP_LAUNCHES:
            return None
        found = self._proposer.stopping(self._ordered(), (self.study.seed,))
        if found.chance >= STOP_CHANCE:
            return None
        return (
            f"{found.launched} of {found.settings} settings launched; the chance that another "
            f"is more than 1 % better is {100 * found.chance:.0f} %"
        )

    def merit(self, before: int) -> Mapping[str, float]:
        """Return what is believed of the measured settings; see `Sampler`."""
        if self._proposer is None:
            return {}
        known = [self._evidence[place] for place in sorted(self._evidence) if place[1] < before]
        return self._proposer.merit(known, (self.study.seed,))

    def _seed(self, taken: int, attempt: int) -> tuple[int, ...]:
        return (self.study.seed, len(self._records), taken, attempt)

    def _ordered(self) -> list[Evidence]:
        return [self._evidence[place] for place in sorted(self._evidence)]

    def _replay(self, taken: frozenset[str]) -> optuna.Study:
        """Return a fresh Optuna study that holds all told trials and those in flight."""
        study = self.study
        replayed = new_study(study.objectives)
        if self.name not in _REPLAYED:
            return replayed
        complete = 0
        told = set()
        for place, record in sorted(self._records.items(), key=lambda item: item[0]):
            told.add(record.trial.launch.key)
            if not record.trial.point:
                continue
            trial = self._trials[place]
            if trial is not None:
                # Optuna's NSGA-II keeps a trial's generation there; a replayed one has none.
                trial.system_attrs["NSGAIISampler:generation"] = complete // POPULATION
                replayed.add_trial(trial)
                complete += trial.state is TrialState.COMPLETE
        for key in sorted(self._launched(taken) - told):
            if key in self.plan.settings:
                point, _ = self.plan.settings[key]
                replayed.add_trial(running_trial(study.space, point, key, flat=self._flat))
        return replayed

    def _launched(self, taken: frozenset[str]) -> frozenset[str]:
        """Return the taken keys that are finished or in flight: others are ruled out by failures."""
        told = {record.trial.launch.key for record in self._records.values()}
        if taken <= told:
            return taken
        learned = rules(list(self._records.values()), self.study)
        return taken - (ruled_out(self.plan.settings, learned) - told)

    def _optuna_sampler(self, taken: frozenset[str]) -> optuna.samplers.BaseSampler:
        seed = int(np.random.SeedSequence(self._seed(len(taken), 0)).generate_state(1)[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            match self.name:
                case "auto":
                    assert self._proposer is not None
                    return SpeedSampler(
                        self.study.space,
                        self._proposer,
                        self._ordered(),
                        taken,
                        self._launched(taken),
                        (self.study.seed,),
                    )
                case "tpe":
                    return optuna.samplers.TPESampler(seed=seed)
                case "gp":
                    return optuna.samplers.GPSampler(seed=seed, warn_independent_sampling=False)
                case "nsga2":
                    return optuna.samplers.NSGAIISampler(seed=seed, population_size=POPULATION)
                case _:
                    return optuna.samplers.RandomSampler(seed=seed)

    def _free(self, point: dict[str, Scalar], taken: frozenset[str]) -> Point | None:
        """Return the point if it may be launched and was not."""
        if self.study.space.violation(point) is not None:
            return None
        key = self.study.launch(point).key
        if key in taken:
            return None
        if key in self.plan.settings:
            return self.plan.settings[key][0]
        return None if self.plan.complete or refusal(self.study, point) else point

    def _in_order(self, taken: frozenset[str]) -> Iterator[Point]:
        for key, (point, _) in self.plan.settings.items():
            if key not in taken:
                yield point
        if not self.plan.complete:
            for other in itertools.islice(self.study.space.points(), LISTED_POINTS, WALKED):
                found = self._free(other, taken)
                if found is not None:
                    yield found

    def _on_sequence(self, taken: frozenset[str]) -> Point | None:
        """Return the first free point of the sequence, walked from its beginning."""
        space = self.study.space
        for drawn in itertools.islice(halton_points(space, self.study.seed), DRAWS):
            point = self._free(space.canonical(drawn), taken)
            if point is not None:
                return point
        return self._any_free(taken)

    def _any_free(self, taken: frozenset[str]) -> Point | None:
        """Return the first free setting in a seeded shuffle."""
        rng = random.Random(repr(self._seed(len(taken), ATTEMPTS)))
        free = [key for key in self.plan.settings if key not in taken]
        if free:
            return self.plan.settings[rng.choice(free)][0]
        for _ in range(DRAWS if not self.plan.complete else 0):
            drawn = {p.name: rng.choice(p.values) for p in self.study.space.parameters}
            found = self._free(self.study.space.canonical(drawn), taken)
            if found is not None:
                return found
        return next(self._in_order(taken), None) if not self.plan.complete else None
