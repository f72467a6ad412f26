"""Print the tables of docs/evidence/h200-two.md from the rows in `examples/`.

python -m scripts.evidence_two
"""

import json
import statistics
from collections.abc import Iterator, Sequence
from itertools import combinations

from scripts.evidence import (
    EXAMPLES,
    complete,
    fastest_step_ms,
    markdown,
    mean_step_ms,
    print_tables,
    slowest_step_ms,
)
from sweeper.judging.answers import answers_agree
from sweeper.records import RequestTiming, TrialRecord
from sweeper.store import Store

SWEEP, SIDE = "h200-more/two-gpus", "h200-more/two-side"


def name(record: TrialRecord) -> str:
    """Return a setting in short: steps / top-k / draft tokens, and what else it chose."""
    point = record.trial.point
    if not point:
        return "no speculation"
    shape = f"{point['steps']} / {point['topk']} / {point['draft_tokens']}"
    return ", ".join([shape, *(str(v) for k, v in point.items() if k in ("draft_tp", "variant"))])


def counters(run: str) -> dict[int, dict[str, int]]:
    """Return what the servers of a run counted, by the number of the measurement before."""
    lines = (EXAMPLES / run / "counters.jsonl").read_text(encoding="utf-8").splitlines()
    return {line["number"]: line for line in map(json.loads, lines)}


def agreement(one: Sequence[RequestTiming], other: Sequence[RequestTiming]) -> tuple[str, float]:
    """Return how many answers are equal, "4 of 5", and the share before a difference."""
    found = answers_agree(one, other)
    assert found is not None
    return f"{round(found.equal_share * found.pairs)} of {found.pairs}", found.common_share


def sweep() -> str:
    """Return what the sweep on two GPUs made of each launch."""
    rows = []
    for record in Store(EXAMPLES / SWEEP).records():
        phase, failure = record.phases_s, record.failure
        speeds = {m.workload: m.output_tok_s for m in record.measurements}
        rows.append(
            [
                *(record.trial.number, name(record), phase["start"]),
                *(phase.get("start.graph_capture"), phase.get("measure"), phase.get("stop")),
                *(speeds.get(load) for load in ("single", "shipped", "sixteen")),
                failure.line if failure else "",
            ]
        )
    head = ["trial", "setting", "start s", "graphs s", "measure s", "stop s", "single tok/s"]
    return markdown([*head, "shipped tok/s", "sixteen tok/s", "failure"], rows)


def steps() -> str:
    """Return how the step time of one stream moved while nothing else ran on the machine."""
    rows = []
    for record in complete(SWEEP):
        low, high = fastest_step_ms(record), slowest_step_ms(record)
        single = [mean_step_ms(r) for r in record.requests if r.workload == "single"]
        rows.append(
            [name(record), statistics.median(single), low, high, f"{(high / low - 1) * 100:.0f} %"]
        )
    return markdown(["setting", "median request ms", "fastest ms", "slowest ms", "apart"], rows)


def side() -> str:
    """Return the servers that stood side by side: speed, acceptance, and what ranks agreed on."""
    told = counters(SIDE)
    rows = []
    for record in complete(SIDE):
        counted = told[record.trial.number]
        single, eight = record.measurements
        rows.append(
            [
                *(name(record), single.output_tok_s, single.accept_length, eight.accept_length),
                *(counted.get(f"draft_tp_{k}") for k in ("size", "rounds", "corrected_rounds")),
            ]
        )
    head = ["setting", "one stream tok/s", "accept length", "accept length, 8 streams"]
    return markdown([*head, "draft TP told", "rounds", "corrected"], rows)


def answers() -> str:
    """Return which of them gave the same greedy answers, one stream at a time."""
    rows = []
    for one, other in combinations(complete(SIDE), 2):
        told = agreement(list(_single(one)), list(_single(other)))
        rows.append([name(one), name(other), *told])
    return markdown(["setting", "other", "equal answers", "share before a difference"], rows)


def _single(record: TrialRecord) -> Iterator[RequestTiming]:
    return (r for r in record.requests if r.workload == "single")


TABLES = {
    "The sweep": sweep,
    "Steps of one stream": steps,
    "Draft TP 1": side,
    "Answers": answers,
}

if __name__ == "__main__":
    print_tables(TABLES)
