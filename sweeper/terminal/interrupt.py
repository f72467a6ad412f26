"""What signals ask of a sweep, and the exit statuses of the command."""

import signal
from dataclasses import dataclass
from types import FrameType

EXIT_USER, EXIT_BROKEN, EXIT_INT = 2, 1, 130


@dataclass
class Interrupt:
    """What the person or the system asked for: 0 nothing, 1 stop cleanly, 2 or more at once."""

    count: int = 0
    status: int = EXIT_INT

    def install(self) -> None:
        """Take SIGINT, SIGTERM and SIGHUP from now on; not a SIGHUP that `nohup` has ignored."""

        def handle(number: int, _: FrameType | None) -> None:
            self.count += 1
            self.status = EXIT_INT if number == signal.SIGINT else 128 + number

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handle)
