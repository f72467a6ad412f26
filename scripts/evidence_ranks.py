"""Print the tables of docs/evidence/h200-ranks.md from the rows and lines in `examples/`.

python -m scripts.evidence_ranks
"""

import ast
import math
import re
import statistics
from collections.abc import Iterator

from scripts.evidence import EXAMPLES, apart, complete, markdown, measurement, print_tables, speed
from scripts.evidence_draft_tp import COUNTED, between, equal, mean_change
from scripts.evidence_two import counters, name
from sweeper.store import Store

BITS_32, EIGHT = "h200-more/one-gpu-32", "h200-more/one-gpu-eight"
#: What `scripts.side_by_side` and `benchmarks.agreement` printed; the rows did not come back.
PRINTED = EXAMPLES / "h200-more" / "one-gpu-agree"
LOADS = ("shipped", "single")
#: A draft alone with the agreement of commit f5a91eb, which compared the rows on the GPU.
BEFORE = "compared-on-gpu"


def bits_32() -> str:
    """Return answers and accept lengths of shared and alone where sums are in 32 bits."""
    found = {name(record): record for record in complete(BITS_32)}
    plain, told = found["no speculation"], counters(BITS_32)
    rows = []
    for shape in dict.fromkeys(key.rpartition(", ")[0] for key in found if ", " in key):
        shared, one = found[f"{shape}, shared"], found[f"{shape}, one"]
        counted = [told[one.trial.number][f"draft_tp_{key}"] for key in COUNTED]
        for load in LOADS:
            lengths = [measurement(r, load).accept_length for r in (shared, one)]
            same = [equal(*two, load) for two in ((shared, one), (plain, shared), (plain, one))]
            rows.append([shape, load, *same, *lengths, *counted])
    head = ["setting", "load", "shared and alone", "shared and no speculation"]
    head += ["alone and no speculation", "accept length, shared", "alone", "rounds", "corrected"]
    return markdown(head, rows)


def between_servers() -> str:
    """Return in how many pairs of all servers how many answers are the same."""
    return between(list(complete(BITS_32)), LOADS, of="servers")


def _printed_speeds() -> dict[tuple[int, str], list[float]]:
    """Return tok/s by steps (0: no speculation) and draft, in the order of measuring."""
    found: dict[tuple[int, str], list[float]] = {}
    for line in (PRINTED / "side_by_side.log").read_text(encoding="utf-8").splitlines():
        told = re.fullmatch(r"\d+ (baseline|{.*}): shipped ([\d.]+) tok/s", line)
        assert told is not None, line
        point = {} if told[1] == "baseline" else ast.literal_eval(told[1])
        key = (point.get("steps", 0), point.get("draft_tp", "no speculation"))
        found.setdefault(key, []).append(float(told[2]))
    return found


def slow_all_reduce() -> str:
    """Return what a draft alone gains where an all-reduce takes tens of microseconds."""
    found = _printed_speeds()
    plain = found[0, "no speculation"]
    rows = []
    for (steps, draft), speeds in found.items():
        setting = f"{steps} / 1 / {steps + 1}, {draft}" if steps else draft
        by_plain = mean_change(_logs(plain, speeds)) if steps else ("-", "-")
        alone = draft in {"one", BEFORE}
        by_shared = mean_change(_logs(found[steps, "shared"], speeds)) if alone else ("-", "-")
        mean = statistics.geometric_mean(speeds)
        rows.append([setting, len(speeds), mean, *by_shared, *by_plain])
    head = ["setting", "measurements", "tok/s", "against shared", "95 %"]
    return markdown([*head, "against no speculation", "95 %"], rows)


def bits_32_speeds() -> str:
    """Return the speeds of the servers whose sums are in 32 bits."""
    found = {name(record): record for record in complete(BITS_32)}
    rows = []
    for setting, record in found.items():
        row: list[object] = [setting]
        for load in LOADS:
            told = "-"
            if setting.endswith(", one"):
                shared = found[setting.replace(", one", ", shared")]
                told = apart(speed(record, load), speed(shared, load))
            row += [speed(record, load), told]
        rows.append(row)
    head = [part for load in LOADS for part in (f"{load} tok/s", "against shared")]
    return markdown(["setting", *head], rows)


def _logs(of: list[float], by: list[float]) -> list[float]:
    return [math.log(b / a) for a, b in zip(of, by, strict=True)]


def _benchmark() -> Iterator[list[object]]:
    title = ""
    for line in (PRINTED / "machine.log").read_text(encoding="utf-8").splitlines():
        if told := re.fullmatch(r"(\d+) ranks on NVIDIA H200, (\d+) requests a round", line):
            title = f"{told[1]}, {told[2]}"
        elif told := re.fullmatch(r"(\S+) +([\d.]+) +([\d.]+) +(\d+)", line):
            yield [title, *told.groups()]


def agreement_cost() -> str:
    """Return what a round of the agreement takes: microseconds, and operations of PyTorch."""
    names = {"all-gather": "an all-gather alone", "settle": "7d3aca0", "beside": "f5a91eb"}
    rows = [[title, names[str(kind)], *rest] for title, kind, *rest in _benchmark()]
    head = ["ranks, requests a round", "agreement", "us a round", "times the all-gather"]
    return markdown([*head, "operations"], rows)


def eight() -> str:
    """Return what became of servers of eight ranks on one GPU."""
    rows = []
    for record in Store(EXAMPLES / EIGHT).records():
        failure = record.failure
        measured = not failure
        rows.append(
            [
                *(record.trial.number, name(record), record.host.sharing if record.host else None),
                speed(record, "shipped") if measured else None,
                measurement(record, "shipped").accept_length if measured else None,
                failure.line if failure else "",
            ]
        )
    return markdown(
        ["measurement", "setting", "servers", "tok/s", "accept length", "failure"], rows
    )


TABLES = {
    "32 bits": bits_32,
    "Between servers": between_servers,
    "Where an all-reduce is slow": slow_all_reduce,
    "Speeds in 32 bits": bits_32_speeds,
    "The agreement": agreement_cost,
    "Eight ranks": eight,
}

if __name__ == "__main__":
    print_tables(TABLES)
