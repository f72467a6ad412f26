"""What SGLang makes of a setting without saying so.

Rewrites are data: a name, the versions they were read or run in, and a pure function. Sources
are SGLang's `arg_groups/speculative_hook.py`, `server_args.py` and `entrypoints/engine.py` of
0.5.15 and 0.5.23, checked against both by running them. The version on a node is not known
before its server answers, so a rule that holds in one of the two alone is not among them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sweeper.engines import sglang_flags
from sweeper.records import FlagValue

BOTH = sglang_flags.VERSIONS

#: Algorithms that draft a tree with a draft model, and so take steps, top-k and draft tokens.
TREE_ALGORITHMS = frozenset({"EAGLE", "EAGLE3", "STANDALONE"})
DRAFT_TP = "SWEEPER_DRAFT_TP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Flags and environment of a launch, with typed views of them.

    Attributes:
        flags: Full name -> typed value.
        env: The launch's own environment.
        gpus: GPUs of one server; 0 for a server that needs none.
    """

    flags: Mapping[str, FlagValue]
    env: Mapping[str, str]
    gpus: int = 0

    def integer(self, name: str, default: int | None = None) -> int | None:
        """Return a flag's integer, or `default` where it is not given or none."""
        value = self.flags.get(name, default)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def text(self, *names: str) -> str | None:
        """Return the string of the first of the flags that is given."""
        for name in names:
            value = self.flags.get(name)
            if isinstance(value, str):
                return value
        return None

    def is_on(self, name: str) -> bool:
        """Tell whether a switch is set."""
        return self.flags.get(name) is True

    @property
    def algorithm(self) -> str | None:
        """The speculative algorithm in capitals; None without speculation."""
        name = self.text("speculative-algorithm")
        return name.upper() if name and name.lower() != "none" else None

    @property
    def tp(self) -> int:
        """Size of the tensor-parallel group."""
        return self.integer("tp-size", 1) or 1

    @property
    def uses_dp_attention(self) -> bool:
        """Whether attention is data-parallel, in either version's way of saying so."""
        old = self.is_on("enable-dp-attention") and (self.integer("dp-size", 1) or 1) > 1
        return old or (self.integer("attn-dp-size", 1) or 1) > 1

    def without(self, *, flags: tuple[str, ...] = (), env: tuple[str, ...] = ()) -> "Setting":
        """Return the setting less these flags and variables."""
        return replace(
            self,
            flags={k: v for k, v in self.flags.items() if k not in flags},
            env={k: v for k, v in self.env.items() if k not in env},
        )

    def with_flag(self, name: str, value: FlagValue) -> "Setting":
        """Return the setting with one flag set."""
        return replace(self, flags={**self.flags, name: value})


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A change that the engine makes silently."""

    name: str
    apply: Callable[[Setting], Setting]
    versions: tuple[str, ...] = BOTH


def _spell_algorithm(s: Setting) -> Setting:
    if "speculative-algorithm" not in s.flags:
        return s
    if s.algorithm is None:
        return s.without(flags=("speculative-algorithm",))
    return s.with_flag("speculative-algorithm", "EAGLE" if s.algorithm == "NEXTN" else s.algorithm)


def _drop_idle_draft(s: Setting) -> Setting:
    if s.algorithm is not None:
        return s
    # One that no version here knows may mean something to the version on the node.
    idle = tuple(
        name for name in s.flags if name.startswith("speculative-") and sglang_flags.is_known(name)
    )
    return s.without(flags=idle, env=(DRAFT_TP,))


def _drop_idle_adaptive(s: Setting) -> Setting:
    """Leave out what `adaptive_unsupported_reason` switches off in favour of fixed numbers."""
    is_off = (
        s.algorithm not in {"EAGLE", "EAGLE3"}
        or s.integer("speculative-eagle-topk", 1) != 1
        or s.uses_dp_attention
        or s.is_on("enable-two-batch-overlap")
    )
    if not is_off or not s.is_on("speculative-adaptive"):
        return s
    return s.without(flags=("speculative-adaptive", "speculative-adaptive-config"))


def _chain_draft_tokens(s: Setting) -> Setting:
    steps = s.integer("speculative-num-steps")
    if (
        s.algorithm not in TREE_ALGORITHMS
        or steps is None
        or s.integer("speculative-eagle-topk") != 1
    ):
        return s
    return s.with_flag("speculative-num-draft-tokens", steps + 1)


def _ngram_ignores(s: Setting) -> Setting:
    if s.algorithm != "NGRAM":
        return s
    return s.without(flags=("speculative-eagle-topk",), env=(DRAFT_TP,))


def _same_draft_tp(s: Setting) -> Setting:
    asked = s.env.get(DRAFT_TP, "").strip()
    if not asked.isdecimal():
        return s
    if int(asked) == s.tp:
        return s.without(env=(DRAFT_TP,))
    return replace(s, env={**s.env, DRAFT_TP: str(int(asked))})


def _overwritten_environment(s: Setting) -> Setting:
    gone = ["CUDA_DEVICE_MAX_CONNECTIONS"]
    if s.is_on("enable-symm-mem"):
        gone += ["NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE"]
    if s.is_on("enable-nccl-nvls"):
        gone.append("NCCL_NVLS_ENABLE")
    if s.is_on("enable-deterministic-inference") and s.tp > 1:
        gone.append("NCCL_ALGO")
    return s.without(env=tuple(gone))


def _drop_defaults(s: Setting) -> Setting:
    same = tuple(n for n, v in s.flags.items() if sglang_flags.is_default(n, v))
    return s.without(flags=same)


#: In this order; applying them twice changes nothing more.
REWRITES: tuple[Rewrite, ...] = (
    Rewrite("the algorithm is spelt in capitals, NEXTN is EAGLE", _spell_algorithm),
    Rewrite("draft flags without an algorithm do nothing", _drop_idle_draft),
    Rewrite("adaptive speculation is for chains of EAGLE", _drop_idle_adaptive),
    Rewrite("with top-k 1 the draft tokens are steps + 1", _chain_draft_tokens),
    Rewrite("n-gram speculation has no draft model and its own breadth", _ngram_ignores),
    Rewrite("a draft TP equal to the target's is none", _same_draft_tp),
    Rewrite("variables that SGLang overwrites do nothing", _overwritten_environment),
    Rewrite("a flag at its default does nothing", _drop_defaults),
)


def rewrite(setting: Setting) -> Setting:
    """Return the setting that the engine makes of this one."""
    for change in REWRITES:
        setting = change.apply(setting)
    return setting
