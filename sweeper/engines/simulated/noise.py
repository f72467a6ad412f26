"""Chance in the simulated server: all of it seeded, all of it a factor on a time or a draw.

launch     one factor on step times for the life of the server; fresh for each trial number
request    one factor on step times while a request runs
prompt     one exponent on the acceptance of a prompt's text: the same in every launch, as
           greedy decoding of the same prompt accepts the same drafts
step       which draw of the acceptance a step gets; from the prompt's text too
drift      the node grows slower and faster over hours
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

#: Relative standard deviations at noise 1. The spread of repeated launches of one setting on one
#: machine is a guess; the wider spread over prompts is in the drafts' `kinds`.
LAUNCH_SIGMA = 0.006
REQUEST_SIGMA = 0.008
PROMPT_SIGMA = 0.03

#: Engine seconds of one swing of the periodic drift. A guess: room and power vary over hours.
DRIFT_PERIOD_S = 3 * 3600.0
#: Steps whose draws are spread evenly over the distribution; it keeps short requests honest.
_STRATA = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Slow change of a node's step times.

    Attributes:
        amplitude: Relative amplitude of a sine of `DRIFT_PERIOD_S`.
        per_hour: Relative growth an engine hour.
        origin_unix_s: Unix time at which `per_hour` begins.
    """

    amplitude: float = 0.0
    per_hour: float = 0.0
    origin_unix_s: float = 0.0

    def factor(self, unix_s: float, time_scale: float) -> float:
        """Return the factor on step times at real time `unix_s`."""
        engine_s = (unix_s - self.origin_unix_s) * time_scale
        swing = math.sin(2 * math.pi * math.fmod(engine_s, DRIFT_PERIOD_S) / DRIFT_PERIOD_S)
        return max(1.0 + self.amplitude * swing + self.per_hour * engine_s / 3600.0, 0.05)


def launch_factor(seed: int, identity: str, noise: float) -> float:
    """Return the factor of one launch; `identity` holds its flags and its trial number."""
    return _factor(random.Random(f"launch {seed} {identity}"), LAUNCH_SIGMA * noise)


def request_factor(rng: random.Random, noise: float) -> float:
    """Return the factor of one request."""
    return _factor(rng, REQUEST_SIGMA * noise)


def prompt_exponent(seed: int, prompt: str, noise: float) -> float:
    """Return the exponent on the acceptance of this prompt."""
    return _factor(random.Random(f"prompt {seed} {prompt}"), PROMPT_SIGMA * noise)


def _factor(rng: random.Random, sigma: float) -> float:
    return math.exp(rng.gauss(0.0, sigma)) if sigma > 0 else 1.0


def draws(seed: str, noise: float) -> Iterator[float]:
    """Yield numbers in [0, 1), one a step.

    Without noise they are the multiples of the golden ratio, which fill the interval evenly at
    every length; with noise each block of eight holds one random number of each eighth, in
    random order.
    """
    rng = random.Random(f"draws {seed}")
    if noise <= 0:
        golden = (math.sqrt(5) - 1) / 2
        value = 0.5
        while True:
            yield value
            value = (value + golden) % 1.0
    while True:
        block = list(range(_STRATA))
        rng.shuffle(block)
        for stratum in block:
            yield (stratum + rng.random()) / _STRATA


def accepted(chances: Sequence[float], draw: float) -> int:
    """Return how many draft tokens a step accepts: those whose chance exceeds the draw."""
    count = 0
    for chance in chances:
        if draw >= chance:
            break
        count += 1
    return count
