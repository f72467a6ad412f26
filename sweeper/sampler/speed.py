"""The two-part model as an Optuna sampler."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial

from sweeper.records import Point
from sweeper.sampler.evidence import Evidence
from sweeper.sampler.propose import Proposer
from sweeper.sampler.replay import distribution, encode
from sweeper.space import Space


class SpeedSampler(BaseSampler):
    """Proposes by `Proposer`; what a trial taught stands in `evidence` by the trial's number.

    Histograms of acceptance do not fit into an Optuna trial's values, so this sampler reads the
    evidence of the finished trials instead of the trials.

    Args:
        space: The search space.
        proposer: The search.
        evidence: What was learned, in the order of the trials' numbers.
        taken: Launch keys that are not free.
        launched: Those of them that are finished or in flight.
        seed: Seeds all chance.
    """

    def __init__(
        self,
        space: Space,
        proposer: Proposer,
        evidence: Sequence[Evidence],
        taken: Collection[str],
        launched: Collection[str],
        seed: Sequence[int],
    ) -> None:
        self._space = space
        self._proposer = proposer
        self._evidence = evidence
        self._taken = taken
        self._launched = launched
        self._seed = seed
        self._random = RandomSampler(seed=sum(seed) % 2**32)

    def infer_relative_search_space(
        self,
        study: Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        """Return all parameters: the search proposes whole settings."""
        return {p.name: distribution(p) for p in self._space.parameters}

    def sample_relative(
        self,
        study: Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        """Return the proposed setting; nothing once all settings are taken."""
        key = self._proposer.propose(self._evidence, self._taken, self._launched, self._seed)
        return {} if key is None else encode(self._space, self._point(key))

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a random value; asked for only once all settings are taken."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def _point(self, key: str) -> Point:
        table = self._proposer.table
        points: Mapping[str, Point] = dict(zip(table.keys, table.points, strict=True))
        return points[key]
