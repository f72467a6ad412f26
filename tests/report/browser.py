"""A headless Chromium, driven over its DevTools socket: enough to open a page and ask it."""

import asyncio
import contextlib
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--remote-debugging-address=127.0.0.1", "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)  # fmt: skip
PATIENCE_S = 60.0


def find_browser() -> str | None:
    """Return the program's path, or None where there is none."""
    return shutil.which("chromium") or shutil.which("google-chrome")


class PageReplacedError(AssertionError):
    """The page went away while it was asked; the next one can be asked again."""


class Tab:
    """One tab.

    Attributes:
        complaints: Errors, warnings of the log, and refused loads, as JSON text.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def listen(self) -> None:
        """Sort what the browser says, until it ends."""
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                self._waiting.pop(said["id"]).set_result(said)
            elif said["method"] in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(json.dumps(said["params"])[:500])

    async def call(self, method: str, **params: object) -> dict[str, Any]:
        """Return the browser's answer to one command."""
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        await self._socket.send_json({"id": number, "method": method, "params": params})
        said = await asyncio.wait_for(answer, PATIENCE_S)
        if "navigated or closed" in str(said.get("error", "")):
            raise PageReplacedError(said)
        assert "error" not in said, said
        result: dict[str, Any] = said["result"]
        return result

    async def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, as if a person had caused it."""
        result = await self.call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until the expression is true."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(PageReplacedError):
                    if await self.ask(expression):
                        return
                await asyncio.sleep(0.05)

    async def click(self, x: float, y: float, *, press: bool = True) -> None:
        """Move the mouse to a place in the window and press it there."""
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if press:
            for kind in ("mousePressed", "mouseReleased"):
                await self.call(
                    "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
                )


@contextlib.asynccontextmanager
async def open_tab(
    program: str, profile: Path, *, width: int = 1200, height: int = 800, dark: bool = False
) -> AsyncIterator[Tab]:
    """Open an empty tab."""
    process = subprocess.Popen(  # noqa: ASYNC220
        [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        port = ""
        for line in process.stderr:
            if found := re.search(r"DevTools listening on ws://[^:]+:(\d+)/", line):
                port = found.group(1)
                break
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                tabs = await answer.json()
            address = next(t["webSocketDebuggerUrl"] for t in tabs if t["type"] == "page")
            async with session.ws_connect(address, max_msg_size=0) as socket:
                tab = Tab(socket)
                listener = asyncio.create_task(tab.listen())
                for domain in ("Page", "Runtime", "Log"):
                    await tab.call(f"{domain}.enable")
                await tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
                scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
                await tab.call("Emulation.setEmulatedMedia", features=[scheme])
                await tab.call(
                    "Emulation.setDeviceMetricsOverride",
                    width=width,
                    height=height,
                    deviceScaleFactor=1,
                    mobile=width < 500,
                )
                yield tab
                listener.cancel()
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_S)
        if process.stderr is not None:
            process.stderr.close()


@contextlib.asynccontextmanager
async def open_page(
    program: str, page: Path, profile: Path, *, width: int = 1200, dark: bool = False
) -> AsyncIterator[Tab]:
    """Open a page from the disk and draw all of its figures."""
    # Tall enough that every figure is near the window, and so is drawn.
    async with open_tab(program, profile, width=width, height=40_000, dark=dark) as tab:
        await tab.call("Page.navigate", url=page.as_uri())
        await tab.until("document.documentElement?.dataset.ready === 'yes'")
        await tab.until(
            "[...document.querySelectorAll('.plot')].every(b => b.querySelector('.main-svg'))"
        )
        yield tab
