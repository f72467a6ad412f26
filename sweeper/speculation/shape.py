"""What of a launch the model looks at: how it speculates, and the level of each factor."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sweeper.records import FlagValue, Scalar

ALGORITHM = "speculative-algorithm"
DRAFT_PATH = "speculative-draft-model-path"
STEPS = "speculative-num-steps"
TOPK = "speculative-eagle-topk"
DRAFT_TOKENS = "speculative-num-draft-tokens"
#: Flags that a shape is read from; all others are factors.
SHAPE_FLAGS = frozenset({ALGORITHM, DRAFT_PATH, STEPS, TOPK, DRAFT_TOKENS})
#: (flag, value) that turn CUDA graphs of the decode phase off.
GRAPHS_OFF: frozenset[tuple[str, FlagValue]] = frozenset(
    {
        ("disable-cuda-graph", True),
        ("disable-decode-cuda-graph", True),
        ("cuda-graph-backend-decode", "disabled"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a server speculates.

    Attributes:
        draft: Algorithm and draft model, as one label.
        steps: Draft passes a step.
        topk: Guesses that a draft pass keeps; 1 is a chain.
        draft_tokens: Tokens verified a step, the sure one included.
    """

    draft: str
    steps: int
    topk: int
    draft_tokens: int

    @property
    def is_tree(self) -> bool:
        """Whether a position has more than one guess."""
        return self.topk > 1

    @property
    def depth(self) -> int:
        """Most draft tokens that one step can accept."""
        return max(min(self.steps, self.draft_tokens - 1), 0)

    @property
    def log_width(self) -> float:
        """Log2 of the verified guesses a draft pass; 0 for a chain."""
        if not self.is_tree:
            return 0.0
        return float(np.log2(max(1.0, (self.draft_tokens - 1) / max(self.steps, 1))))


def shape_of(flags: Mapping[str, FlagValue]) -> Shape | None:
    """Return how a launch with these flags speculates; None if it does not.

    What is not given is taken as SGLang's usual defaults: 3 steps, top-k 1, steps + 1 tokens. An
    algorithm without steps (n-grams, block diffusion) guesses all its tokens in one chain.
    """
    algorithm = flags.get(ALGORITHM)
    if algorithm in (None, "", False):
        return None
    tokens = _int(flags.get(DRAFT_TOKENS))
    steps = _int(flags.get(STEPS)) or (tokens - 1 if tokens else 3)
    return Shape(
        draft=f"{algorithm} {flags.get(DRAFT_PATH, '')}".strip(),
        steps=steps,
        topk=_int(flags.get(TOPK)) or 1,
        draft_tokens=tokens or steps + 1,
    )


def _int(value: FlagValue | None) -> int:
    try:
        return int(value) if isinstance(value, str | int | float) else 0
    except ValueError:
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """Something besides the shape in which settings differ.

    Attributes:
        name: The parameter's name.
        levels: What tells its levels apart, as the launch has it; numbers in ascending order.
        labels: The levels as the space file names them.
        numeric: Whether neighbouring levels are alike.
        unset: Whether the last level is no number, as where a baseline leaves it to the engine.
        graphs_off: Index of the level that turns CUDA graphs off; None if none does.
    """

    name: str
    levels: tuple[tuple[object, ...], ...]
    labels: tuple[Scalar, ...]
    numeric: bool = False
    unset: bool = False
    graphs_off: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What of a launch the model looks at: its shape, and the level of each factor."""

    shape: Shape | None
    levels: tuple[int, ...]
