"""Print the tables of docs/evidence/h200.md from the rows in `examples/`.

    python -m scripts.evidence                             the tables, as Markdown
    python -m scripts.evidence --landscape FILE.parquet    setting, speed, accept length, step time

Nothing here is measured; each number is made from what the runs have stored.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scripts.compare_clients import table as clients_table
from sweeper.engines.simulated.calibrations import SMALL
from sweeper.engines.simulated.cost import Setting, accept_length, step_ms
from sweeper.records import Point, RequestTiming, TrialRecord, TrialState
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
    records = Store(EXAMPLES / "h200-more/memory").records()
    rows = [
        [name(r), r.failure.kind, r.failure.stage, r.failure.line[:120], r.phases_s["start"]]
        for r in records
        if r.failure
    ]
    return markdown(["setting", "class", "stage", "line", "known after s"], rows)


def told_ms(record: TrialRecord, factor: float = 1.0) -> float:
    """Return the step time of `small-1gpu`, what speculation adds multiplied by `factor`."""
    point = record.trial.point
    plain = step_ms(SMALL, Setting(), 1)
    return plain + factor * (step_ms(SMALL, _setting(point), 1) - plain) if point else plain


def _setting(point: Point) -> Setting:
    return Setting(
        draft="ours",
        steps=int(point["steps"]),
        topk=int(point["topk"]),
        draft_tokens=int(point["draft_tokens"]),
    )


def calibration() -> str:
    """Return the calibration `small-1gpu` against the least disturbed requests.

    The factor is fitted on the first three speculative settings and tried on the others.
    """
    records = [r for f in ("h200-one", "h200-more/trees") for r in complete(f) if r.trial.point]
    plain = step_ms(SMALL, Setting(), 1)
    fitted = records[:3]
    factor = sum(fastest_step_ms(r) - plain for r in fitted) / sum(
        told_ms(r) - plain for r in fitted
    )
    rows = []
    for record in records:
        seen, single = fastest_step_ms(record), record.measurement("single")
        assert single is not None
        length = accept_length(SMALL, _setting(record.trial.point), "chat")
        rows.append(
            [
                *(name(record), seen, told_ms(record), _apart(told_ms(record), seen)),
                _apart(told_ms(record, factor), seen),
                "fitted" if record in fitted else "held out",
                *(single.accept_length, length),
            ]
        )
    head = ["setting", "step ms", "small-1gpu", "error", f"error with {factor:.2f} x", "used"]
    return markdown([*head, "accept length", "small-1gpu (chat)"], rows)


def _apart(told: float, seen: float) -> str:
    return f"{(told / seen - 1) * 100:+.1f} %"


def chain_fit() -> str:
    """Return the split of a chain's step, from the chains of two and three steps and no draft."""
    times = {name(r): fastest_step_ms(r) for r in complete("h200-one")}
    draft = times["3 / 1 / 4"] - times["2 / 1 / 3"]
    rest = times["2 / 1 / 3"] - times["no speculation"] - 2 * draft
    return (
        f"a draft pass with one verified token more: {draft:.2f} ms; overhead of a step: "
        f"{rest:.2f} ms (small-1gpu: {SMALL.draft_ms + SMALL.token_ms:.2f} and "
        f"{SMALL.overhead_ms:.2f})"
    )


def clients() -> str:
    """Return both clients' numbers, and the server's own step times while each was at work."""
    rounds: list[dict[str, Any]] = json.loads((EXAMPLES / "h200-more/clients.json").read_text())
    return clients_table(rounds)


def server_steps() -> str:
    """Return the server's own step times by burst of one stream, from its decode lines.

    Bursts are set apart by pauses of 3 s or more: the clients took turns.
    """
    pattern = re.compile(
        r"^\[(\S+ \S+)\] Decode batch, #running-req: 1,.*accept len: ([\d.]+).*"
        r"gen throughput \(token/s\): ([\d.]+)"
    )
    bursts: list[list[float]] = []
    last: datetime | None = None
    for line in (EXAMPLES / "h200-more/clients-server.log").read_text().splitlines():
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
    long = [burst for burst in bursts if len(burst) > 50]
    return markdown(
        ["burst", "decode lines", "mean step ms"],
        [[i + 1, len(burst), statistics.fmean(burst)] for i, burst in enumerate(long)],
    )


def killed() -> str:
    """Return how long a server outlived the driver's SIGKILL."""
    lines = (EXAMPLES / "h200-more/killed.jsonl").read_text().splitlines()
    rows = [list(json.loads(line).values()) for line in lines]
    return markdown(["when", "processes", "MiB held", "all gone s", "memory free s"], rows)


def landscape() -> pa.Table:
    """Return one row for each setting and load: the landscape that was measured."""
    rows = []
    for folder in ("h200-one", "h200-more/trees"):
        for record in complete(folder):
            point = record.trial.point
            for m in record.measurements:
                row = {key: point.get(key) for key in ("steps", "topk", "draft_tokens")}
                row |= {"run": folder, "workload": m.workload, "streams": m.concurrency}
                row |= {"output_tok_s": m.output_tok_s, "accept_length": m.accept_length}
                row |= {"output_tok_s_low": m.output_tok_s_low}
                row |= {"output_tok_s_high": m.output_tok_s_high}
                row |= {"step_time_ms": m.step_time_ms}
                row |= {"fastest_step_ms": None}
                if m.workload == "single":
                    row["fastest_step_ms"] = fastest_step_ms(record)
                rows.append(row)
    return pa.Table.from_pylist(rows)


TABLES = {
    "Speed": speeds,
    "Disturbance": disturbance,
    "Time": starts,
    "Failures": failures,
    "Driver killed": killed,
    "Two clients": clients,
    "The server's own steps": server_steps,
    "Calibration": calibration,
    "A chain's step": chain_fit,
}


def print_tables(tables: Mapping[str, Callable[[], str]]) -> None:
    """Print tables under their titles, as Markdown."""
    for title, table in tables.items():
        sys.stdout.write(f"### {title}\n\n{table()}\n\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.evidence")
    parser.add_argument("--landscape", type=Path, help="write the landscape there instead")
    options = parser.parse_args(argv)
    if options.landscape is not None:
        pq.write_table(landscape(), options.landscape, compression="zstd")
        return 0
    print_tables(TABLES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
