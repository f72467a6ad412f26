"""Which launches confirm the search: the best settings and the baseline, afresh, in turn. Pure.

    search over -> finalists -> baseline, a, b, baseline, c, a, baseline, b, baseline

The best of many measured settings was lucky as well as good, so it is measured again on fresh
launches with fresh prompts, and only those are judged. The baseline comes first, last and after
every second launch (once after three, where that makes it the last), so that each one has it on
both sides. A finalist that is certainly not the best one is not launched again; one around which
the node jumped is, while the reserve lasts.

Where there are several slots such a sequence runs on one of them, so that what is compared ran on
the same machine; a reserve for several sequences is shared out over as many slots.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from sweeper.judging.standings import Standing, best, contenders, standings
from sweeper.objective import sample, trend
from sweeper.records import Launch, Point, Purpose, Trial, TrialRecord, TrialState
from sweeper.study import Study

#: Confirmation launches from which three finalists are compared instead of two.
_FOR_THREE = 8
#: Confirmations of settings between two of the baseline.
_BETWEEN = 2
#: Further finalists of which the node's jumps leave open whether they are the best.
_MAYBE = 3
#: Launches of the reserve from which another slot takes part: the baseline twice or three times.
_FOR_A_SLOT = 6
#: Machine faults of one setting among the confirmations that leave it out.
_FAULTS = 2

#: Number of a trial -> launch key -> what is believed of settings measured before it; larger is
#: better, and empty where nothing is known but what was measured.
Merit = Callable[[int], Mapping[str, float]]


def no_merit(_before: int) -> Mapping[str, float]:
    """Know nothing but what was measured."""
    return {}


def confirmation_block(
    records: Sequence[TrialRecord], running: Sequence[Trial]
) -> tuple[list[TrialRecord], list[Trial]]:
    """Return the confirmations, finished and running, that followed the last search launch."""
    searched = [r.trial.number for r in records if r.launched and _is_search(r.trial)]
    searched += [t.number for t in running if _is_search(t)]
    since = max(searched, default=-1)
    finished = [
        r
        for r in records
        if r.launched and r.trial.purpose is Purpose.CONFIRM and r.trial.number > since
    ]
    return finished, [t for t in running if t.purpose is Purpose.CONFIRM and t.number > since]


def next_confirmation(
    study: Study,
    records: Sequence[TrialRecord],
    running: Sequence[Trial],
    *,
    slot: str | None = None,
    seats: Mapping[int, str] | None = None,
    alive: Collection[str] = (),
    merit: Merit = no_merit,
) -> tuple[Point, Launch] | None:
    """Return the next setting to confirm, the baseline as an empty point; None if none is left.

    To be asked once the search is over and none of its trials run.

    Args:
        study: The study.
        records: Finished trials.
        running: Trials in flight.
        slot: Where it would run; None where there is only one.
        seats: Number of a trial in flight -> its slot.
        alive: All slots in service.
        merit: What the sampler makes of what was measured.

    Returns:
        The point and its launch; None also for a slot that takes no part.
    """
    finished, flying = confirmation_block(records, running)
    seats = seats or {}
    total = study.budget.confirm
    if len(finished) + len(flying) >= total:
        return None
    here: Sequence[Trial] = sorted([*(r.trial for r in finished), *flying], key=_number)
    share = total
    if slot is not None and len(alive) > 1:
        used = {r.trial.number: r.host.slot if r.host else "" for r in finished} | {
            t.number: seats.get(t.number, "") for t in flying
        }
        share = _share(slot, [used[t.number] for t in here], alive, total)
        here = [t for t in here if used[t.number] == slot]
    left = share - len(here)
    if left <= 0:
        return None
    base = study.baseline_launch()
    chosen = _still_in(finalists(study, records, finished, merit), study, records, finished)
    if not chosen:
        return None
    if share > 2 and not _is_out(base.key, finished):
        keys = [t.launch.key for t in here]
        since = next((i for i, key in enumerate(reversed(keys)) if key == base.key), None)
        due = since is None or (since >= _BETWEEN and left != 2)
        if due or (left == 1 and since):
            return {}, base
    moved = trend(records, study.objectives[0])
    doubted = {r.trial.number for r in finished if moved.doubt(sample(r, study.objectives[0]))}
    counts, counts_here = (
        Counter(t.launch.key for t in trials if t.number not in doubted)
        for trials in ([*(r.trial for r in finished), *flying], here)
    )
    standing = min(chosen, key=lambda s: (counts_here[s.key], counts[s.key]))
    return standing.records[0].trial.point, standing.records[0].trial.launch


def _share(slot: str, used: Sequence[str], alive: Collection[str], total: int) -> int:
    """Return how many of the confirmations are the slot's; 0 if it takes no part.

    Args:
        slot: The slot.
        used: Slot of each confirmation so far, in their order.
        alive: All slots in service; what others spent is lost.
        total: Confirmations of all slots.
    """
    most = max(1, min(total // _FOR_A_SLOT, len(alive)))
    joined = [s for s in dict.fromkeys(used) if s in alive][:most]
    if slot not in joined:
        if len(joined) >= most:
            return 0
        joined.append(slot)
    each, more = divmod(total - sum(s not in joined for s in used), most)
    return each + (joined.index(slot) < more)


def finalists(
    study: Study,
    records: Sequence[TrialRecord],
    finished: Sequence[TrialRecord],
    merit: Merit = no_merit,
) -> list[Standing]:
    """Return the settings to confirm, the best first.

    They are the best by merit. Where the sampler has no model, or the node was not the same
    throughout, of which the model knows nothing, they are the best by value, the simplest within
    a tie of it, and the next by value. Where the node jumped, those that may be best if they were
    measured on its worse side are among them. They stay the same while the confirmations run: of
    these only the baseline's first one counts, since it tells the drift over the search.
    """
    fresh = {r.trial.number for r in finished}
    base_key = study.baseline_launch().key
    first = next(
        (
            r.trial.number
            for r in sorted(finished, key=lambda r: r.trial.number)
            if r.trial.launch.key == base_key and r.state is TrialState.COMPLETE
        ),
        None,
    )
    before = [r for r in records if r.trial.number not in fresh or r.trial.number == first]
    objective = study.objectives[0]
    found = [
        s
        for s in standings(before, study.objectives, study.slos)
        if not s.is_baseline and not s.broken
    ]
    if not found:
        return []
    found.sort(key=lambda s: -objective.gain(s.values[0]))
    top = objective.gain(found[0].values[0])
    moved = trend(before, objective)
    searched = [r.trial.number for r in before if r.trial.number not in fresh]
    steady = not moved.drifted and not moved.uneven
    believed = merit(max(searched, default=-1) + 1) if steady else {}
    found.sort(key=lambda s: -believed.get(s.key, -math.inf))

    def hopeful(standing: Standing) -> float:
        doubt = moved.doubt(sample(standing.records[0], objective))
        gain = objective.gain(standing.values[0])
        return gain + abs(gain) * doubt

    total = study.budget.confirm
    count = 3 if total >= _FOR_THREE else 2 if total > 3 else 1
    simplest = None if believed else best(found, study.objectives)
    sure = {s.key: s for s in (found[0], simplest or found[0], *found)}
    maybe = sorted((s for s in found if hopeful(s) > top), key=hopeful, reverse=True)
    chosen = list(sure.values())[:count]
    return chosen + [s for s in maybe if s not in chosen][: _MAYBE if count > 1 else 0]


def _still_in(
    chosen: Sequence[Standing],
    study: Study,
    records: Sequence[TrialRecord],
    finished: Sequence[TrialRecord],
) -> list[Standing]:
    """Leave out what cannot be launched and what is far behind the best confirmed one."""
    chosen = [s for s in chosen if not _is_out(s.key, finished)]
    keys = {s.key for s in chosen}
    objective = study.objectives[0]
    confirmed = {
        s.key: s
        for s in standings(records, study.objectives, study.slos)
        if s.key in keys and s.is_confirmed
    }
    if not confirmed:
        return chosen
    sound = [s for s in confirmed.values() if not s.broken]
    if not sound:
        return [s for s in chosen if s.key not in confirmed]
    leader = max(sound, key=lambda s: objective.gain(s.values[0]))
    close = {s.key for s in contenders(sound, leader, study.objectives)}
    return [s for s in chosen if s.key not in confirmed or s.key in close]


def _is_out(key: str, finished: Sequence[TrialRecord]) -> bool:
    states = [r.state for r in finished if r.trial.launch.key == key]
    return TrialState.INFEASIBLE in states or states.count(TrialState.FAILED) >= _FAULTS


def _number(trial: Trial) -> int:
    return trial.number


def _is_search(trial: Trial) -> bool:
    return trial.purpose in (Purpose.SEARCH, Purpose.KNOWN)
