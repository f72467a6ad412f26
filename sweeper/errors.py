"""What can go wrong, and what follows from it.

    SweeperError
    |-- UserError            the person's to mend: one message, exit status 2, nothing lost
    |   |-- ConfigError      a mistake in a space file, with its line and key
    |   `-- StudyLocked      another driver is at work on the same study
    |-- TrialError           ends one trial; its `failure` says what the sweep does next
    |   |-- LaunchFailed     the server did not become ready
    |   |-- ServerDied       the server was ready and went away
    |   `-- BenchFailed      the server lives, the measurement is no good
    |-- SlotLost             the node or its actor is gone; the trial is the machine's fault
    `-- StopSweep            nothing more can be learned: the installation is broken

A `Failure` is data, not an exception: it is stored in the trial's row. Its class decides all
that follows, by the table `POLICIES`; no other place may decide it.
"""

from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """Whose fault a failure is."""

    SETTING = "setting"
    MACHINE = "machine"
    INSTALLATION = "installation"


class Stage(StrEnum):
    """How far a server had come, in the order in which a server passes them."""

    ARGS = "args"
    IMPORT = "import"
    DIST_INIT = "dist_init"
    LOAD = "load"
    DRAFT_LOAD = "draft_load"
    KV_POOL = "kv_pool"
    JIT = "jit"
    GRAPH_CAPTURE = "graph_capture"
    WARMUP = "warmup"
    READY = "ready"
    SERVING = "serving"
    AFTER_RUN = "after_run"
    SHUTDOWN = "shutdown"


class FailureClass(StrEnum):
    """Why a trial has no result."""

    BAD_FLAG = "bad_flag"
    CONFIG_REJECTED = "config_rejected"
    UNSUPPORTED_CONFIG = "unsupported_config"
    MODEL_MISSING = "model_missing"
    DRAFT_INCOMPATIBLE = "draft_incompatible"
    BUILD_MISSING = "build_missing"
    OOM = "oom"
    KV_POOL_TOO_SMALL = "kv_pool_too_small"
    GPU_MEMORY_NOT_FREE = "gpu_memory_not_free"
    NCCL_INIT = "nccl_init"
    NCCL_TIMEOUT = "nccl_timeout"
    PORT_CONFLICT = "port_conflict"
    FOREIGN_SERVER = "foreign_server"
    WATCHDOG = "watchdog"
    HANG = "hang"
    START_TIMEOUT = "start_timeout"
    CRASH_KERNEL = "crash_kernel"
    KILLED = "killed"
    OUTPUT_DEGENERATE = "output_degenerate"
    SPEC_INEFFECTIVE = "spec_ineffective"
    TRUNCATED_STREAM = "truncated_stream"
    CLIENT_LIMIT = "client_limit"
    NODE_LOST = "node_lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Policy:
    """What a failure class means for the rest of the sweep.

    Attributes:
        fault: Whose fault it is.
        retry: Whether the same setting is launched again (at most twice).
        stops_sweep: Whether a second launch that ends so ends the sweep.
        remedy: What a person does about it.
    """

    fault: Fault
    retry: bool
    stops_sweep: bool
    remedy: str


_SETTING, _MACHINE, _INSTALLATION = Fault.SETTING, Fault.MACHINE, Fault.INSTALLATION

POLICIES: dict[FailureClass, Policy] = {
    FailureClass.BAD_FLAG: Policy(
        _INSTALLATION, False, True, "compare the flag with the installed engine's --help"
    ),
    FailureClass.CONFIG_REJECTED: Policy(
        _SETTING, False, False, "the engine refuses this combination; exclude it by a constraint"
    ),
    FailureClass.UNSUPPORTED_CONFIG: Policy(
        _SETTING, False, False, "this backend or version cannot do it; exclude it by a constraint"
    ),
    FailureClass.MODEL_MISSING: Policy(
        _INSTALLATION, False, True, "check that the path exists on the node and is readable"
    ),
    FailureClass.DRAFT_INCOMPATIBLE: Policy(
        _SETTING, False, False, "this draft does not fit this target; use one trained for it"
    ),
    FailureClass.BUILD_MISSING: Policy(
        _INSTALLATION, False, True, "install the missing module or choose another backend"
    ),
    FailureClass.OOM: Policy(
        _SETTING, False, False, "lower --mem-fraction-static or shorten the CUDA graph list"
    ),
    FailureClass.KV_POOL_TOO_SMALL: Policy(_SETTING, False, False, "raise --mem-fraction-static"),
    FailureClass.GPU_MEMORY_NOT_FREE: Policy(
        _MACHINE, True, False, "another process holds GPU memory; end it"
    ),
    FailureClass.NCCL_INIT: Policy(
        _MACHINE, True, False, "run once with NCCL_DEBUG=INFO and look at the first error"
    ),
    FailureClass.NCCL_TIMEOUT: Policy(
        _MACHINE, True, False, "a rank stopped answering; look at the other ranks' logs"
    ),
    FailureClass.PORT_CONFLICT: Policy(
        _MACHINE, True, False, "another process took the port; it is tried again on another"
    ),
    FailureClass.FOREIGN_SERVER: Policy(
        _MACHINE, True, False, "a server that is not ours answers on the port; end it"
    ),
    FailureClass.WATCHDOG: Policy(
        _SETTING, False, False, "the scheduler stood still; see the stack dump in the log"
    ),
    FailureClass.HANG: Policy(
        _SETTING, False, False, "it stood still; see the stacks beside its log"
    ),
    FailureClass.START_TIMEOUT: Policy(
        _SETTING,
        False,
        False,
        "see the stacks beside its log; if it was alive, raise limits.start_s or silence_s",
    ),
    FailureClass.CRASH_KERNEL: Policy(
        _SETTING, False, False, "a kernel failed with this setting; report it to the engine"
    ),
    FailureClass.KILLED: Policy(
        _MACHINE, True, False, "something outside killed the server; look at dmesg"
    ),
    FailureClass.OUTPUT_DEGENERATE: Policy(
        _SETTING, False, False, "the answers are broken; do not use this setting"
    ),
    FailureClass.SPEC_INEFFECTIVE: Policy(
        _SETTING, False, False, "no draft token is accepted; an EAGLE-3 draft needs EAGLE3"
    ),
    FailureClass.TRUNCATED_STREAM: Policy(
        _MACHINE, True, False, "streams broke off; look at the server's log"
    ),
    FailureClass.CLIENT_LIMIT: Policy(
        _MACHINE, True, False, "the client was the limit; give it a core or lower the load"
    ),
    FailureClass.NODE_LOST: Policy(_MACHINE, True, False, "the node went away"),
    FailureClass.UNKNOWN: Policy(_MACHINE, True, False, "no known cause; read the log"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why one trial has no result.

    Attributes:
        kind: The class, from which fault, retry and stopping follow.
        stage: How far the server had come.
        line: The one line (of the log, or of our own finding) that shows it.
        exit_code: The server's return code as subprocess gives it; None while it lived.
        limit_s: The limit of a start that it passed, engine seconds; None for all other failures.
    """

    kind: FailureClass
    stage: Stage
    line: str
    exit_code: int | None = None
    limit_s: float | None = None

    @property
    def policy(self) -> Policy:
        """What follows from it."""
        return POLICIES[self.kind]

    def __str__(self) -> str:
        return f"{self.kind} at {self.stage}: {self.line}"


class SweeperError(Exception):
    """Base of all errors raised on purpose."""


class UserError(SweeperError):
    """A mistake that a person can mend; printed without a traceback, exit status 2."""


class ConfigError(UserError):
    """A mistake in a space file.

    Args:
        what: What is wrong, which key, and what would be right.
        path: The file, as the person named it.
        line: The line it stands on, counted from 1, where known.
    """

    def __init__(self, what: str, *, path: str | None = None, line: int | None = None) -> None:
        where = path or ""
        if line is not None:
            where += f":{line}"
        super().__init__(f"{where}: {what}" if where else what)
        self.what = what
        self.path = path
        self.line = line


class StudyLocked(UserError):
    """Another live driver works on the same study."""


class TrialError(SweeperError):
    """Ends one trial; the failure says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure

    def __reduce__(self) -> tuple[type["TrialError"], tuple[object, ...]]:
        return type(self), (self.failure,)


class LaunchFailed(TrialError):
    """The server did not become ready.

    Args:
        failure: Why.
        left: What was not gone after its end, a line each; empty for nothing.
    """

    def __init__(self, failure: Failure, left: tuple[str, ...] = ()) -> None:
        super().__init__(failure)
        self.left = left

    def __reduce__(self) -> tuple[type[TrialError], tuple[object, ...]]:
        return type(self), (self.failure, self.left)


class ServerDied(TrialError):
    """The server was ready and went away."""


class BenchFailed(TrialError):
    """The server lives, but the measurement is no good."""


class SlotLost(SweeperError):
    """The actor that owned the GPUs is gone, with the trial in its hands."""


class StopSweep(SweeperError):
    """The installation is broken; going on would only burn launches."""
