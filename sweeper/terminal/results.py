"""What a sweep leaves for people: best.sh, report.html, and the answer on the terminal.

Each kind of hardware has an answer of its own; the files of all but the first have its name.
"""

from collections.abc import Mapping, Sequence

from sweeper.judging.verdict import Verdict, judge
from sweeper.planning.strata import beside, kinds, outdated
from sweeper.records import TrialRecord
from sweeper.report import write_report
from sweeper.store import Store, write_text, writing
from sweeper.study import Study
from sweeper.terminal.table import print_table
from sweeper.wording import visible

#: Kind of hardware -> its study, its trials, and why its search ended.
Results = Mapping[str, tuple[Study, Sequence[TrialRecord], str]]


def write_results(store: Store, results: Results) -> dict[str, tuple[Verdict, str]]:
    """Write best.sh and report.html; return the verdict on each kind, and its file.

    Raises:
        UserError: They cannot be written.
    """
    order = kinds(store.records())
    found = {}
    for kind, (study, records, _) in results.items():
        verdict, name = judge(records, study), beside("best.sh", kind, order)
        found[kind] = verdict, name
        if verdict.command:
            words = "\n".join((verdict.sentence, *verdict.notes))
            lines = ["#!/bin/sh", *(f"# {line}" for line in words.splitlines())]
            if len(order) > 1:
                lines.insert(1, f"# On {kind}:")
            if "***" in verdict.command:
                lines.append("# Secrets are hidden as ***; put them in before use.")
            with writing(store.folder):
                text = "\n".join([*lines, verdict.command, ""])
                write_text(store.folder / name, text, mode=0o755)
    if order and order[0] in results and (old := outdated("best.sh", order)) is not None:
        (store.folder / old).unlink(missing_ok=True)
    write_report(store.folder)
    return found


def print_results(
    store: Store, results: Results, verdicts: Mapping[str, tuple[Verdict, str]]
) -> None:
    """Print the table, why the sweep ended, the answer, and where everything is."""
    order = kinds(store.records())
    for kind, (study, records, ended) in results.items():
        verdict, name = verdicts[kind]
        if len(results) > 1:
            print(f"\nOn {kind}:")
        print_table(records, study)
        print(f"\n{ended}")
        print(visible(verdict.sentence))
        for note in verdict.notes:
            print(f"note: {visible(note)}")
        if verdict.command:
            print(f"launch command: {store.folder / name}")
        print(f"report: {store.folder / beside('report.html', kind, order)}")
