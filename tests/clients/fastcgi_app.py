#!/usr/bin/env python3
"""A FastCGI application on the listening socket at descriptor 0: answers with its process id, user and H2O_ROOT.

A request with the query `die` makes it exit without an answer.
"""
import os
import socket
import struct


def record(kind, content):
    return struct.pack("!BBHHBx", 1, kind, 1, len(content), 0) + content


def read_stream(reader, kind):
    content = b""
    while header := reader.read(8):
        _, found, _, length, padding = struct.unpack("!BBHHBx", header)
        piece = reader.read(length + padding)[:length]
        if found == kind:
            if not piece:
                break
            content += piece
    return content


listener = socket.socket(fileno=0)
while True:
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as reader:
        parameters = read_stream(reader, 4)
        if b"QUERY_STRINGdie" in parameters:
            os._exit(3)
        text = f"{os.getpid()} {os.getuid()} {os.environ['H2O_ROOT']}\n"
        response = f"Content-Type: text/plain\r\n\r\n{text}".encode()
        connection.sendall(record(6, response) + record(3, bytes(8)))
