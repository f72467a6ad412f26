"""Print the tables of docs/evidence/h200.md from the rows in `examples/`, as Markdown.

`scripts/evidence_landscape.py` prints those of all settings.

    python -m scripts.evidence

Nothing here is measured; each number is made from what the runs have stored.
"""

import json
import re
import signal
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from scripts.compare_clients import NAMES as CLIENT_NUMBERS
from sweeper.records import Measurement, RequestTiming, TrialRecord, TrialState
from sweeper.store import Store

EXAMPLES = Path(__file__).parents[1] / "examples"
#: Folder below `examples/` -> what was sent to its servers.
RUNS = {
    "h200-one": "chat format, subjects of the draft's training",
    "h200-more/trees": "chat format, subjects of the draft's training",
    "h200-more/chat-prompts": "chat format, the shipped sets",
    "h200-more/plain-prompts": "the shipped sets as they are",
}
#: Decode lines come every so many steps in all of these runs.
LOG_INTERVAL = 10


def measurement(record: TrialRecord, load: str) -> Measurement:
    """Return what a workload gave."""
    found = record.measurement(load)
    assert found is not None
    return found


def speed(record: TrialRecord, load: str = "single") -> float:
    """Return the speed of a workload, tok/s."""
    found = measurement(record, load).output_tok_s
    assert found is not None
    return found


def step_times_ms(request: RequestTiming) -> list[float]:
    """Return the times between the pieces of an answer of one stream: a step each."""
    return [(b - a) / 1e6 for a, b in pairwise(request.chunk_ns)]


def mean_step_ms(request: RequestTiming) -> float:
    """Return a request's mean step time; decoding only."""
    return statistics.fmean(step_times_ms(request))


def fastest_step_ms(record: TrialRecord, workload: str = "single") -> float:
    """Return the mean step time of a trial's fastest request: the machine at its least disturbed."""
    return min(mean_step_ms(r) for r in record.requests if r.workload == workload)


def slowest_step_ms(record: TrialRecord, workload: str = "single") -> float:
    """Return the mean step time of a trial's slowest request."""
    return max(mean_step_ms(r) for r in record.requests if r.workload == workload)


def log_step_ms(record: TrialRecord) -> float:
    """Return by how much the step that writes the decode line is longer than the others, at least.

    Each request's steps fall into ten places of the interval; the place with the longest median is
    that step. It is compared with the second longest, so that noise alone gives almost nothing.
    """
    extra = []
    for request in record.requests:
        if request.workload != "single":
            continue
        gaps = step_times_ms(request)
        medians = sorted(statistics.median(gaps[k::LOG_INTERVAL]) for k in range(LOG_INTERVAL))
        extra.append(medians[-1] - medians[-2])
    return statistics.fmean(extra)


def name(record: TrialRecord) -> str:
    """Return a setting in short: steps / top-k / draft tokens."""
    point = record.trial.point
    if "steps" not in point:
        return "no speculation" if not point else " ".join(f"{k}={v}" for k, v in point.items())
    return f"{point['steps']} / {point['topk']} / {point['draft_tokens']}"


def complete(folder: str) -> Iterator[TrialRecord]:
    """Yield the measured trials of a run, with their requests."""
    for record in Store(EXAMPLES / folder).records(requests=True):
        if record.state is TrialState.COMPLETE:
            yield record


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; floats with four digits."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = (f"{v:.4g}" if isinstance(v, float) else "-" if v is None else str(v) for v in row)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def apart(value: float, reference: float) -> str:
    """Return by how much a value differs from another, in per cent with a sign."""
    return f"{(value / reference - 1) * 100:+.1f} %"


def speeds() -> str:
    """Return speed, accept length and step time of each setting and load."""
    rows = [
        [
            *(prompts, name(record), m.workload, m.output_tok_s),
            f"{m.output_tok_s_low:.0f} to {m.output_tok_s_high:.0f}",
            " ".join(f"{v:.0f}" for v in m.repeats_tok_s),
            *(m.accept_length, m.step_time_ms, m.ttft_p50_ms, m.client_cpu_share),
        ]
        for folder, prompts in RUNS.items()
        for record in complete(folder)
        for m in record.measurements
    ]
    head = ["prompts", "setting", "load", "tok/s", "95 %", "passes", "accept length"]
    return markdown([*head, "step ms", "TTFT p50 ms", "client's core"], rows)


def disturbance() -> str:
    """Return how much the step time of one stream moved within each trial."""
    rows = []
    for folder in RUNS:
        for record in complete(folder):
            low, high = fastest_step_ms(record), slowest_step_ms(record)
            extra = log_step_ms(record)
            rows.append(
                [
                    *(folder, name(record), low, high, f"{(high / low - 1) * 100:.0f} %", extra),
                    f"{extra / LOG_INTERVAL / low * 100:.1f} %",
                ]
            )
    head = [
        "run",
        "setting",
        "fastest request ms",
        "slowest ms",
        "apart",
        "logging step longer by ms",
    ]
    return markdown([*head, "of a mean step"], rows)


def starts() -> str:
    """Return where the time of each launch went, and what lay between two launches."""
    rows = []
    for folder in (*RUNS, "h200-more/memory"):
        records = Store(EXAMPLES / folder).records()
        for record, following in zip(records, [*records[1:], None], strict=True):
            phase = record.phases_s
            spent = sum(v for k, v in phase.items() if "." not in k)
            idle = None
            if following is not None:
                begun = datetime.fromisoformat(record.started_at)
                idle = (datetime.fromisoformat(following.started_at) - begun).total_seconds()
                idle -= spent
            imports = phase.get("start.args", 0.0) + phase.get("start.import", 0.0)
            rows.append(
                [
                    *(folder, record.trial.number, name(record), phase["start"], imports or None),
                    *(phase.get("start.graph_capture"), phase.get("measure"), phase.get("stop")),
                    *(phase.get("memory_free"), idle),
                ]
            )
    head = ["run", "trial", "setting", "start s", "imports s", "graphs s", "measure s", "stop s"]
    return markdown([*head, "memory free s", "to the next spawn s"], rows)


def failures() -> str:
    """Return what became of launches that could not work."""
    rows = [
        [name(r), r.failure.kind, r.failure.stage, r.failure.line[:120], r.phases_s["start"]]
        for folder in ("h200-more/memory", "h200-more/graph-memory", "h200-more/held")
        for r in Store(EXAMPLES / folder).records()
        if r.failure
    ]
    return markdown(["setting", "class", "stage", "line", "known after s"], rows)


#: File below `examples/h200-more` -> the setting of the server that two clients measured.
CLIENTS = {
    "clients-none.json": "no speculation",
    "clients-248.json": "2 / 4 / 8",
    "clients.json": "3 / 1 / 4, the shipped sets",
}


#: Of these servers: the log's file, and the decode lines that a burst of one stream has at least.
LOGS = {"clients-248.json": ("clients-248.log", 15), "clients.json": ("clients-server.log", 50)}
WHO = ("sweeper", "theirs")


def clients() -> str:
    """Return what two clients said of the same servers, round by round."""
    rows = []
    for file, setting in CLIENTS.items():
        rounds: list[dict[str, Any]] = json.loads((EXAMPLES / "h200-more" / file).read_text())
        for one in rounds:
            ours, theirs = one["sweeper"], one["sglang"]
            differences = [
                apart(ours[number], theirs[CLIENT_NUMBERS[number]])
                for number in ("output_tok_s", "tpot_p50_ms", "e2e_p50_ms")
            ]
            rows.append(
                [
                    *(setting, one["load"], one["round"] + 1),
                    *(ours["output_tok_s"], theirs["output_throughput"], *differences),
                    *(ours["ttft_p99_ms"], theirs["p99_ttft_ms"]),
                    *(ours["accept_length"], theirs["accept_length"]),
                ]
            )
    head = ["server", "load", "round", "tok/s", "theirs", "apart", "TPOT p50", "E2E p50"]
    return markdown([*head, "TTFT p99 ms", "theirs", "accept length", "theirs"], rows)


def server_steps() -> str:
    """Return the server's own step times by burst of one stream, from its decode lines."""
    rows = []
    for file, (log, fewest) in LOGS.items():
        bursts = [burst for burst in _bursts(EXAMPLES / "h200-more" / log) if len(burst) > fewest]
        rows += [
            [CLIENTS[file], i + 1, WHO[i % 2], len(burst), statistics.fmean(burst)]
            for i, burst in enumerate(bursts)
        ]
    return markdown(["server", "burst", "client", "decode lines", "mean step ms"], rows)


def _bursts(path: Path) -> list[list[float]]:
    """Return step times in ms by burst; the clients took turns, with pauses of 3 s or more."""
    pattern = re.compile(
        r"^\[(\S+ \S+)\] Decode batch, #running-req: 1,.*accept len: ([\d.]+).*"
        r"gen throughput \(token/s\): ([\d.]+)"
    )
    bursts: list[list[float]] = []
    last: datetime | None = None
    for line in path.read_text().splitlines():
        match = pattern.match(line)
        if match is None:
            continue
        now = datetime.fromisoformat(match[1])
        if last is None or (now - last).total_seconds() >= 3:
            bursts.append([])
        last = now
        step = float(match[2]) / float(match[3]) * 1000
        if step < 20:  # the first line of a burst counts the pause before it
            bursts[-1].append(step)
    return bursts


def killed() -> str:
    """Return how long a server outlived the driver's SIGKILL."""
    lines = (EXAMPLES / "h200-more/killed.jsonl").read_text().splitlines()
    rows = [list(json.loads(line).values()) for line in lines]
    return markdown(["when", "processes", "MiB held", "all gone s", "memory free s"], rows)


TABLES = {
    "Speed": speeds,
    "Disturbance": disturbance,
    "Time": starts,
    "Failures": failures,
    "Driver killed": killed,
    "Two clients": clients,
    "The server's own steps": server_steps,
}


def print_tables(tables: Mapping[str, Callable[[], str]]) -> None:
    """Print tables under their titles, as Markdown."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader such as `head` goes away
    for title, table in tables.items():
        sys.stdout.write(f"### {title}\n\n{table()}\n\n")


if __name__ == "__main__":
    print_tables(TABLES)
