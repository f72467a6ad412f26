"""A sequence that fills a space evenly at every length. Pure.

Halton's sequence (1960): coordinate k of point i is i written in the k-th prime base, mirrored at
the point. Digits are permuted at random, which breaks the correlation of neighbouring bases.
Optuna's own quasi-random sampler needs SciPy and fills only what its first trial had.
"""

import itertools
import random
from collections.abc import Iterator

from sweeper.records import Scalar
from sweeper.space import Space


def halton_points(space: Space, seed: int) -> Iterator[dict[str, Scalar]]:
    """Yield points without end, inactive parameters included; equal for equal seeds."""
    primes = list(itertools.islice(_primes(), len(space.parameters)))
    rng = random.Random(f"halton {seed}")
    # Zero stays zero, or no number would end.
    permutations = [[0, *rng.sample(range(1, base), base - 1)] for base in primes]
    shifts = [rng.random() for _ in primes]
    for index in itertools.count(1):
        point = {}
        for parameter, base, permutation, shift in zip(
            space.parameters, primes, permutations, shifts, strict=True
        ):
            at = (_mirrored(index, base, permutation) + shift) % 1.0
            point[parameter.name] = parameter.values[int(at * len(parameter.values))]
        yield point


def _mirrored(index: int, base: int, permutation: list[int]) -> float:
    value, weight = 0.0, 1.0
    while index:
        index, digit = divmod(index, base)
        weight /= base
        value += permutation[digit] * weight
    return value


def _primes() -> Iterator[int]:
    found: list[int] = []
    for number in itertools.count(2):
        if all(number % prime for prime in found):
            found.append(number)
            yield number
