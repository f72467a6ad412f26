"""Engine time: the only place where simulated seconds and real seconds meet.

A simulated server runs `scale` simulated seconds in one real second, so that a sweep of hours is
shown in minutes. Whoever measures it stamps with the same clock and sees the simulated times. A
real engine has scale 1 and engine time is real time.
"""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """A monotonic clock that counts engine time.

    Attributes:
        scale: Engine seconds in a real second; 1 for a real engine.
    """

    scale: float = 1.0

    def now_ns(self) -> int:
        """Return engine time in nanoseconds since an arbitrary origin."""
        return int(time.monotonic_ns() * self.scale)

    def now_s(self) -> float:
        """Return engine time in seconds since an arbitrary origin."""
        return time.monotonic() * self.scale

    def real_s(self, engine_s: float) -> float:
        """Return how many real seconds `engine_s` engine seconds take."""
        return engine_s / self.scale

    def engine_s(self, real_s: float) -> float:
        """Return how many engine seconds pass in `real_s` real seconds."""
        return real_s * self.scale
