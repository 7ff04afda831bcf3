#!/usr/bin/env python3
"""A worker for Server::Starter that is not h2o: answers each connection with the generation and an environment variable."""

import os
import signal
import socket
import sys

listeners = [element.rsplit("=", 1) for element in os.environ["SERVER_STARTER_PORT"].split(";")]
sockets = [(name, socket.socket(fileno=int(fd))) for name, fd in listeners]
for name in ("SIGTERM", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), lambda number, _, name=name: (
        print("worker got", name, flush=True), number in (signal.SIGTERM, signal.SIGQUIT) and os._exit(0)))
answer = f"generation {os.environ['SERVER_STARTER_GENERATION']} word {os.environ.get('WORD')} in {os.getcwd()}\n"
print("worker has", ";".join(f"{name}:{one.type.name}" for name, one in sockets), flush=True)
first = dict(sockets)[sys.argv[1]]
first.settimeout(None)
while True:
    connection, _ = first.accept()
    connection.sendall(answer.encode())
    connection.close()
