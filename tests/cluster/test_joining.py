"""The line of Ray's errors that tells the cause, on errors as Ray makes them."""

import pytest
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


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RAISED, "PermissionError: the folder is another's"),
        (AS_CAUSE, "PermissionError: the folder is another's"),
        (ActorDiedError(RAISED), "PermissionError: the folder is another's"),
        (
            ActorDiedError(KILLED),
            "The actor is dead because its worker process has died. End of file.",
        ),
        (ActorDiedError(), "The actor died unexpectedly before finishing this task."),
        (GetTimeoutError("did not start in 120 s"), "did not start in 120 s"),
        (RayError(), "RayError"),
    ],
    ids=["raised", "as its cause", "in its start", "killed", "unknown", "late", "silent"],
)
def test_the_line_tells_the_cause(error: RayError, line: str) -> None:
    assert line_of(error) == line
