"""A backend over HTTP/1.1 that sends back each request's content and each message of a WebSocket."""

import base64
import hashlib
import socket
import struct
import threading


class Backend:
    """Serves HTTP/1.1 on a port of loopback until it is closed, with a thread per connection."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        # Number of requests that came with `early-data: 1` (RFC 8470 section 5.1).
        self.early_requests = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def close(self):
        self.listener.close()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=[connection], daemon=True).start()

    def serve(self, connection):
        with connection, connection.makefile("rb") as source:
            try:
                while self.exchange(connection, source):
                    pass
            except OSError:
                pass

    def exchange(self, connection, source):
        """Answers a request. Returns whether the connection may carry another one."""
        line = source.readline()
        if not line:
            return False
        path = line.split()[1].decode()
        head = fields_of(source)
        self.early_requests += head.get("early-data") == "1"
        if path.endswith("/websocket"):
            echo_messages(connection, source, head)
            return False
        if head.get("transfer-encoding") == "chunked":
            content = b""
            while size := int(source.readline().split(b";")[0], 16):
                content += source.read(size)
                source.readline()
            fields_of(source)
        else:
            content = source.read(int(head.get("content-length", 0)))
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content)
        return True


def fields_of(source):
    fields = {}
    while line := source.readline().strip():
        name, _, value = line.decode().partition(":")
        fields[name.lower()] = value.strip()
    return fields


def echo_messages(connection, source, head):
    accept = hashlib.sha1((head["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode())
    key = base64.b64encode(accept.digest()).decode()
    connection.sendall(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        f"sec-websocket-accept: {key}\r\n\r\n".encode()
    )
    while frame := source.read(2):
        kind, length = frame[0], frame[1] & 0x7F
        if length == 126:
            length = struct.unpack(">H", source.read(2))[0]
        mask = source.read(4)
        content = bytes(byte ^ mask[n % 4] for n, byte in enumerate(source.read(length)))
        size = bytes([length]) if length < 126 else b"\x7e" + struct.pack(">H", length)
        connection.sendall(bytes([kind]) + size + content)
        if kind & 0x0F == 8:
            return
