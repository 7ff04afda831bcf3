"""An HTTP/2 client in cleartext that checks what the server sends frame by frame; prints `ok` if all is as expected.

    frames.py CONVERSATION PORT [ARGUMENT]

A conversation is one of the functions below whose names are in the table at the end.
"""

import os
import signal
import socket
import sys

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings

SettingCodes = h2.settings.SettingCodes
FILE = b"".join(b"%07x " % n for n in range(50_000))  # /large


class Client:
    def __init__(self, port):
        self.stream = socket.create_connection(("127.0.0.1", port))
        self.stream.settimeout(15)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.events = []
        self.acknowledge_at_once = True
        # A connection is ready when the server's SETTINGS have come and the server has acknowledged the client's.
        self.until(h2.events.RemoteSettingsChanged)
        self.until(h2.events.SettingsAcknowledged)

    def flush(self):
        data = self.h2.data_to_send()
        if data:
            self.stream.sendall(data)

    def receive(self):
        """Receives bytes once; false if the server has closed the connection."""
        self.flush()
        data = self.stream.recv(65536)
        for event in self.h2.receive_data(data) if data else []:
            if isinstance(event, h2.events.DataReceived) and self.acknowledge_at_once:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            self.events.append(event)
        self.flush()
        return bool(data)

    def of(self, kind, stream=None):
        return [e for e in self.events if isinstance(e, kind) and stream in (None, getattr(e, "stream_id", None))]

    def until(self, kind, stream=None, count=1):
        while len(self.of(kind, stream)) < count:
            assert self.receive(), f"the connection ended before {kind} came; so far {self.events}"
        return self.of(kind, stream)[count - 1]

    def until_end(self):
        while self.receive():
            pass

    def ask(self, path, method="GET", fields=(), end=True, **priority):
        stream = self.h2.get_next_available_stream_id()
        pseudo = [(":method", method), (":scheme", "http"), (":authority", "localhost"), (":path", path)]
        self.h2.send_headers(stream, pseudo + list(fields), end_stream=end, **priority)
        self.flush()
        return stream

    def data(self, stream):
        return b"".join(event.data for event in self.of(h2.events.DataReceived, stream))

    def status(self, stream):
        return dict(self.until(h2.events.ResponseReceived, stream).headers)[":status"]

    def expect(self, stream, status, content=None):
        self.until(h2.events.StreamEnded, stream)
        assert self.status(stream) == status, self.events
        assert content is None or self.data(stream) == content, f"{len(self.data(stream))} bytes"


def trailers(client):
    """A request's content is followed by trailers: the server reads it to its end and the connection remains usable."""
    for content in (b"", b"a", b"b" * 60_000):
        for fields in ([], [("content-length", str(len(content)))], [("trailer", "x-check")]):
            stream = client.ask("/hello.txt", "POST", fields, end=False)
            rest = content
            while rest:
                room = min(client.h2.local_flow_control_window(stream), 16384)
                if room == 0:
                    assert client.receive()
                    continue
                client.h2.send_data(stream, rest[:room])
                rest = rest[room:]
                client.flush()
            client.h2.send_headers(stream, [("x-check", "1"), ("x-more", "2")], end_stream=True)
            client.flush()
            client.expect(stream, "405")
    client.expect(client.ask("/hello.txt"), "200", b"hello, world")


def priority_frames(client):
    """PRIORITY frames for idle, open and closed streams do not change the content of responses."""
    client.h2.prioritize(3, weight=200, depends_on=0)
    client.h2.prioritize(5, weight=1, depends_on=3, exclusive=True)
    first = client.ask("/large", priority_weight=10, priority_depends_on=0)
    second = client.ask("/large", priority_weight=256, priority_depends_on=first, priority_exclusive=True)
    third = client.ask("/hello.txt", priority_weight=16, priority_depends_on=99)
    client.h2.prioritize(first, weight=256, depends_on=second)
    client.h2.prioritize(second, weight=3, depends_on=third)
    for stream, content in ((first, FILE), (second, FILE), (third, b"hello, world")):
        client.expect(stream, "200", content)
    client.h2.prioritize(first, weight=7, depends_on=third)
    client.expect(client.ask("/hello.txt", priority_depends_on=first), "200", b"hello, world")


def pings(client):
    """The server answers each PING with the same eight bytes, in the order sent, also while it sends content."""
    stream = client.ask("/large")
    sent = [b"ping%04d" % n for n in range(100)]
    for payload in sent:
        client.h2.ping(payload)
    client.until(h2.events.PingAckReceived, count=len(sent))
    assert [event.ping_data for event in client.of(h2.events.PingAckReceived)] == sent
    client.expect(stream, "200", FILE)


def client_goes_away(client):
    """After a GOAWAY of the client, the requests that are in flight are still answered completely."""
    stream = client.ask("/large")
    # The bytes of GOAWAY are written by hand, because the library h2 would refuse to receive anything after sending it.
    client.flush()
    client.stream.sendall(b"\0\0\x08\x07\0\0\0\0\0" + b"\0\0\0\0" + b"\0\0\0\0")
    client.expect(stream, "200", FILE)


def window_below_zero(client):
    """A smaller SETTINGS_INITIAL_WINDOW_SIZE makes the windows of open streams negative; they send again once they are above 0."""
    client.acknowledge_at_once = False
    client.h2.increment_flow_control_window(10_000_000)
    stream = client.ask("/large")
    while len(client.data(stream)) < 65535:
        assert client.receive()
    assert len(client.data(stream)) == 65535
    # 65,535 bytes of the stream's window are used up, so the window becomes 1,000 - 65,535.
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1000})
    client.until(h2.events.SettingsAcknowledged, count=2)

    def grow(amount):
        client.h2.increment_flow_control_window(amount, stream)

    def nothing_comes():
        answered = len(client.of(h2.events.PingAckReceived))
        before = len(client.data(stream))
        for n in range(3):
            client.h2.ping(b"anything")
            client.until(h2.events.PingAckReceived, count=answered + n + 1)
        assert len(client.data(stream)) == before, "the server sent content beyond the flow-control window"

    nothing_comes()
    grow(64_535)  # the window is now 0
    nothing_comes()
    grow(1)
    while len(client.data(stream)) < 65536:
        assert client.receive()
    nothing_comes()
    # A new stream begins with the new initial window of 1,000 bytes.
    other = client.ask("/large")
    while len(client.data(other)) < 1000:
        assert client.receive()
    nothing_comes()
    assert len(client.data(other)) == 1000
    # A larger SETTINGS_INITIAL_WINDOW_SIZE makes the windows of both streams positive.
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1_000_000})
    client.expect(stream, "200", FILE)
    client.expect(other, "200", FILE)


def frame_sizes(client):
    """DATA frames are never longer than the client's SETTINGS_MAX_FRAME_SIZE."""
    def longest(stream):
        return max(len(event.data) for event in client.of(h2.events.DataReceived, stream))

    stream = client.ask("/large")
    client.expect(stream, "200", FILE)
    assert longest(stream) <= 16384
    client.h2.update_settings({SettingCodes.MAX_FRAME_SIZE: 100_000})
    client.until(h2.events.SettingsAcknowledged, count=2)
    stream = client.ask("/large")
    client.expect(stream, "200", FILE)
    assert longest(stream) <= 100_000


def cancelled(client):
    """Streams that the client resets affect neither the other streams nor the connection."""
    for _ in range(20):
        gone = client.ask("/large")
        client.until(h2.events.ResponseReceived, gone)
        kept = client.ask("/large")
        client.h2.reset_stream(gone, h2.errors.ErrorCodes.CANCEL)
        # The bytes received for the reset stream still count towards the window of the connection.
        client.flush()
        client.expect(kept, "200", FILE)


def large_heads(client):
    """The server reads a header section that h2 splits into HEADERS and CONTINUATION frames."""
    fields = [(f"x-field-{n}", "v" * 3000) for n in range(20)]
    client.expect(client.ask("/hello.txt", fields=fields), "200", b"hello, world")


def idle(client):
    """The server closes an idle connection with GOAWAY and the text `idle timeout`."""
    client.expect(client.ask("/hello.txt"), "200", b"hello, world")
    client.until_end()
    event = client.until(h2.events.ConnectionTerminated)
    assert event.error_code == h2.errors.ErrorCodes.NO_ERROR, event
    assert event.additional_data == b"idle timeout", event


def graceful_shutdown(client, pid):
    """On SIGTERM the server sends GOAWAY for 2^31-1, later one for the last stream; requests before the second are answered."""
    client.acknowledge_at_once = False
    stream = client.ask("/large")
    while len(client.data(stream)) < 65535:
        assert client.receive()
    os.kill(int(pid), signal.SIGTERM)
    # The library h2 treats a GOAWAY as the end of the connection and refuses more frames, so from here on they are read by hand.
    frames = Frames(client)
    kind, _, _, payload = frames.until(0x7)
    assert payload[:8] == b"\x7f\xff\xff\xff\0\0\0\0", payload
    assert payload[8:] == b"graceful shutdown", payload
    # A request that crosses the first GOAWAY is answered. The window of the connection is open again, that of the first stream is not.
    client.h2.increment_flow_control_window(1000)
    late = client.ask("/hello.txt")
    assert frames.content(late) == b"hello, world"
    _, _, _, payload = frames.until(0x7)
    assert payload == late.to_bytes(4, "big") + b"\0\0\0\0", payload
    # The response that was being sent when SIGTERM came is completed.
    grow = (1_000_000).to_bytes(4, "big")
    client.stream.sendall(b"\0\0\x04\x08\0\0\0\0\0" + grow + b"\0\0\x04\x08\0" + stream.to_bytes(4, "big") + grow)
    rest = frames.content(stream)
    assert client.data(stream) + rest == FILE, len(rest)
    assert frames.next() is None, "the server closes the connection"


class Frames:
    """Reads frames from the socket without the library h2."""

    def __init__(self, client):
        self.stream = client.stream
        # The library h2 has handled all complete frames; it may hold the beginning of the next one.
        self.bytes = bytes(client.h2.incoming_buffer.data)
        self.contents = {}
        self.ended = set()

    def take(self, count):
        while len(self.bytes) < count:
            more = self.stream.recv(65536)
            if not more:
                assert not self.bytes, "the connection ended within a frame"
                return None
            self.bytes += more
        taken, self.bytes = self.bytes[:count], self.bytes[count:]
        return taken

    def next(self):
        head = self.take(9)
        if head is None:
            return None
        payload = self.take(int.from_bytes(head[:3], "big"))
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
        assert kind != 0x3, f"RST_STREAM {payload}"
        if kind == 0x0:
            self.contents[stream] = self.contents.get(stream, b"") + payload
        if kind in (0x0, 0x1) and flags & 0x1:
            self.ended.add(stream)
        return kind, flags, stream, payload

    def until(self, kind):
        while frame := self.next():
            if frame[0] == kind:
                return frame
        raise EOFError(f"the connection ended without a frame of type {kind}")

    def content(self, stream):
        while stream not in self.ended:
            assert self.next(), f"stream {stream} has not ended"
        return self.contents.get(stream, b"")


CONVERSATIONS = {
    function.__name__: function
    for function in (
        trailers,
        priority_frames,
        pings,
        client_goes_away,
        window_below_zero,
        frame_sizes,
        cancelled,
        large_heads,
        idle,
        graceful_shutdown,
    )
}

CONVERSATIONS[sys.argv[1]](Client(int(sys.argv[2])), *sys.argv[3:])
print("ok")
