"""A page in a headless Chromium, over the DevTools protocol; nothing but Python is needed."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

PATIENCE = 60  # seconds for a condition to come true, on a slow machine


def find_chromium():
    """The program, or None."""
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")


class Page:
    """Use it in a `with`. `events` are what the browser told, in order: pairs of method and parameters."""

    def __init__(self, width=1200, height=900):
        self._profile = tempfile.TemporaryDirectory(prefix="vericache-browser-", ignore_cleanup_errors=True)
        # The browser reads commands from its file 3 and writes to its file 4.
        (commands, self._commands), (self._answers, answers) = os.pipe(), os.pipe()
        theirs = [fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (commands, answers)]
        os.close(commands)
        os.close(answers)

        def inherit():
            os.dup2(theirs[0], 3)
            os.dup2(theirs[1], 4)

        arguments = [find_chromium(), "--headless", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run",
                     "--disable-background-networking", "--disable-dev-shm-usage", "--hide-scrollbars",
                     f"--user-data-dir={self._profile.name}", f"--window-size={width},{height}"]
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")  # which root cannot have
        self._process = subprocess.Popen(arguments, preexec_fn=inherit, pass_fds=(3, 4), stdin=subprocess.DEVNULL,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                         start_new_session=True)
        for each in theirs:
            os.close(each)
        self.events = []
        self._results = {}
        self._unread = b""
        self._last_id = 0
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.killpg(self._process.pid, signal.SIGKILL)  # with the processes that it made
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
        self._profile.cleanup()

    def call(self, method, **parameters):
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while self._last_id not in self._results:
            self._read(until - time.monotonic())
        answer = self._results.pop(self._last_id)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _read(self, seconds):
        if not select.select([self._answers], [], [], max(0, seconds))[0]:
            raise TimeoutError("the browser does not answer")
        part = os.read(self._answers, 1 << 16)
        if not part:
            raise RuntimeError(f"the browser has ended: {self._process.wait()}")
        *messages, self._unread = (self._unread + part).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._results[message["id"]] = message
            else:
                self.events.append((message["method"], message["params"]))

    def run(self, script):
        """What a JavaScript expression gives."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, script):
        """Until the expression is true; what it is then."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            value = self.run(script)
            if value:
                return value
            time.sleep(0.02)
        raise TimeoutError(f"it does not come true: {script}")

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait(f"location.href.startsWith({json.dumps(url)}) && document.readyState == 'complete'")

    def click(self, selector):
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView()")
        x, y = self.run(f"(box => [box.x + box.width / 2, box.y + box.height / 2])"
                        f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, selector, text):
        """In place of what a field has."""
        self.click(selector)
        self.run("document.activeElement.select()")
        self.call("Input.insertText", text=text)

    def errors(self):
        """What went wrong on the page, as its console would show it."""
        found = []
        for method, parameters in self.events:
            if method == "Runtime.exceptionThrown":
                found.append(parameters["exceptionDetails"])
            elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert", "warning"):
                found.append(parameters["args"])
            elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(parameters["entry"])
        return found

    def requests(self):
        """The URLs that were asked for."""
        return [p["request"]["url"] for method, p in self.events if method == "Network.requestWillBeSent"]

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
