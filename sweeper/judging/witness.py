"""What a finished trial is compared with: the baseline's answers and the best one's speeds.

Requests are many and stay on disk; of all trials only those of two are kept here.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from sweeper.judging.guard import guard
from sweeper.judging.pruning import SPEEDS, Rival, rival_of
from sweeper.objective import broken_slos, trend
from sweeper.records import Purpose, RequestTiming, Trial, TrialRecord, TrialState
from sweeper.study import Study


class Witness:
    """Remembers the two trials that others are compared with.

    Args:
        study: The study.
        records: Trials that have finished before, without requests.
        requests_of: Reads the requests of a stored trial.
    """

    def __init__(
        self,
        study: Study,
        records: Iterable[TrialRecord],
        requests_of: Callable[[int], Sequence[RequestTiming]],
    ) -> None:
        self._study = study
        self._base = study.baseline_launch().key
        #: Salt -> the baseline's requests.
        self._answers: dict[str, Sequence[RequestTiming]] = {}
        self._best: tuple[float, Rival] | None = None
        self._baselines: list[TrialRecord] = []
        best: TrialRecord | None = None
        for record in records:
            salt = record.trial.salt
            if self._is_baseline(record) and salt not in self._answers:
                self._answers[salt] = requests_of(record.trial.number)
            if self._is_better(record, best):
                best = record
            self._note(record)
        if best is not None:
            self._take(best, requests_of(best.trial.number))

    def look(self, record: TrialRecord) -> TrialRecord:
        """Return a finished trial with what its answers show, and remember what others need."""
        baseline = self._answers.get(record.trial.salt, ())
        record = guard(record, baseline, self._study.workloads)
        if self._is_baseline(record):
            self._answers.setdefault(record.trial.salt, record.requests)
        if self._is_better(record, None, -math.inf if self._best is None else self._best[0]):
            self._take(record, record.requests)
        self._note(record)
        return record

    def rival(self, trial: Trial) -> Rival | None:
        """Return what an early stop of `trial` compares it with; None where it must run whole."""
        if trial.purpose not in (Purpose.SEARCH, Purpose.KNOWN) or self._best is None:
            return None
        if len(self._study.objectives) > 1:
            return None
        rival = self._best[1]
        low, high = trend(self._baselines, self._study.objectives[0]).swing
        return Rival(
            workload=rival.workload,
            metric=rival.metric,
            confidence=rival.confidence,
            speeds=rival.speeds,
            slack=math.log1p(high) - math.log1p(low),
        )

    def _note(self, record: TrialRecord) -> None:
        if self._is_baseline(record):
            self._baselines.append(record)

    def _is_baseline(self, record: TrialRecord) -> bool:
        return record.state is TrialState.COMPLETE and record.trial.launch.key == self._base

    def _is_better(
        self, record: TrialRecord, best: TrialRecord | None, gain: float = -math.inf
    ) -> bool:
        """Tell whether a trial of the search is better than the best one so far.

        One that breaks a limit cannot win, so being slower than it rules nobody out.
        """
        if record.state is not TrialState.COMPLETE or record.trial.purpose is Purpose.CONFIRM:
            return False
        if broken_slos(record, self._study.slos):
            return False
        objective = self._study.objectives[0]
        value = objective.value(record)
        than = None if best is None else objective.value(best)
        if than is not None:
            gain = objective.gain(than)
        return value is not None and objective.gain(value) > gain

    def _take(self, record: TrialRecord, requests: Sequence[RequestTiming]) -> None:
        objective, confidence = self._study.objectives[0], self._study.budget.prune_confidence
        value = objective.value(record)
        if (
            confidence is None
            or value is None
            or objective.metric not in SPEEDS
            or record.state is not TrialState.COMPLETE
            or record.trial.purpose is Purpose.CONFIRM
        ):
            return
        workload = objective.workload or self._study.workloads[0].name
        rival = rival_of(requests, workload, confidence, objective.metric)
        self._best = objective.gain(value), rival
