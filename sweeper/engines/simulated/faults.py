"""Faults on demand: which, with what argument, in which settings.

    SWEEPER_SIM_FAULT = name[=argument][@condition[&condition...]][, ...]
    condition         = flag-or-VARIABLE OP value      OP one of < <= > >= == !=

as in `oom_graph@speculative-num-steps>=5,truncated_stream=20`. How each shows is in
`tracebacks.py`, `startup.py`, `scheduler.py` and `streams.py`.
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: Name -> what it does and what its argument means.
FAULTS: dict[str, str] = {
    "model_missing": "the model path does not exist (exit 1)",
    "nccl_init": "NCCL cannot initialise (exit -9)",
    "nccl_hang": "the start stands still while the ranks look for each other",
    "oom_load": "out of memory while weights load (exit -9)",
    "memory_held": "other processes hold the GPUs' memory (exit -9)",
    "kv_pool": "no memory is left for the KV pool (exit -9)",
    "draft_incompatible": "the draft's weights have the wrong shape (exit -9)",
    "unsupported_config": "the backend cannot do the draft's shape (exit -9)",
    "build_missing": "a Python module is missing at graph capture (exit -9)",
    "oom_graph": "out of memory at graph capture (exit -9)",
    "hang_start": "the start stands still while weights load",
    "slow_jit": "kernels compile first; argument: engine seconds, 900",
    "port_conflict": "the port is taken when the load is done (exit 3)",
    "health_lies": "/health says 200 from the start of the load on",
    "draft_dies_at_first_request": "the first request after the warm-up kills it (exit -9)",
    "oom_serving": "out of memory at request number argument, 1 (exit -9)",
    "crash_kernel": "illegal memory access at request number argument, 1 (exit -9)",
    "killed": "a scheduler is killed at request number argument, 1 (exit -9)",
    "nccl_timeout": "a collective times out at request number argument, 1 (exit -9)",
    "watchdog": "the scheduler stands still at request number argument, 1, and is ended (-9)",
    "hang_serving": "the same, but /health says 200 and nothing ends it",
    "truncated_stream": "every argument-th stream breaks off, 1",
    "error_in_stream": "every argument-th stream holds an error, 1",
    "degenerate": "answers repeat one token",
    "slow_close": "streams stay open after [DONE]; argument: engine seconds, 5",
    "slow_stop": "stopping takes longer; argument: engine seconds, 60",
    "stubborn": "SIGTERM and SIGINT are ignored, and a child in its own session ignores them too",
}

_FAULT = re.compile(r"(?P<name>[a-z_]+)(?:=(?P<argument>[^@]+))?(?:@(?P<conditions>.+))?")
_CONDITION = re.compile(r"(?P<left>[A-Za-z][\w-]*)\s*(?P<op><=|>=|==|!=|=|<|>)\s*(?P<right>.+)")
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One comparison with a flag's resolved value or an environment variable."""

    left: str
    op: str
    right: str

    def holds(self, flags: Mapping[str, object], environ: Mapping[str, str]) -> bool:
        """Tell whether it holds; of a missing value only `!=` does."""
        value = environ.get(self.left, flags.get(self.left.replace("-", "_")))
        if value is None:
            return self.op == "!="
        try:
            return bool(_OPERATORS[self.op](float(str(value)), float(self.right)))
        except ValueError:
            return bool(_OPERATORS[self.op](str(value).lower(), self.right.lower()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault with its argument and the settings that have it."""

    name: str
    argument: float | None = None
    conditions: tuple[Condition, ...] = ()


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Return the faults that SWEEPER_SIM_FAULT names.

    Raises:
        ValueError: A fault is unknown, or its argument or condition malformed.
    """
    return tuple(_parse(word.strip()) for word in text.split(",") if word.strip())


def _parse(word: str) -> Fault:
    match = _FAULT.fullmatch(word)
    if match is None or match["name"] not in FAULTS:
        raise ValueError(f"SWEEPER_SIM_FAULT: {word!r} names none of {', '.join(FAULTS)}")
    conditions = []
    for part in (match["conditions"] or "").split("&"):
        if not part.strip():
            continue
        condition = _CONDITION.fullmatch(part.strip())
        if condition is None:
            raise ValueError(f"SWEEPER_SIM_FAULT: {part!r} is not `flag OP value`")
        conditions.append(
            Condition(left=condition["left"], op=condition["op"], right=condition["right"].strip())
        )
    try:
        argument = float(match["argument"]) if match["argument"] else None
    except ValueError:
        raise ValueError(f"SWEEPER_SIM_FAULT: {match['argument']!r} is not a number") from None
    return Fault(name=match["name"], argument=argument, conditions=tuple(conditions))


@dataclass(frozen=True, slots=True)
class ActiveFaults:
    """The faults of one launch: name -> argument."""

    arguments: Mapping[str, float | None]

    def __contains__(self, name: str) -> bool:
        return name in self.arguments

    def argument(self, name: str, default: float) -> float:
        """Return the argument of a fault, or `default` where none was given."""
        value = self.arguments.get(name)
        return default if value is None else value

    def strikes(self, name: str, number: int) -> bool:
        """Tell whether a fault `every argument-th` strikes at this number, from 1."""
        return name in self and number % max(int(self.argument(name, 1)), 1) == 0


def active_faults(
    faults: tuple[Fault, ...], flags: Mapping[str, object], environ: Mapping[str, str]
) -> ActiveFaults:
    """Return the faults whose conditions hold for these resolved flags."""
    return ActiveFaults(
        {f.name: f.argument for f in faults if all(c.holds(flags, environ) for c in f.conditions)}
    )
