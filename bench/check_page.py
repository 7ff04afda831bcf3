#!/usr/bin/env python3
"""Opens a report in Chromium, wide and narrow, light and dark, and looks for faults.

Faults are errors on the console, requests for other files, a page wider than its window, texts of a chart that cover
each other or reach beyond it, and texts that are cut off.
"""

import argparse
import base64
import fcntl
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZES = [(1280, 900), (400, 860)]
LIMIT = 30.0

# A script that the page runs to examine its own layout; it returns a list of complaints.
LOOK = """
(() => {
  const found = [];
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) found.push(`the page is ${wide} wide in a window of ${innerWidth}`);
  const within = (inner, outer) => inner.left >= outer.left - 1 && inner.right <= outer.right + 1
    && inner.top >= outer.top - 1 && inner.bottom <= outer.bottom + 1;
  for (const svg of document.querySelectorAll('svg')) {
    const paper = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
    for (const [index, [text, box]] of texts.entries()) {
      if (!box.width) continue;
      if (!within(box, paper)) found.push(`text beyond the chart: ${text}`);
      for (const [other, its] of texts.slice(index + 1)) {
        const across = Math.min(box.right, its.right) - Math.max(box.left, its.left);
        const down = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
        if (across > 1 && down > 3) found.push(`texts cover each other: ${text} / ${other}`);
      }
    }
  }
  for (const element of document.querySelectorAll('main *')) {
    if (element.closest('svg, .scroll, .track') || !element.getClientRects().length) continue;
    const box = element.getBoundingClientRect();
    const text = element.textContent.slice(0, 60);
    if (box.right > innerWidth + 1 || box.left < -1) found.push(`beyond the window: ${text}`);
  }
  return found;
})()
"""


class Browser:
    """A Chromium without a window, driven through a pipe by its DevTools protocol. A context manager."""

    def __init__(self, directory):
        # Chromium reads commands from descriptor 3 and writes to 4; so the ends of the pipes get higher numbers first, and are then moved
        # there.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for pair in (os.pipe(), os.pipe()) for end in pair]
        its_input, self.input, self.output, its_output = ends

        def move():
            os.dup2(its_input, 3)
            os.dup2(its_output, 4)

        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
        command += ["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]
        command += ["--hide-scrollbars", f"--user-data-dir={directory}", "--remote-debugging-pipe", "about:blank"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=move, pass_fds=(3, 4),
        )
        os.close(its_input)
        os.close(its_output)
        self.rest, self.last_id, self.events, self.session = b"", 0, [], None
        try:
            self.attach()
        except BaseException:
            self.stop()
            raise

    def attach(self):
        """Begins a DevTools session with the browser's only page, and asks for events about that page."""
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{part}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        os.close(self.input)
        os.close(self.output)
        self.process.terminate()
        self.process.wait(10)

    def message(self, deadline):
        while b"\0" not in self.rest:
            if not select.select([self.output], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("Chromium does not answer")
            piece = os.read(self.output, 1 << 20)
            if not piece:
                raise ConnectionError("Chromium has ended")
            self.rest += piece
        text, _, self.rest = self.rest.partition(b"\0")
        return json.loads(text)

    def call(self, method, **params):
        self.last_id += 1
        wanted = {"id": self.last_id, "method": method, "params": params}
        if self.session:
            wanted["sessionId"] = self.session
        os.write(self.input, json.dumps(wanted).encode() + b"\0")
        deadline = time.monotonic() + LIMIT
        while True:
            message = self.message(deadline)
            if message.get("id") == self.last_id:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            if "method" in message:
                self.events.append(message)

    def wait_for(self, event):
        deadline = time.monotonic() + LIMIT
        while not any(message["method"] == event for message in self.events):
            message = self.message(deadline)
            if "method" in message:
                self.events.append(message)

    def open(self, url, size, scheme):
        """Opens a page at this window size and colour scheme; returns the complaints."""
        self.events.clear()
        wide, high = size
        self.call("Emulation.setDeviceMetricsOverride", width=wide, height=high, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=url)
        self.wait_for("Page.loadEventFired")
        found = self.call("Runtime.evaluate", expression=LOOK, returnByValue=True)["result"].get("value")
        found = ["the script that checks the page has failed"] if found is None else found
        for message in self.events:
            params = message["params"]
            if message["method"] == "Network.requestWillBeSent" and params["request"]["url"] != url:
                found.append(f"the page requests {params['request']['url']}")
            elif message["method"] == "Runtime.exceptionThrown":
                found.append(f"exception: {params['exceptionDetails']['text']}")
            elif message["method"] == "Runtime.consoleAPICalled":
                found.append(f"console: {params['type']}")
            elif message["method"] == "Log.entryAdded":
                found.append(f"log: {params['entry']['text']}")
        return found

    def picture(self, path):
        """Writes a picture of the whole page as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(shot["data"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the directory of the report")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="write what the browser shows as PNG there")
    args = parser.parse_args()
    if args.pictures:
        args.pictures.mkdir(parents=True, exist_ok=True)
    complaints = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory, Browser(directory) as browser:
        for name, sizes in (("report.html", SIZES), ("headline.svg", SIZES[:1])):
            for size in sizes:
                for scheme in ("light", "dark") if (args.out / name).exists() else ():
                    found = browser.open((args.out / name).resolve().as_uri(), size, scheme)
                    for complaint in found:
                        print(f"{name}, {size[0]} wide, {scheme}: {complaint}")
                    complaints += len(found)
                    if args.pictures:
                        browser.picture(args.pictures / f"{name.partition('.')[0]}-{size[0]}-{scheme}.png")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
