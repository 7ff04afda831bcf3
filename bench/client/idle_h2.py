"""Opens many HTTP/2 connections, sends one request on each, and keeps them open.

    python3 idle_h2.py ADDRESS PORT COUNT request PATH http|CIPHERSUITE

Each connection sends one request, reads the whole response, acknowledges the
server's SETTINGS, and then sends nothing more. Otherwise like idle.py. With the name
of a cipher suite instead of `http` it uses TLS, and that suite must be agreed on;
OpenSSL's configuration file ($OPENSSL_CONF) says which suites are offered.
"""

import resource
import socket
import ssl
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import http2

# Threads that open connections at the same time, so that client and server do not wait for each other.
THREADS = 8
# Connections from one source address. An address has some 28,000 ports; the next address is used long before they run out.
PER_SOURCE = 5000
TIME_LIMIT = 60.0

IP_BIND_ADDRESS_NO_PORT = 24  # Linux: choose the port at connect, per destination


def open_one(index, address, path, ciphersuite, context):
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.settimeout(TIME_LIMIT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.bind((f"127.0.0.{2 + index // PER_SOURCE}", 0))
    sock.connect(address)
    if context:
        sock = context.wrap_socket(sock)
        if sock.selected_alpn_protocol() != "h2":
            sys.exit("the server does not choose HTTP/2")
        if sock.cipher()[0] != ciphersuite:
            sys.exit(f"the connection uses {sock.cipher()[0]}")
    status, _, _ = http2.ask(sock, "https" if context else "http", address[0], path)
    if status != 200:
        sys.exit(f"unexpected status {status}")
    return sock


def main():
    address = (sys.argv[1], int(sys.argv[2]))
    count = int(sys.argv[3])
    if sys.argv[4] != "request":
        sys.exit(f"no such mode: {sys.argv[4]}")
    path, ciphersuite, context = sys.argv[5], sys.argv[6], None
    if ciphersuite != "http":
        context = ssl._create_unverified_context()  # the harness made the certificate itself
        context.set_alpn_protocols(["h2"])

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < count + 50:
        sys.exit(f"{count} connections need more than the {hard} descriptors allowed (ulimit -Hn)")

    try:
        with ThreadPoolExecutor(THREADS) as pool:
            sockets = list(pool.map(lambda index: open_one(index, address, path, ciphersuite, context), range(count)))
    except (OSError, http2.Refused) as error:
        sys.exit(f"a connection failed: {error}")
    print("ready", flush=True)
    sys.stdin.read()
    del sockets


main()
