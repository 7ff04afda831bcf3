#!/usr/bin/env python3
"""A backend for HTTP/3 made with the library aioquic. Arguments: CERTIFICATE KEY [late]. Prints its UDP port; ends with its standard input.
With `late` a connection allows no request at first, and requests 0.3 seconds later.

The path of a request says how it is answered:

/echo         length and SHA-256 of the request's content
/connection   number of the connection: 1 for the first that this backend accepted
/trailers     content and trailers
/early-hints  103, then 200
/silent       no response
/slow         the response head after a second, then content
/reset        RESET_STREAM in place of a response
/refuse       H3_REQUEST_REJECTED
/cut          half of the content, then RESET_STREAM
/enough       a response before the content of the request has come, and STOP_SENDING
/goaway       a response, and GOAWAY behind it
/large        3 MB in pieces
"""

import asyncio
import hashlib
import os
import sys
from functools import partial

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import H3_ALPN, FrameType, H3Connection, encode_frame
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import StreamReset

NO_ERROR, INTERNAL_ERROR, REQUEST_REJECTED = 0x100, 0x102, 0x10B
PIECE = b"0123456789abcdef" * 1024
handshakes = 0


class Backend(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        global handshakes
        handshakes += 1
        self.number = handshakes
        self.h3 = H3Connection(self._quic)
        if "late" in sys.argv:
            limit = self._quic._local_max_streams_bidi
            limit.value = limit.sent = 0
            asyncio.get_running_loop().call_later(0.3, self.allow, limit)
        # State of each request, by the number of its stream: path, hash and length of the content so far.
        self.requests = {}

    def allow(self, limit):
        limit.value = 128
        self.transmit()

    def quic_event_received(self, event):
        if isinstance(event, StreamReset):
            self.requests.pop(event.stream_id, None)
        for event in self.h3.handle_event(event):
            if isinstance(event, HeadersReceived):
                path = dict(event.headers)[b":path"].decode()
                self.requests[event.stream_id] = [path, hashlib.sha256(), 0]
                if path in ("/enough", "/reset", "/refuse", "/cut"):
                    self.answer(event.stream_id)
            elif isinstance(event, DataReceived) and event.stream_id in self.requests:
                request = self.requests[event.stream_id]
                request[1].update(event.data)
                request[2] += len(event.data)
            else:
                continue
            if event.stream_ended and event.stream_id in self.requests:
                self.answer(event.stream_id)
        self.transmit()

    def head(self, stream, status=b"200", fields=(), end=False):
        self.h3.send_headers(stream, [(b":status", status), *fields], end)

    def text(self, stream, text):
        self.head(stream)
        self.h3.send_data(stream, text.encode(), True)

    def answer(self, stream):
        path, digest, length = self.requests.pop(stream)
        quic = self._quic
        if path == "/echo":
            self.text(stream, f"{length} {digest.hexdigest()}")
        elif path == "/connection":
            self.text(stream, str(self.number))
        elif path == "/trailers":
            self.head(stream, fields=[(b"trailer", b"x-checksum")])
            self.h3.send_data(stream, b"content", False)
            self.h3.send_headers(stream, [(b"x-checksum", b"12")], True)
        elif path == "/early-hints":
            self.head(stream, b"103", [(b"link", b"</style.css>; rel=preload")])
            self.text(stream, "after hints")
        elif path == "/silent":
            pass
        elif path == "/slow":
            asyncio.get_running_loop().call_later(1, self.answer_late, stream)
        elif path == "/reset":
            quic.reset_stream(stream, INTERNAL_ERROR)
        elif path == "/refuse":
            quic.reset_stream(stream, REQUEST_REJECTED)
        elif path == "/cut":
            self.head(stream, fields=[(b"content-length", b"1000")])
            self.h3.send_data(stream, b"x" * 500, False)
            asyncio.get_running_loop().call_later(0.3, self.cut, stream)
        elif path == "/enough":
            self.text(stream, "enough")
            quic.stop_stream(stream, NO_ERROR)
        elif path == "/goaway":
            self.text(stream, str(self.number))
            goaway = encode_frame(FrameType.GOAWAY, encode_uint_var(stream + 4))
            quic.send_stream_data(self.h3._local_control_stream_id, goaway)
        elif path == "/large":
            self.head(stream)
            for n in range(200):
                self.h3.send_data(stream, PIECE, n == 199)
        else:
            self.head(stream, b"404", end=True)

    def answer_late(self, stream):
        self.text(stream, "late")
        self.transmit()

    def cut(self, stream):
        self._quic.reset_stream(stream, INTERNAL_ERROR)
        self.transmit()


async def main(certificate, key, *_):
    configuration = QuicConfiguration(is_client=False, alpn_protocols=H3_ALPN)
    configuration.load_cert_chain(certificate, key)
    server = await serve("127.0.0.1", 0, configuration=configuration, create_protocol=Backend)
    print(server._transport.get_extra_info("sockname")[1], flush=True)
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, partial(os.read, 0, 1))


asyncio.run(main(*sys.argv[1:]))
