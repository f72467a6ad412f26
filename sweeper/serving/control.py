"""One HTTP request to a server, made so that its owner can watch something else meanwhile."""

import contextlib
import json
import os
import threading
import time
from dataclasses import dataclass

import requests

from sweeper.engines.base import ControlRequest

#: No control answer of an engine comes near this; a broken server must not fill the memory.
_MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlAnswer:
    """What a server answered.

    Attributes:
        status: The HTTP status.
        text: The body as text.
        json: The body read as JSON; None where it is none.
    """

    status: int
    text: str
    json: object | None = None

    def __str__(self) -> str:
        return f"{self.status} {self.text[:200].strip()}".strip()


class Call:
    """A request in flight, in a thread of its own; `fileno` is readable when it is over.

    It goes to the loopback address past any proxy, follows no redirect, and ends by itself: by
    `timeout_s` without a byte, or by that long in all once the answer has begun.
    """

    def __init__(
        self, port: int, request: ControlRequest, *, timeout_s: float, key: str | None = None
    ) -> None:
        self._url = f"http://127.0.0.1:{port}{request.path}"
        self._request = request
        self._timeout_s = timeout_s
        self._key = key
        self._answer: ControlAnswer | None = None
        self._error: OSError | None = None
        self._done, self._end = os.pipe()
        threading.Thread(target=self._run, name="control-call", daemon=True).start()

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the call is over."""
        return self._done

    def close(self) -> None:
        """Give the descriptor back; a call in flight ends by itself."""
        os.close(self._done)

    @property
    def is_over(self) -> bool:
        """Tell whether there is an answer or an error."""
        return self._answer is not None or self._error is not None

    def answer(self) -> ControlAnswer:
        """Return the answer of a call that is over.

        Raises:
            TimeoutError: None came in time.
            ConnectionError: The connection was refused or broke.
        """
        if self._answer is None:
            raise self._error or TimeoutError(f"no answer yet from {self._request.path}")
        return self._answer

    def _run(self) -> None:
        what = f"{self._request.method} {self._request.path}"
        try:
            self._answer = self._send()
        except (requests.Timeout, TimeoutError):
            self._error = TimeoutError(f"no answer to {what} in {self._timeout_s:.1f} s")
        except (requests.RequestException, OSError, ValueError) as error:
            self._error = ConnectionError(f"{what}: {error}")
        finally:
            with contextlib.suppress(OSError):
                os.close(self._end)

    def _send(self) -> ControlAnswer:
        body = self._request.json
        end = time.monotonic() + self._timeout_s
        headers = {"Connection": "close"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        with requests.Session() as session:
            session.trust_env = False  # a proxy of the environment is not for the loopback
            with session.request(
                self._request.method,
                self._url,
                json=None if body is None else dict(body),
                headers=headers,
                timeout=self._timeout_s,
                allow_redirects=False,
                stream=True,
            ) as response:
                data = b""
                for piece in response.iter_content(65536):
                    data += piece
                    if len(data) > _MOST_BYTES:
                        raise ConnectionError("the answer does not end")
                    if time.monotonic() > end:
                        raise TimeoutError
        text = data.decode(errors="replace")
        parsed: object | None = None
        with contextlib.suppress(ValueError):
            parsed = json.loads(text)
        return ControlAnswer(status=response.status_code, text=text, json=parsed)
