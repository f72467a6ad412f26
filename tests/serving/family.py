"""A server's process tree at its worst, as a script: `family.py MEMBERS_FILE`.

The leader has a child in its group that ignores SIGTERM, a daemon with its own session, and a
daemon that has overwritten its environment, as processes do that set their own title. Each line
of the file: role, pid, start time. It stands there complete or not at all.
"""

import ctypes
import os
import signal
import sys
import time


def identity(role: str) -> str:
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123
        fields = file.read().rpartition(b")")[2].split()
    return f"{role} {os.getpid()} {int(fields[19])}\n"


def overwrite_environment() -> None:
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123
        fields = file.read().rpartition(b")")[2].split()
    begin, end = int(fields[47]), int(fields[48])  # proc(5): env_start, env_end
    ctypes.memset(begin, 0, end - begin)


def child(role: str, report: int, *, own_session: bool, titled: bool) -> None:
    if os.fork():
        return
    if own_session:
        os.setsid()
        if os.fork():
            os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    line = identity(role).encode()
    if titled:
        overwrite_environment()
    os.write(report, line)
    while True:
        time.sleep(60)


def main() -> None:
    target = sys.argv[1]
    read, write = os.pipe()
    child("child", write, own_session=False, titled=False)
    child("daemon", write, own_session=True, titled=False)
    child("titled", write, own_session=True, titled=True)
    text = identity("leader")
    while text.count("\n") < 4:
        text += os.read(read, 1024).decode()
    with open(target + ".part", "w") as file:  # noqa: PTH123
        file.write(text)
    os.rename(target + ".part", target)  # noqa: PTH104
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
