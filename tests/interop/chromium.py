#!/usr/bin/env python3
"""Conversations over HTTP/3 by Chromium. Arguments: CONVERSATION PORT [ARGUMENT].

The browser is driven through its DevTools protocol over two pipes. Everything that it loads must come by HTTP/3. The
environment variable INTEROP_CERTIFICATE has the name of the file of the server's certificate, and INTEROP_SCREENSHOT, if it is
set, the name of the file that a screenshot is written to.
"""

import base64
import hashlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PORT = sys.argv[2]
ORIGIN = f"https://127.0.0.1:{PORT}"
PATIENCE = 240

# JavaScript helpers for all scripts: `bytes` fetches a path; `hello` and `wholeLarge` fetch a file and check its content.
TOOLS = """
const options = { cache: 'no-store' };
const expect = (isTrue, message) => { if (!isTrue) throw new Error(message); };
const bytes = async (path, more) => new Uint8Array(await (await fetch(path, { ...options, ...more })).arrayBuffer());
const text = async (path, more) => (await fetch(path, { ...options, ...more })).text();
const large = Array.from({ length: 50000 }, (_, n) => n.toString(16).padStart(7, '0') + ' ').join('');
const hello = async () => expect(await text('/hello.txt') === 'hello, world', 'hello.txt');
const wholeLarge = async () => expect(await text('/large') === large, 'large');
const atOnce = (count, run) => Promise.all(Array.from({ length: count }, (_, n) => run(n)));
const pause = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));
"""


class Browser:
    """A browser with one page open."""

    def __init__(self, folder, *options):
        self.log = Path(folder) / "net-log.json"
        to_browser, self.commands = os.pipe()
        self.answers, from_browser = os.pipe()
        command = [
            "chromium",
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
            "--enable-quic",
            "--no-proxy-server",
            f"--origin-to-force-quic-on=127.0.0.1:{PORT}",
            f"--ignore-certificate-errors-spki-list={key_hash()}",
            f"--user-data-dir={folder}",
            f"--log-net-log={self.log}",
            *options,
            "about:blank",
        ]

        def pipes():
            # Chromium reads DevTools commands from descriptor 3 and writes answers to descriptor 4.
            reader, writer = os.dup(to_browser), os.dup(from_browser)
            os.dup2(reader, 3)
            os.dup2(writer, 4)

        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=pipes,
            close_fds=False,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.buffer = b""
        self.sent = 0
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def call(self, method, **parameters):
        """Sends a DevTools command and returns the answer; events that come before it are dropped."""
        self.sent += 1
        message = {"id": self.sent, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.sent:
                assert "error" not in answer, answer
                return answer["result"]

    def receive(self):
        until = time.monotonic() + PATIENCE
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0, until - time.monotonic()))
            assert ready, "the browser sends no answer"
            piece = os.read(self.answers, 1 << 20)
            assert piece, "the browser has closed its pipe"
            self.buffer += piece
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path):
        """Opens a page and waits until it is loaded."""
        found = self.call("Page.navigate", url=ORIGIN + path)
        assert "errorText" not in found, found
        while self.evaluate("return document.readyState") != "complete":
            time.sleep(0.05)

    def evaluate(self, script):
        """Runs a script, the body of an async function, in the page and returns its value."""
        found = self.call(
            "Runtime.evaluate",
            expression=f"(async () => {{ {TOOLS} {script} }})()",
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def loaded(self):
        """The page's resources and fetches: names, protocols and times."""
        return self.evaluate(
            """return performance.getEntries().filter(entry => 'nextHopProtocol' in entry).map(
                ({ name, nextHopProtocol, responseEnd, requestStart }) =>
                    ({ name, nextHopProtocol, responseEnd, requestStart }))"""
        )

    def events(self, name):
        """Events of one type in the browser's network log, in their order. The browser must have ended."""
        log = json.loads(self.log.read_text())
        number = log["constants"]["logEventTypes"][name]
        return [event for event in log["events"] if event["type"] == number]

    def check_protocols(self):
        for entry in self.loaded():
            # For a request that the browser gave up, the protocol is empty: scripts do not learn it.
            assert entry["nextHopProtocol"] in ("h3", ""), entry
        assert any(entry["nextHopProtocol"] == "h3" for entry in self.loaded())

    def end(self):
        if self.process.poll() is None:
            self.session = None
            try:
                self.call("Browser.close")
                self.process.wait(20)
            except (AssertionError, OSError, subprocess.TimeoutExpired):
                pass
        # Ends the processes that the browser has started, too.
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def key_hash():
    key = subprocess.run(
        ["openssl", "x509", "-pubkey", "-noout", "-in", os.environ["INTEROP_CERTIFICATE"]], check=True, capture_output=True
    ).stdout
    der = subprocess.run(["openssl", "pkey", "-pubin", "-outform", "der"], input=key, check=True, capture_output=True).stdout
    return base64.b64encode(hashlib.sha256(der).digest()).decode()


# Conversations that are a script in an empty page.
SCRIPTS = {
    "handshake": "",
    "download": "await atOnce(3, wholeLarge); await hello();",
    "long_hello": "await hello();",
    # The server ends connections that are idle for a second. The page cannot see that.
    "late_resumption": "await hello(); await pause(2500); await text('/backend/echo', { method: 'POST', body: 'x' });",
    "early_data": "await hello(); await pause(2500); await text('/backend/echo'); await wholeLarge();",
    "idle": "await hello(); await pause(2500); await hello(); await wholeLarge();",
    "key_update": "for (let n = 0; n < 10; n++) await wholeLarge();",
    "requests": "for (let n = 0; n < 12; n++) await atOnce(100, hello);",
    "huge": """
        const sum = await crypto.subtle.digest('SHA-256', await bytes('/huge'));
        const name = Array.from(new Uint8Array(sum), byte => byte.toString(16).padStart(2, '0')).join('');
        expect(name === ARGUMENT, name);
    """,
    "upload": """
        const body = Uint8Array.from({ length: 3000000 }, (_, n) => Math.imul(n, 2654435761) >>> 24);
        const echo = await bytes('/backend/echo', { method: 'POST', body });
        expect(echo.length === body.length && echo.every((byte, n) => byte === body[n]), 'other content');
    """,
    "semantics": """
        const head = await fetch('/large', { ...options, method: 'HEAD' });
        expect(head.headers.get('content-length') === String(large.length), 'content-length of HEAD');
        expect(await head.text() === '', 'content of HEAD');
        const with_field = (name, value) => fetch('/large', { ...options, headers: { [name]: value } });
        expect((await with_field('if-none-match', head.headers.get('etag'))).status === 304, '304');
        const part = await with_field('range', 'bytes=100-299');
        expect(part.status === 206 && await part.text() === large.slice(100, 300), 'range');
        expect((await with_field('range', 'bytes=9999999-')).status === 416, '416');
    """,
    "cancelled": """
        for (let n = 0; n < 50; n++) {
            const controller = new AbortController();
            const response = await fetch('/huge', { ...options, signal: controller.signal });
            expect(response.status === 200, response.status);
            controller.abort();
        }
        await hello();
    """,
    "websocket": """
        const socket = new WebSocket(`wss://${location.host}/backend/websocket`);
        await new Promise((resolve, reject) => { socket.onopen = resolve; socket.onerror = reject; });
        const answer = new Promise(resolve => { socket.onmessage = resolve; });
        socket.send('hello');
        expect((await answer).data === 'hello', 'the message');
        const closed = new Promise(resolve => { socket.onclose = resolve; });
        socket.close(1000);
        expect((await closed).wasClean, 'no clean end');
    """,
}
SCRIPTS["migration"] = SCRIPTS["download"]

# Command-line options of the browser that a conversation needs.
OPTIONS = {
    "websocket": ["--enable-features=EnableWebsocketsOverHttp3"],
}


def get(browser):
    """Loads the example site with its style sheets, scripts and images; then fetches files."""
    browser.open("/")
    kinds = {Path(entry["name"]).suffix for entry in browser.loaded()}
    assert {".css", ".js", ".svg"} <= kinds, kinds
    if name := os.environ.get("INTEROP_SCREENSHOT"):
        Path(name).write_bytes(base64.b64decode(browser.call("Page.captureScreenshot")["data"]))
    browser.check_protocols()
    browser.evaluate("await hello(); await wholeLarge();")


def priorities(browser):
    """A style sheet arrives before images: on a page of the example, and on a page that names it behind six large images."""
    for page in ("/gallery.html", "/priorities.html"):
        browser.open(page)
        browser.check_protocols()
    browser.end()
    # What the browser's network code received, from its log: a script of the page learns it late on a busy machine.
    paths, received = {}, {}
    for event in browser.events("HTTP3_HEADERS_SENT"):
        named = [line for line in event["params"]["headers"] if line.startswith(":path: ")]
        paths[event["params"]["stream_id"]] = named[0].removeprefix(":path: ")
    for place, event in enumerate(browser.events("QUIC_SESSION_STREAM_FRAME_RECEIVED")):
        path = paths.get(event["params"]["stream_id"], "")
        received.setdefault(path, []).append((place, event["params"]["length"]))
    for style, images in (("/css/site.css", r"/img/.*"), ("/part/style.css", r"/part/\d\.bmp")):
        ends = [pieces[-1][0] for path, pieces in received.items() if re.fullmatch(images, path)]
        assert len(ends) >= 6, received.keys()
        # The link drops packets, so up to a tenth of a style sheet may be sent again later.
        before = sum(length for place, length in received[style] if place < min(ends))
        assert before >= 0.9 * sum(length for _, length in received[style]), (style, before)


def versions(folder):
    """The browser begins with version 2 alone, learns that the server has version 1, and gives QUIC up, as it does by design."""
    browser = Browser(folder, "--quic-version=RFCv2")
    try:
        found = browser.call("Page.navigate", url=ORIGIN + "/page.html")
    finally:
        browser.end()
    assert found.get("errorText") == "net::ERR_QUIC_PROTOCOL_ERROR", found
    received = browser.events("QUIC_SESSION_VERSION_NEGOTIATION_PACKET_RECEIVED")
    assert "RFCv1" in str(received[0]), received


def shutdown(browser):
    """Requests in flight when the server gets SIGTERM are answered completely."""
    browser.open("/page.html")
    browser.evaluate(
        "globalThis.heads = await atOnce(10, () => fetch('/large', options)); globalThis.wholes = heads.map(head => head.text());"
    )
    os.kill(int(sys.argv[3]), signal.SIGTERM)
    browser.evaluate("for (const whole of wholes) expect(await whole === large, 'not all of large');")


def play(browser, conversation):
    if conversation in SCRIPTS:
        browser.open("/page.html")
        argument = json.dumps(sys.argv[3] if len(sys.argv) > 3 else None)
        browser.evaluate(SCRIPTS[conversation].replace("ARGUMENT", argument))
        browser.check_protocols()
    else:
        {"get": get, "priorities": priorities, "shutdown": shutdown}[conversation](browser)


def main():
    conversation = sys.argv[1]
    with tempfile.TemporaryDirectory(prefix="h2o-interop-", ignore_cleanup_errors=True) as folder:
        if conversation == "versions":
            versions(folder)
            conversation = "handshake"
        browser = Browser(folder, *OPTIONS.get(conversation, []))
        try:
            play(browser, conversation)
        finally:
            browser.end()
            if name := os.environ.get("INTEROP_NET_LOG"):
                Path(name).write_bytes(browser.log.read_bytes())
        if conversation == "key_update":
            assert browser.events("QUIC_SESSION_KEY_UPDATE"), "the keys were not changed"
    print("ok")


main()
