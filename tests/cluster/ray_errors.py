"""Errors as Ray makes them, and the line that is shown of each; run as a program.

Ray reads its settings when it is imported, so no test's own process may import it first.
"""

import json
import sys

from ray.core.generated import common_pb2
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError, RayTaskError

from sweeper.cluster.joining import line_of

#: As in Ray 2.60: frames below a name, the exception last.
TRACEBACK = """\
ray::Slot.__init__() (pid=7, ip=127.0.0.1, actor_id=95, repr=<Slot object at 0x7f>)
  File "slot.py", line 1, in __init__
PermissionError: the folder is another's"""
RAISED = RayTaskError(  # type: ignore[no-untyped-call]
    "__init__", TRACEBACK, PermissionError("the folder is another's"), "ray::Slot", 7, "127.0.0.1"
)
AS_CAUSE: RayError = RAISED.as_instanceof_cause()  # type: ignore[no-untyped-call]
KILLED = common_pb2.ActorDiedErrorContext(  # type: ignore[attr-defined]
    class_name="Slot",
    actor_id=bytes(16),
    pid=7,
    name="sweeper study slot-0",
    ray_namespace="sweeper",
    node_ip_address="127.0.0.1",
    error_message="The actor is dead because its worker process has died. End of file. "
    "Some common causes include: (1) the process was killed by the OOM killer",
)

ERRORS: dict[str, RayError] = {
    "raised": RAISED,
    "as its cause": AS_CAUSE,
    "in its start": ActorDiedError(RAISED),
    "killed": ActorDiedError(KILLED),
    "unknown": ActorDiedError(),
    "late": GetTimeoutError("did not start in 120 s"),
    "silent": RayError(),
}

if __name__ == "__main__":
    json.dump({name: line_of(error) for name, error in ERRORS.items()}, sys.stdout)
