"""A headless Chromium, controlled over DevTools (a WebSocket), for tests and pictures of the pages."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import httpx
from websockets.sync.client import ClientConnection, connect

from deploy.local.ports import HOST
from deploy.local.process import Child, ProcessError
from deploy.setup import chromium

START_S = 180.0
WAIT_S = 180.0
_POLL_S = 0.05
_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-port=0", f"--remote-debugging-address={HOST}",
)  # fmt: skip
# The pictures' width; pages are read on narrower screens too.
SIZE = (1280, 900)


class Chromium:
    """One browser below `folder`, with its own profile."""

    def __init__(self, folder: Path) -> None:
        program = chromium.find_browser()
        if program is None:
            raise ProcessError(
                "Chromium is not installed: run `make setup-tests`, or install it (Debian: apt install chromium)"
            )
        self._ends = folder / "profile" / "DevToolsActivePort"
        options = [*_OPTIONS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
        self._child = Child("chromium", [program, *options], folder, env=chromium.build_environment())

    def __enter__(self) -> Chromium:
        self._child.start().wait_until(lambda: self._ends.exists() and self._ends.stat().st_size > 0, START_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stop()

    def open_page(self) -> BrowserPage:
        """A new page; the caller closes it."""
        port = self._ends.read_text(encoding="utf-8").splitlines()[0]
        message = httpx.put(f"http://{HOST}:{port}/json/new?about:blank", timeout=WAIT_S).raise_for_status().json()
        return BrowserPage(message["webSocketDebuggerUrl"])


class BrowserPage:
    """One page. `requests`: all URLs that it requested; `complaints`: what the browser logged as an error."""

    def __init__(self, address: str) -> None:
        self._open = ExitStack()
        self._socket: ClientConnection = self._open.enter_context(connect(address, max_size=None, open_timeout=WAIT_S))
        self._number = 0
        self._loads = 0
        self.requests: list[str] = []
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.set_size(*SIZE)

    def __enter__(self) -> BrowserPage:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command of the protocol; returns its result. Raises ProcessError."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=WAIT_S))
            if message.get("id") == self._number:
                if "error" in message:
                    raise ProcessError(f"{method}: {message['error'].get('message')}")
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def set_size(self, width: int, height: int) -> None:
        """Set the size of the window, in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def set_scheme(self, scheme: Literal["light", "dark"]) -> None:
        """Set the user's preferred color scheme."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def set_cookie(self, url: str, name: str, value: str) -> None:
        """Set a cookie for `url`."""
        self.call("Network.setCookie", url=url, name=name, value=value, sameSite="Lax")

    def goto(self, url: str) -> None:
        """Load `url` and wait until it has loaded."""
        self._act_and_wait_for_load(lambda: self.call("Page.navigate", url=url))

    def follow(self, text: str) -> None:
        """Click the link or button with `text` and wait for the page it loads. Raises ProcessError if none exists."""
        self._act_and_wait_for_load(lambda: self.click(text))

    def click(self, text: str) -> None:
        """Click the first visible link, button, or tab with `text`. Raises ProcessError if none exists."""
        clicked = self.evaluate(
            "(text => { const all = [...document.querySelectorAll('a, button, [role=tab]')];"
            "const one = all.find(e => e.textContent.trim() === text && e.getClientRects().length);"
            f"one?.click(); return !!one }})({json.dumps(text)})"
        )
        if not clicked:
            raise ProcessError(f"nothing to click has the text {text!r}: {self.read_visible_text()[:2000]}")

    def fill(self, label: str, text: str) -> None:
        """Type `text`, as a keyboard does, into the field of `label`. Raises ProcessError if none exists."""
        focused = self.evaluate(
            "(text => { const label = [...document.querySelectorAll('label')]"
            ".find(e => e.textContent.trim().startsWith(text));"
            "const field = label?.control ?? document.getElementById(label?.htmlFor); if (!field) return false;"
            f"field.focus(); field.select?.(); return true }})({json.dumps(label)})"
        )
        if not focused:
            raise ProcessError(f"there is no field with the label {label!r}: {self.read_visible_text()[:2000]}")
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press a key, such as Tab or Enter."""
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"Enter": "\r"}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                      **({"text": text} if text and kind == "keyDown" else {}))  # fmt: skip

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression (a promise is awaited). Raises ProcessError."""
        message = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in message:
            raise ProcessError(str(message["exceptionDetails"].get("exception", message["exceptionDetails"]))[:2000])
        return message["result"].get("value")

    def wait(self, script: str) -> Any:
        """The value of `script` once it is true. Raises ProcessError after WAIT_S."""
        until = time.monotonic() + WAIT_S
        while not (value := self.evaluate(script)):
            if time.monotonic() > until:
                raise ProcessError(f"condition not met: {script}; the page: {self.read_visible_text()[:2000]}")
            time.sleep(_POLL_S)
        return value

    def read_visible_text(self) -> str:
        """The visible text of the page."""
        return str(self.evaluate("document.body?.innerText ?? ''"))

    def write_picture(self, path: Path) -> None:
        """Write a PNG of the window to `path`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def _act_and_wait_for_load(self, act: Callable[[], object]) -> None:
        before, until = self._loads, time.monotonic() + WAIT_S
        act()
        while self._loads == before:
            if time.monotonic() > until:
                raise ProcessError("the page did not load in time")
            self._note(json.loads(self._socket.recv(timeout=WAIT_S)))

    def _note(self, message: Mapping[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loads += 1
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(f"{parameters['entry'].get('url', '')}: {parameters['entry']['text']}")
