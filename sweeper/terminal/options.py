"""What the command line says: the study, with the changes that options make to it."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sweeper.bench.workload import load_arrivals, load_prompts
from sweeper.cluster import choose_address
from sweeper.config import find_space, load_study
from sweeper.engines.simulated.settings import read_settings
from sweeper.errors import UserError
from sweeper.study import SAMPLERS, Study

#: Engine seconds of a real server's start, before the first one was seen.
_START_GUESS_S = 600.0


def parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the options of `python -m sweeper.search`; `again` is the command that goes on."""
    parser = argparse.ArgumentParser(
        prog="python -m sweeper.search",
        description="Find the fastest launch command that a space file allows, and prove it.",
    )
    parser.add_argument("space", help="space file, or the name of a shipped one")
    parser.add_argument(
        "--plan", action="store_true", help="say what would be done; start nothing"
    )
    parser.add_argument("--fresh", action="store_true", help="start anew beside earlier results")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of all results")
    parser.add_argument("--address", help="a Ray cluster to join; default: Ray on this machine")
    parser.add_argument(
        "--hardware",
        metavar="NAME",
        help="use GPUs with this in their name only; default: search on each kind by itself",
    )
    parser.add_argument(
        "--launches",
        type=int,
        help="instead of budget.launches; budget.confirm is then a quarter of it at most",
    )
    parser.add_argument("--seed", type=int, help="instead of the file's seed")
    parser.add_argument("--sampler", choices=SAMPLERS, help="instead of the file's sampler")
    parser.add_argument(
        "--executor",
        choices=("ray", "inline"),
        default="ray",
        help="inline: one slot in this process, no Ray, for debugging",
    )
    words = sys.argv[1:] if argv is None else argv
    options = parser.parse_args(words)
    # What goes on with a sweep begins nothing anew; argparse takes the word's beginning too.
    again = [w for w in words if not (w.startswith("--f") and "--fresh".startswith(w))]
    options.again = shlex.join(["python", "-m", "sweeper.search", *again])
    return options


def study_of(options: argparse.Namespace, *, gpus_here: bool, unseen: str | None = None) -> Study:
    """Return the study that the options mean, its engine resolved.

    Args:
        options: What `parse_options` read.
        gpus_here: Whether this machine has GPUs; a cluster that is joined counts as having some.
        unseen: Why GPUs that it has cannot be seen.

    Raises:
        UserError: The file or an option is wrong, or "auto" cannot be decided.
    """
    study = load_study(find_space(options.space))
    if options.launches is not None:
        if options.launches < 1:
            raise UserError(f"--launches must be at least 1, not {options.launches}")
        # A short try needs its launches for the search more than for proof.
        confirm = min(study.budget.confirm, options.launches // 4)
        budget = replace(study.budget, launches=options.launches, confirm=confirm)
        study = replace(study, budget=budget)
    if options.seed is not None:
        if options.seed < 0:
            raise UserError(f"--seed must be at least 0, not {options.seed}")
        study = replace(study, seed=options.seed)
    if options.sampler is not None:
        study = replace(study, sampler=options.sampler)
    joins = choose_address(options.address, os.environ) is not None
    if study.engine.kind == "auto" and not joins and unseen is not None:
        raise UserError(
            f"this machine has GPUs that cannot be seen: {unseen}; mend that, or say in the space "
            "file what is meant, engine: {kind: sglang} or {kind: simulated}"
        )
    study = study.resolved(gpus_present=joins or gpus_here)
    _check_inputs(study)
    return study


def _check_inputs(study: Study) -> None:
    """Read what the servers and the client will read, before the first start.

    Raises:
        UserError: A file of prompts or arrivals is missing or wrong, or a variable of the
            simulated server is.
    """
    for workload in study.workloads:
        try:
            load_prompts(workload.prompts)
            if workload.arrivals is not None:
                load_arrivals(workload.arrivals)
        except UserError as error:
            raise UserError(f"{study.source}: workload {workload.name!r}: {error}") from None
    if study.simulated:
        try:
            read_settings(study.engine.simulation.environment())
        except ValueError as error:
            raise UserError(f"{study.source}: 'engine.simulation': {error}") from None


def estimate_hours(study: Study) -> float:
    """Return a rough figure of engine hours for the whole budget, before anything was measured.

    A start counts as the simulation's or ten minutes; a request as `max_tokens` at the reference
    speed, or at 50 tok/s.
    """
    start_s = study.engine.simulation.start_s if study.simulated else _START_GUESS_S
    speed = study.baseline.reference_tok_s or 50.0
    measure_s = 0.0
    for workload in study.workloads:
        if workload.duration_s is not None:
            measure_s += workload.duration_s
        else:
            requests = 5 * (workload.repeats or 1) + workload.warmup
            measure_s += requests * workload.max_tokens / speed / (workload.concurrency or 1)
    return study.budget.launches * (start_s + measure_s) / 3600.0
