"""Says of one server log why the server ended: `python -m sweeper.diagnose LOG`.

Prints the class, the stage, whose fault it is, what a sweep would do, the line that shows it and
the remedy. `healthy` and `still_starting` are verdicts too. Exit status 0 for any verdict, 2 for
a log that cannot be read.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from sweeper.engines.base import Ending
from sweeper.engines.sglang_log import SGLangLogReader
from sweeper.errors import POLICIES, Failure, FailureClass, Stage

HEALTHY = "healthy"
STILL_STARTING = "still_starting"

_CHUNK_BYTES = 1 << 20
#: Ends that a launcher's own limit may have made of a start: it lives, or TERM, INT, KILL.
_STOPPED = frozenset({None, -2, -9, -15})
_READY = frozenset(
    {Stage.READY, Stage.SERVING, Stage.AFTER_RUN, Stage.SHUTDOWN},
)


def diagnose(path: Path, *, exit_code: int | None = None) -> dict[str, object]:
    """Read a whole log and return the verdict.

    Args:
        path: The log, standard output and error together.
        exit_code: As subprocess gives it, or as a shell shows it (137 for SIGKILL); None if
            the server lives or nobody knows.

    Raises:
        OSError: The log cannot be read.
    """
    reader = SGLangLogReader()
    with path.open("rb") as log:
        while data := log.read(_CHUNK_BYTES):
            reader.feed(data)
    if exit_code is not None and 128 < exit_code < 160:
        exit_code = 128 - exit_code
    verdict = _verdict(reader, exit_code)
    window = reader.decode
    return {
        **verdict,
        "exit_code": exit_code,
        "speculating": reader.speculating,
        "startup_s": reader.startup_s,
        "decode_lines": window.lines,
        "accept_length_mean": window.accept_length_mean,
        "share_without_graph": window.share_without_graph,
        "retractions": reader.retractions,
        "notices": list(reader.notices),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m sweeper.diagnose", description="Say of a server log why the server ended."
    )
    parser.add_argument("log", type=Path, help="standard output and error of the server")
    parser.add_argument("--exit-code", type=int, help="its exit status; -9 or 137 for SIGKILL")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    try:
        verdict = diagnose(options.log, exit_code=options.exit_code)
    except OSError as error:
        sys.stderr.write(f"cannot read {options.log}: {error.strerror}\n")
        return 2
    if options.json:
        sys.stdout.write(json.dumps(verdict) + "\n")
    else:
        sys.stdout.write(_as_text(verdict))
    return 0


def _verdict(reader: SGLangLogReader, exit_code: int | None) -> dict[str, object]:
    is_ready = reader.stage in _READY
    stopped = not is_ready and exit_code in _STOPPED
    failure = reader.failure(Ending(exit_code=exit_code, killed_by_us=stopped))
    if failure is None and exit_code is None and reader.stage is not Stage.SHUTDOWN:
        # Nobody knows whether it lives, so an error that ends servers is believed.
        failure = _known(reader.failure(Ending(exit_code=1)))
    if failure is not None and failure.kind is FailureClass.START_TIMEOUT:
        return _no_failure(STILL_STARTING, reader.stage, failure.line)
    if failure is None and not is_ready:
        return _no_failure(STILL_STARTING, reader.stage, "")
    if failure is None and reader.decode.is_spec_ineffective:
        mean = reader.decode.accept_length_mean
        lines = reader.decode.accept_lines
        failure = Failure(
            kind=FailureClass.SPEC_INEFFECTIVE,
            stage=reader.stage,
            line=f"accept len is {mean:.2f} on average over {lines} decode lines",
        )
    if failure is None:
        return _no_failure(HEALTHY, reader.stage, "")
    policy = POLICIES[failure.kind]
    return {
        "class": failure.kind.value,
        "stage": failure.stage.value,
        "fault": policy.fault.value,
        "retry": policy.retry,
        "stops_sweep": policy.stops_sweep,
        "line": failure.line,
        "remedy": policy.remedy,
    }


def _known(failure: Failure | None) -> Failure | None:
    return None if failure is None or failure.kind is FailureClass.UNKNOWN else failure


def _no_failure(name: str, stage: Stage, line: str) -> dict[str, object]:
    remedy = "wait: it was at work when the log ended" if name == STILL_STARTING else None
    return {
        "class": name,
        "stage": stage.value,
        "fault": None,
        "retry": False,
        "stops_sweep": False,
        "line": line,
        "remedy": remedy,
    }


def _as_text(verdict: dict[str, object]) -> str:
    rows = []
    for name, value in verdict.items():
        if value is None or value in ("", [], {}):
            continue
        if isinstance(value, bool):
            shown = "yes" if value else "no"
        elif isinstance(value, float):
            shown = f"{value:.3g}"
        elif isinstance(value, dict):
            shown = ", ".join(f"{k} {v:g}" for k, v in value.items())
        elif isinstance(value, list):
            shown = "\n".join(f"{'' if i == 0 else ' ' * 20}{v}" for i, v in enumerate(value))
        else:
            shown = str(value)
        rows.append(f"{name.replace('_', ' '):<20}{shown}\n")
    return "".join(rows)


if __name__ == "__main__":
    sys.exit(main())
