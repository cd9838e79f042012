"""Drives the Chromium of this machine over a pipe (Chrome DevTools Protocol), without further packages."""

import json
import os
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_browser():
    """The browser: of the variable CHROMIUM, or the first of the usual names; None where there is none."""
    return os.environ.get("CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One Chromium without a window. Use it as a context manager."""

    def __enter__(self):
        self.profile = tempfile.mkdtemp()
        to_browser, self.ours = os.pipe()
        self.theirs, from_browser = os.pipe()

        def hand_over():
            read, write = os.dup2(to_browser, 60), os.dup2(from_browser, 61)
            os.dup2(read, 3)
            os.dup2(write, 4)

        flags = "--headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-extensions".split()
        flags.append("--remote-debugging-pipe")
        self.process = subprocess.Popen(
            [find_browser(), *flags, f"--user-data-dir={self.profile}", "about:blank"],
            preexec_fn=hand_over,
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.buffer, self.events = 0, b"", []
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)
        shutil.rmtree(self.profile, ignore_errors=True)

    def _read(self):
        while b"\0" not in self.buffer:
            chunk = os.read(self.theirs, 1 << 16)
            if not chunk:
                raise RuntimeError("the browser is gone")
            self.buffer += chunk
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def call(self, method, session=None, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters} | (
            {"sessionId": session} if session else {}
        )
        os.write(self.ours, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, url, width=1280, height=900, dark=False):
        """A page that has been loaded and drawn."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        page = Page(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        page.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        page.call("Page.navigate", url=url)
        page.wait("document.readyState === 'complete' && document.querySelector('.tokens span')?.textContent !== ''")
        page.settle()
        return page


class Page:
    """One page of a `Browser`."""

    def __init__(self, browser, session):
        self.browser, self.session = browser, session

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def evaluate(self, script):
        """The value of an expression, promises awaited."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(
                found["exceptionDetails"].get("exception", {}).get("description", str(found["exceptionDetails"]))
            )
        return found["result"].get("value")

    def wait(self, condition, seconds=30):
        end = time.monotonic() + seconds
        while not self.evaluate(condition):
            if time.monotonic() > end:
                raise TimeoutError(condition)
            time.sleep(0.02)

    def settle(self):
        """Waits until tiles are read and everything is drawn."""
        self.evaluate(
            "new Promise((done) => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 250))"
        )

    def move(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)
        self.settle()

    def text(self, selector):
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")

    def box(self, selector):
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()")

    def _events(self, method):
        """What was reported of this page by this name."""
        self.evaluate("1")
        events = [one for one in self.browser.events if one.get("sessionId") == self.session]
        return [one["params"] for one in events if one["method"] == method]

    def complaints(self):
        """Errors and warnings of the console, exceptions, and refused or failed loads."""
        thrown = [str(one["exceptionDetails"]) for one in self._events("Runtime.exceptionThrown")]
        entries = [one["entry"] for one in self._events("Log.entryAdded")]
        printed = [one for one in self._events("Runtime.consoleAPICalled") if one["type"] in ("error", "warning")]
        logged = [one["text"] for one in entries if one["level"] in ("error", "warning")]
        return thrown + logged + [str(one["args"]) for one in printed]

    def requests(self):
        """Addresses that were asked for, those within the page (data:, blob:) left out."""
        asked = [one["request"]["url"] for one in self._events("Network.requestWillBeSent")]
        return [url for url in asked if not url.startswith(("data:", "blob:"))]
