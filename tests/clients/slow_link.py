"""Asks for many images over a slow link and then, while they come, for a style sheet.

    slow_link.py clear|tls PORT IMAGES

The link is a relay in this process: 10 Mbit/s towards the client, with buffers so small that few bytes wait in it. Prints, as a
line of JSON, how many bytes of images still came between the request for the style sheet and the end of its response.
"""

import hashlib
import json
import socket
import ssl
import sys
import threading
import time

import h2.config
import h2.connection
import h2.events
import h2.settings

BYTES_PER_SECOND = 10_000_000 / 8
# Segment size of Ethernet. The server's kernel sizes the send buffer by it: the 64 KB of loopback would make it megabytes.
SEGMENT = 1460
# Bytes of images that the client waits for before it requests the style sheet.
FLOWING = 500_000
LARGE_WINDOW = 2**31 - 1


class Relay:
    """Relays one connection, and limits the rate towards the client."""

    def __init__(self, port):
        self.is_slow = True
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.server = socket.socket()
        self.server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        self.server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        self.server.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
        self.server.connect(("127.0.0.1", port))
        self.server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def client(self):
        client = socket.create_connection(self.listener.getsockname())
        client.settimeout(20)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        here, _ = self.listener.accept()
        here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for target in (lambda: self.down(here), lambda: self.up(here)):
            threading.Thread(target=target, daemon=True).start()
        return client

    def up(self, here):
        try:
            while data := here.recv(65536):
                self.server.sendall(data)
        except OSError:
            pass  # The client has closed the connection.

    def down(self, here):
        # The time at which the link has carried all bytes passed on so far.
        free = time.monotonic()
        try:
            while data := self.server.recv(SEGMENT):
                if self.is_slow:
                    now = time.monotonic()
                    free = max(free, now) + len(data) / BYTES_PER_SECOND
                    time.sleep(max(0, free - now))
                here.sendall(data)
            here.shutdown(socket.SHUT_WR)
        except OSError:
            pass


class Client:
    def __init__(self, stream, scheme):
        self.stream = stream
        self.scheme = scheme
        config = h2.config.H2Configuration(header_encoding="utf-8")
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()
        self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: LARGE_WINDOW})
        self.h2.increment_flow_control_window(LARGE_WINDOW - 65535)
        self.contents = {}
        self.types = {}
        self.ended = set()
        self.images = 0
        self.css = None

    def ask(self, path):
        stream = self.h2.get_next_available_stream_id()
        fields = [(":method", "GET"), (":scheme", self.scheme), (":authority", "localhost"), (":path", path)]
        self.h2.send_headers(stream, fields, end_stream=True)
        self.contents[stream] = bytearray()
        return stream

    def flush(self):
        data = self.h2.data_to_send()
        if data:
            self.stream.sendall(data)

    def receive_until(self, done):
        self.flush()
        while not done():
            data = self.stream.recv(4096)
            if not data:
                raise EOFError("the server closed the connection")
            for event in self.h2.receive_data(data):
                self.handle(event)
            self.flush()

    def handle(self, event):
        if isinstance(event, h2.events.ResponseReceived):
            self.types[event.stream_id] = dict(event.headers).get("content-type")
        elif isinstance(event, h2.events.DataReceived):
            self.contents[event.stream_id] += event.data
            if event.stream_id != self.css and self.css not in self.ended:
                self.images += len(event.data)
        elif isinstance(event, h2.events.StreamEnded):
            self.ended.add(event.stream_id)
        elif isinstance(event, (h2.events.StreamReset, h2.events.ConnectionTerminated)):
            raise RuntimeError(repr(event))


def main():
    way, port, images = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    relay = Relay(port)
    stream = relay.client()
    if way == "tls":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        stream = context.wrap_socket(stream)
    client = Client(stream, "https" if way == "tls" else "http")
    # The client waits for the server's limit on streams, which is in its SETTINGS, before it sends requests.
    client.receive_until(lambda: client.h2.remote_settings.max_concurrent_streams < 2**31)
    asked = {client.ask(f"/image-{n}.png"): n for n in range(images)}
    client.receive_until(lambda: client.images >= FLOWING)
    begun = sum(1 for stream in asked if client.contents[stream])
    client.images = 0
    client.css = client.ask("/style.css")
    client.receive_until(lambda: client.css in client.ended)
    relay.is_slow = False
    client.receive_until(lambda: len(client.ended) == images + 1)
    answer = {
        "begun": begun,
        "images_before_css": client.images,
        "css_type": client.types[client.css],
        "css": hashlib.sha256(client.contents[client.css]).hexdigest(),
        "images": hashlib.sha256(b"".join(bytes(client.contents[stream]) for stream in asked)).hexdigest(),
    }
    print(json.dumps(answer))


main()
