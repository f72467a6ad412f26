"""`python -m sweeper.store.describe`: the page on what is stored, from the schemas themselves."""

import re
import sys
from collections.abc import Mapping

import pyarrow as pa

from sweeper.docstrings import field_words
from sweeper.errors import Failure
from sweeper.records import (
    HostFacts,
    Launch,
    Measurement,
    RequestTiming,
    ServerFacts,
    Trial,
    TrialRecord,
)
from sweeper.store.schema import SCHEMAS, VERSION

#: Columns whose name or content is not a record's field of the same name.
_OWN = {
    "schema_version": f"Version of these tables; this page is of {VERSION}.",
    "key": "Identity of the setting: 12 hexadecimal digits, equal for equal launches.",
    "purpose": "Why it was run: baseline, known, search or confirm.",
    "simulated": "Whether the program is the embedded simulated server.",
    "sweeper_version": "Version of Sweeper that wrote the row.",
    "state": "How it ended: complete, pruned, infeasible or failed.",
    "point": "JSON: parameter -> value or label; empty for the baseline.",
    "command": "JSON: the program and its first words; secrets are hidden.",
    "flags": "JSON: flag without dashes -> value; secrets are hidden.",
    "env": "JSON: environment that belongs to the setting; secrets are hidden.",
    "server_version": "The engine's version; null if the server never answered.",
    "server_flags": "JSON: flag -> effective value, as far as the server tells.",
    "rewritten": "JSON: flag -> [asked, effective] where the two differ.",
    "start_s": "Engine seconds of the start.",
    "measure_s": "Engine seconds of all workloads.",
    "stop_s": "Engine seconds of the stop.",
    "memory_free_s": "Engine seconds until the GPU memory was back.",
    "phases_s": "JSON: engine seconds by phase, and by stage of the start.",
    "gpu_hours": "GPU-hours of engine time that it took.",
    "failure_class": "Why there is no result; see failures.md. Null where there is one.",
    "failure_fault": "Whose fault the class is: setting, machine or installation.",
    "started_at": "When, UTC.",
}
_TRIALS = (Trial, Launch, ServerFacts, HostFacts, TrialRecord)
_WORDS: Mapping[str, tuple[type, ...]] = {
    "trials": _TRIALS,
    "measurements": (Measurement, *_TRIALS),
    "requests": (RequestTiming, *_TRIALS),
}
_ONE_ROW = {
    "trials": "One row a finished trial. A trial is there once its row here is.",
    "measurements": "One row a workload of a trial. Formulas: [numbers.md](numbers.md).",
    "requests": "One row a request of a workload, in the order of sending.",
}

_HEAD = """\
# What is stored

    runs/<study>/  study.yaml  trials/ measurements/ requests/  logs/  report.html  best.sh

One Parquet file a trial in each of the three folders, never changed after it is written. Any
reader of Parquet reads a folder as one table:

    duckdb -c "select number, state, point from 'runs/eagle3/trials/*.parquet' order by number"

Missing is null, never 0. Times of requests are nanoseconds of engine time; all else is in the unit
its name ends with. What has no fixed shape is JSON text in a column of its own. A column may be
added with a new version; a reader gives null for a column that an older file lacks. `study.yaml` is the
space file with its secrets hidden.

This page is written by `python -m sweeper.store.describe` from the code; a test says when it is
stale.
"""


def columns(table: str) -> list[tuple[str, str, str]]:
    """Return (name, type, meaning) of each column of a table.

    Raises:
        KeyError: A column has no meaning; add it above, or to the record's docstring.
    """
    words: dict[str, str] = {}
    for record in reversed(_WORDS[table]):
        words |= field_words(record)
    words |= {f"failure_{name}": text for name, text in field_words(Failure).items()}
    for name, text in _OWN.items():
        if table == "trials" or name in _shared():
            words[name] = text
    for name in SCHEMAS[table].names:
        # The docstring tells of the median; "p90, p99 likewise".
        median = re.sub(r"_p\d\d_", "_p50_", name)
        if name not in words and median in words:
            words[name] = words[median].partition(";")[0] + "."
    return [(f.name, _type(f.type), words[f.name]) for f in SCHEMAS[table]]


def _shared() -> set[str]:
    first, *rest = (set(schema.names) for schema in SCHEMAS.values())
    return first.intersection(*rest)


def _type(type_: pa.DataType) -> str:
    if pa.types.is_list(type_):
        return f"list of {type_.value_type}"
    return "timestamp, UTC" if pa.types.is_timestamp(type_) else str(type_)


def page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for table in SCHEMAS:
        parts.append(
            f"\n## {table}\n\n{_ONE_ROW[table]}\n\n| column | type | what |\n|---|---|---|"
        )
        parts += [
            f"| `{name}` | {type_} | {_cell(words)} |" for name, type_, words in columns(table)
        ]
    return "\n".join(parts) + "\n"


def _cell(words: str) -> str:
    return re.sub(r"\bNone\b", "null", words).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
