"""Opens many connections and keeps them open.

    python3 idle.py ADDRESS PORT COUNT request|silent PATH

With `request` each connection sends one request, reads the whole response and
then sends nothing more; with `silent` it sends nothing at all. Prints `ready` when
all connections are open. When standard input is closed, resets all connections,
so that none lingers, and ends.
"""

import errno
import re
import resource
import select
import socket
import struct
import sys
import time

# Connections that are opened before the responses on earlier ones are awaited: far fewer than any server's accept backlog holds.
BATCH = 200
# Connections from one source address. An address has some 28,000 ports; the next address is used long before they run out.
PER_SOURCE = 5000
TIME_LIMIT = 60.0

IP_BIND_ADDRESS_NO_PORT = 24  # Linux: choose the port at connect, per destination


def open_socket(index, address):
    """Returns a socket that is connecting to `address`."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.bind((f"127.0.0.{2 + index // PER_SOURCE}", 0))
    if sock.connect_ex(address) not in (0, errno.EINPROGRESS):
        sys.exit("connect failed")
    return sock


def answer_len(received):
    """The length of the whole response, or None while its head is incomplete."""
    head, end, _ = received.partition(b"\r\n\r\n")
    if not end:
        return None
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    if not head.startswith(b"HTTP/1.1 200 ") or not length:
        sys.exit(f"unexpected answer: {head[:80]!r}")
    return len(head) + 4 + int(length[1])


def open_batch(first, count, address, request):
    """Opens `count` connections; returns them when each has received its response."""
    poller = select.epoll()
    waiting = {}  # descriptor -> (socket, octets received; None until the request is sent)
    for index in range(first, first + count):
        sock = open_socket(index, address)
        waiting[sock.fileno()] = (sock, None)
        poller.register(sock.fileno(), select.EPOLLOUT)
    opened = []
    deadline = time.monotonic() + TIME_LIMIT
    while waiting:
        if time.monotonic() > deadline:
            sys.exit(f"{len(waiting)} connections still without an answer")
        for fd, _ in poller.poll(1.0):
            sock, received = waiting[fd]
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                sys.exit(f"connection failed: {errno.errorcode.get(error, error)}")
            if request and received is None:
                sock.send(request)  # fits into the socket's buffer, which is empty
                waiting[fd] = (sock, bytearray())
                poller.modify(fd, select.EPOLLIN)
                continue
            if request:
                octets = sock.recv(65536)
                if not octets:
                    sys.exit("a connection was closed by the server")
                received += octets
                total = answer_len(received)
                if total is None or len(received) < total:
                    continue
            poller.unregister(fd)
            del waiting[fd]
            opened.append(sock)
    poller.close()
    return opened


def main():
    address = (sys.argv[1], int(sys.argv[2]))
    count = int(sys.argv[3])
    request = b""
    if sys.argv[4] == "request":
        request = f"GET {sys.argv[5]} HTTP/1.1\r\nHost: {sys.argv[1]}\r\n\r\n".encode()

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < count + 50:
        sys.exit(f"{count} connections need more than the {hard} descriptors allowed (ulimit -Hn)")

    sockets = []
    while len(sockets) < count:
        sockets += open_batch(len(sockets), min(BATCH, count - len(sockets)), address, request)
    print("ready", flush=True)
    sys.stdin.read()


main()
