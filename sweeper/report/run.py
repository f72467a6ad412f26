"""One finished or running sweep, read from its folder: what every figure is computed from."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sweeper.config import parse_study
from sweeper.errors import UserError
from sweeper.judging.verdict import Verdict, judge
from sweeper.planning.misfits import as_run, comparable
from sweeper.planning.plan import Plan, make_plan
from sweeper.planning.strata import kinds
from sweeper.records import RequestTiming, TrialRecord, TrialState
from sweeper.report.prompts import RequestReader
from sweeper.report.settings import is_simulated
from sweeper.store import Store
from sweeper.study import Study

#: Fewer distinct settings say nothing about which parameter matters.
_ENOUGH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All that a report shows of one study.

    Attributes:
        name: Name of its folder.
        study: The study, with its engine decided as it was run.
        records: Its finished trials by number, without requests, as far as they can be compared.
        requests: Reads the requests of one trial.
        verdict: The answer.
        plan: What could be launched; None where the space cannot be listed.
        importances: Share of the variation by parameter; empty where too little was measured.
        problems: What could not be read, a line each.
        unread: The same of requests, filled by `requests` when they are asked for.
    """

    name: str
    study: Study
    records: tuple[TrialRecord, ...]
    requests: RequestReader
    verdict: Verdict
    plan: Plan | None
    importances: Mapping[str, float]
    problems: tuple[str, ...]
    unread: list[str] = field(default_factory=list)

    @property
    def simulated(self) -> bool:
        """Whether any trial is of the simulated server."""
        return self.verdict.simulated or any(is_simulated(r) for r in self.records)


def load_run(folder: Path) -> Run:
    """Read the folder of one study: what was measured on the hardware of most trials.

    Raises:
        UserError: It is no such folder, or its space file is not valid.
    """
    return next(iter(load_strata(folder).values()))


def load_strata(folder: Path) -> dict[str, Run]:
    """Read the folder of one study: a run for each kind of hardware, that of most trials first.

    Raises:
        UserError: It is no such folder, or its space file is not valid.
    """
    store = Store(folder)
    text = store.study_text()
    records = store.records()
    name, study = folder.resolve().name, parse_study(text, str(folder / "study.yaml"))
    requests = functools.lru_cache(maxsize=None)(store.requests_of)
    found = kinds(records) or [""]
    problems, store.problems = store.problems, []
    runs = {
        kind: make_run(
            name if len(found) == 1 else f"{name} on {kind}",
            study,
            records,
            requests,
            problems=problems,
            hardware=kind or None,
        )
        for kind in found
    }
    return {kind: replace(run, unread=store.problems) for kind, run in runs.items()}


def make_run(
    name: str,
    study: Study,
    records: Sequence[TrialRecord],
    requests: RequestReader,
    *,
    problems: Sequence[str] = (),
    hardware: str | None = None,
) -> Run:
    """Return a run with all that is computed once for the whole page.

    Args:
        name: The run's name.
        study: Its study.
        records: Its stored trials by number.
        requests: Reads the requests of one.
        problems: What could not be read.
        hardware: The kind of GPUs that it is about; that of most trials if None.
    """
    resolved = as_run(study, records, hardware)
    found = list(problems)
    records, left_out = comparable(records, resolved, hardware)
    found += left_out
    plan = _plan(resolved)
    if isinstance(plan, str):
        found.append(plan)
    return Run(
        name=name,
        study=resolved,
        records=records,
        requests=requests,
        verdict=judge(records, resolved),
        plan=None if isinstance(plan, str) else plan,
        importances=_importances(records, resolved),
        problems=tuple(found),
    )


#: (text, kind) -> the plan, or why there is none. A live sweep writes its page again and again,
#: and listing a space of thousands of points takes a second.
_PLANS: dict[tuple[str, str], Plan | str] = {}


def _plan(study: Study) -> Plan | str:
    key = (study.text, study.engine.kind)
    if key not in _PLANS:
        try:
            found: Plan | str = make_plan(study)
        except UserError as error:
            found = str(error)
        _PLANS.clear()
        _PLANS[key] = found
    return _PLANS[key]


def _importances(records: Sequence[TrialRecord], study: Study) -> Mapping[str, float]:
    settings = {
        r.trial.launch.key for r in records if r.state is TrialState.COMPLETE and r.trial.point
    }
    if len(settings) < _ENOUGH:
        return {}
    # Optuna takes half a second to import; pages of young sweeps do without.
    from sweeper.sampler import importances

    return importances(records, study)


def no_requests(number: int) -> Sequence[RequestTiming]:
    """Return no requests, for records that carry their own."""
    del number
    return ()
