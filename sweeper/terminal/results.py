"""What a sweep leaves for people: best.sh, report.html, and the answer on the terminal."""

from collections.abc import Sequence

from sweeper.judging.verdict import Verdict, judge
from sweeper.records import TrialRecord
from sweeper.report import write_report
from sweeper.store import Store, write_text
from sweeper.study import Study
from sweeper.terminal.display import print_table


def write_results(store: Store, study: Study, records: Sequence[TrialRecord]) -> Verdict:
    """Write best.sh and report.html, and return the verdict."""
    verdict = judge(records, study)
    if verdict.command:
        words = "\n".join((verdict.sentence, *verdict.notes))
        lines = ["#!/bin/sh", *(f"# {line}" for line in words.splitlines())]
        if "***" in verdict.command:
            lines.append("# Secrets are hidden as ***; put them in before use.")
        write_text(store.folder / "best.sh", "\n".join([*lines, verdict.command, ""]), mode=0o755)
    write_report(store.folder)
    return verdict


def print_results(
    store: Store, study: Study, records: Sequence[TrialRecord], verdict: Verdict, ended: str
) -> None:
    """Print the table, why the sweep ended, the answer, and where everything is."""
    print_table(records, study)
    print(f"\n{ended}")
    print(verdict.sentence)
    for note in verdict.notes:
        print(f"note: {note}")
    print(f"launch command: {store.folder / 'best.sh'}")
    print(f"report: {store.folder / 'report.html'}")
