"""An owner to be killed, as a script: `owner.py LOG MARK COMMAND...`; prints the leader's pid."""

import os
import sys
import time
from pathlib import Path

from sweeper.serving.supervised import Job, Supervised


def main() -> None:
    log, mark, *argv = sys.argv[1:]
    owned = Supervised(
        Job(argv=argv, env=dict(os.environ), cwd=Path.cwd(), log_path=Path(log), mark=mark)
    )
    owned.wait_until(lambda: owned.leader is not None, 60.0)
    print(owned.leader, flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
