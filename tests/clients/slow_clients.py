"""Many clients that ask for something large and hardly read it.

    slow_clients.py http1|http2 clear|tls PORT PATH CONNECTIONS STREAMS WINDOW

Over HTTP/2 each connection has STREAMS streams, with a window of WINDOW bytes for each stream and for the connection. The program
prints `ready` once 1 KB has come on every connection. For each line of standard input it then reads up to 4 KB from every
connection, and prints `read` and the number of bytes read in total. It ends when its standard input is closed.
"""

import socket
import ssl
import struct
import sys

PATIENCE = 20
# The receive buffer of the client's socket is small, so that what the client does not read waits in the server.
RECEIVE_BUFFER = 16 * 1024
# Segment size of Ethernet. The server's kernel sizes the send buffer by it: with the 64 KB of loopback, a thousand clients would use up the
# memory that the kernel grants to all connections.
SEGMENT = 1460


def frame(kind, flags, stream, payload):
    return struct.pack("!I", len(payload))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + payload


def literal(index, value):
    return bytes([index, len(value)]) + value


def requests(way, security, path, streams, window):
    if way == "http1":
        return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    # :method GET, :scheme http or https; :path and :authority as literals (RFC 7541, appendix A).
    scheme = b"\x87" if security == "tls" else b"\x86"
    section = b"\x82" + scheme + literal(4, path.encode()) + literal(1, b"localhost")
    data = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, struct.pack("!HI", 4, window))
    if window > 65535:
        data += frame(8, 0, 0, struct.pack("!I", window - 65535))
    for stream in range(streams):
        data += frame(1, 5, 2 * stream + 1, section)
    return data


def connect(port, context):
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
    connection.settimeout(PATIENCE)
    connection.connect(("127.0.0.1", port))
    if context is not None:
        connection = context.wrap_socket(connection, server_hostname="localhost")
    return connection


def read(connection, most):
    """Reads up to `most` bytes; fewer if none come within the socket's timeout."""
    count = 0
    while count < most:
        try:
            data = connection.recv(most - count)
        except (TimeoutError, ssl.SSLWantReadError):
            break
        if not data:
            sys.exit("the server closed a connection")
        count += len(data)
    return count


def main():
    way, security, port, path, connections, streams, window = sys.argv[1:]
    context = None
    if security == "tls":
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2" if way == "http2" else "http/1.1"])
    clients = [connect(int(port), context) for _ in range(int(connections))]
    for client in clients:
        client.sendall(requests(way, security, path, int(streams), int(window)))
    for client in clients:
        if read(client, 1024) < 1024:
            sys.exit("no answer")
    print("ready", flush=True)
    for client in clients:
        client.settimeout(0.001)
    for _ in sys.stdin:
        print("read", sum(read(client, 4096) for client in clients), flush=True)


main()
