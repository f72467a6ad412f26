"""Asks the installed engine about a study's settings before the first launch.

    Plan -> command lines -> the engine's own validation -> a Plan with fewer settings

The simulated server is never asked: it refuses what SGLang's rules here refuse already.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sweeper.engines import sglang_preflight
from sweeper.engines.sglang_preflight import CommandLine
from sweeper.planning.plan import Plan, without
from sweeper.records import Launch
from sweeper.study import Study

#: Settings asked about at most; a setting beyond them is refused by its own start instead.
MOST_ASKED = 400
_DRAFT_MODEL = "speculative-draft-model-path"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What is left after the engine was asked.

    Attributes:
        study: The study, less known settings that the engine refuses.
        plan: The plan, less the settings that it refuses.
        version: The engine's version; None where it is not installed or not asked.
    """

    study: Study
    plan: Plan
    version: str | None


def ask_engine(
    study: Study,
    plan: Plan,
    *,
    gpus_present: bool,
    say: Callable[[str], None],
    cache: Path | None = None,
) -> Checked:
    """Ask the SGLang of the study's own command, if this machine has it, and leave out refusals.

    Args:
        study: The study, its engine resolved.
        plan: What it could launch.
        gpus_present: Whether this machine has the GPUs.
        say: Told what is done and what could not be.
        cache: Folder of earlier answers; the user's cache folder by default.

    Raises:
        UserError: Not one setting is left.
    """
    nothing = Checked(study=study, plan=plan, version=None)
    if study.simulated or not study.engine.preflight:
        return nothing
    baseline = study.baseline_launch()
    python = sglang_preflight.python_of(baseline.command)
    version = sglang_preflight.installed_version(python, study.engine.env) if python else None
    if python is None or version is None:
        say("preflight: this machine's engine.command has no SGLang to ask; starts will tell")
        return nothing
    warning = sglang_preflight.version_warning(version)
    if warning is not None:
        say(f"preflight: {warning}")
    launches = {baseline.key: baseline}
    for key, (_, launch) in plan.settings.items():
        if len(launches) < MOST_ASKED:
            launches[key] = launch
    lines = [_line(study, launch, gpus_present=gpus_present) for launch in launches.values()]
    say(f"preflight: asking SGLang {version} about {len(lines)} settings")
    verdicts = sglang_preflight.validate(
        python,
        version,
        lines,
        env=study.engine.env,
        gpus_present=gpus_present,
        cache=_user_cache() if cache is None else cache,
        cores=os.cpu_count() or 1,
    )
    if verdicts.problem:
        say(f"preflight: SGLang {version} {verdicts.problem}")
    keys = list(launches)
    reasons = {keys[index]: reason for index, reason in verdicts.refused.items()}
    if baseline.key in reasons:
        say(f"preflight: the baseline cannot start: {reasons[baseline.key]}")
    return Checked(
        study=replace(
            study, known=tuple(p for p in study.known if study.launch(p).key not in reasons)
        ),
        plan=without(plan, reasons),
        version=version,
    )


def _line(study: Study, launch: Launch, *, gpus_present: bool) -> CommandLine:
    """Return what a server would be started with; ports do not matter to the validation."""
    words = study.adapter.argv(launch, port=30000, nccl_port=30001)[len(launch.command) :]
    if launch.gpus and not gpus_present and "device" not in launch.flags:
        # Without an accelerator to find, SGLang ends before it looks at anything else.
        words += ["--device", "cuda"]
    draft = launch.flags.get(_DRAFT_MODEL)
    models = (launch.model, *([draft] if isinstance(draft, str) else []))
    return CommandLine(argv=tuple(words), env=study.adapter.environment(launch), models=models)


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sweeper"
