#!/usr/bin/env python3
"""Conversations over HTTP/3 by a client made with the library aioquic. Arguments: CONVERSATION PORT [ARGUMENT]."""

import asyncio
import hashlib
import os
import signal
import socket
import ssl
import sys
import zlib
from contextlib import asynccontextmanager

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.buffer import encode_uint_var
from aioquic.h3.events import DataReceived, DatagramReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, StopSendingReceived, StreamDataReceived, StreamReset
from aioquic.quic.packet import QuicProtocolVersion

PORT = int(sys.argv[2])
LARGE = b"".join(b"%07x " % n for n in range(50_000))
PATIENCE = 30


class Answer:
    """The response to a request: header sections, content, and how its stream ended."""

    def __init__(self):
        self.heads = []
        self.content = bytearray()
        self.has_ended = False
        self.reset = None

    @property
    def status(self):
        """Status of the final response; `None` if it has not come."""
        found = [dict(head)[b":status"].decode() for head in self.heads if head[0][0] == b":status"]
        return found[-1] if found else None

    @property
    def trailers(self):
        return dict(self.heads[-1]) if len(self.heads) > 1 else {}

    def field(self, name):
        return dict(self.heads[0]).get(name)


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # aioquic announces support of HTTP datagrams in its SETTINGS only if WebTransport is enabled.
        has_datagrams = self._quic.configuration.max_datagram_frame_size is not None
        self.h3 = H3Connection(self._quic, enable_webtransport=has_datagrams)
        self.answers = {}
        self.closed = None
        self.handshake = None
        self.goaways = []
        self.datagrams = []
        # The stream of each piece of a response, in the order in which the pieces came.
        self.pieces = []
        # The code of each STOP_SENDING, by stream.
        self.stopped = {}
        self.news = asyncio.Event()

    def quic_event_received(self, event):
        if isinstance(event, ConnectionTerminated):
            self.closed = event
        elif isinstance(event, HandshakeCompleted):
            self.handshake = event
        elif isinstance(event, StreamReset) and event.stream_id in self.answers:
            self.answers[event.stream_id].reset = event.error_code
        elif isinstance(event, StreamDataReceived) and event.stream_id in self.answers:
            self.pieces.append(event.stream_id)
        elif isinstance(event, StopSendingReceived):
            self.stopped[event.stream_id] = event.error_code
        for found in self.h3.handle_event(event):
            if isinstance(found, DatagramReceived):
                self.datagrams.append((found.stream_id, found.data))
                continue
            answer = self.answers.get(getattr(found, "stream_id", None))
            if answer is None:
                continue
            if isinstance(found, HeadersReceived):
                answer.heads.append(found.headers)
                answer.has_ended |= found.stream_ended
            elif isinstance(found, DataReceived):
                answer.content += found.data
                answer.has_ended |= found.stream_ended
        self.news.set()

    async def until(self, is_there, patience=PATIENCE):
        async def wait():
            while not is_there():
                assert self.closed is None, self.closed
                self.news.clear()
                await self.news.wait()

        await asyncio.wait_for(wait(), patience)

    def ask(self, path, method="GET", fields=(), content=None, ends=True, waits=False):
        """Sends a request, with content unless that is `None`; if it `waits`, together with the next. Returns the number of its stream."""
        stream = self._quic.get_next_available_stream_id()
        self.answers[stream] = Answer()
        head = [(":method", method), (":scheme", "https"), (":authority", f"localhost:{PORT}"), (":path", path), *fields]
        self.h3.send_headers(stream, [(name.encode(), value.encode()) for name, value in head], ends and content is None)
        if content is not None:
            self.h3.send_data(stream, content, ends)
        if not waits:
            self.transmit()
        return stream

    def ask_tunnel(self, path, protocol):
        """Sends an extended CONNECT for a tunnel. Returns the number of its stream."""
        stream = self._quic.get_next_available_stream_id()
        self.answers[stream] = Answer()
        head = [(":method", "CONNECT"), (":protocol", protocol), (":scheme", "https"), (":authority", "a"), (":path", path)]
        self.h3.send_headers(stream, [(name.encode(), value.encode()) for name, value in head])
        self.transmit()
        return stream

    def carry(self, stream, data=b"", ends=False):
        """Sends bytes through a tunnel."""
        self.h3.send_data(stream, data, ends)
        self.transmit()

    async def answer(self, stream):
        answer = self.answers[stream]
        await self.until(lambda: answer.has_ended or answer.reset is not None)
        return answer

    async def expect(self, stream, status, content=None):
        answer = await self.answer(stream)
        assert answer.reset is None, hex(answer.reset)
        assert answer.status == str(status), answer.heads
        if content is not None:
            assert bytes(answer.content) == content, f"{len(answer.content)} bytes of {len(content)}"
        return answer


def configuration(**options):
    made = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, **options)
    made.verify_mode = ssl.CERT_NONE
    made.server_name = "localhost"
    return made


@asynccontextmanager
async def connected(settings=None, **options):
    async with connect(
        "127.0.0.1", PORT, configuration=settings or configuration(), create_protocol=Client, **options
    ) as client:
        yield client


async def files():
    """Files of all sizes arrive complete, one after the other and all at once."""
    async with connected() as client:
        answer = await client.expect(client.ask("/hello.txt"), 200, b"hello, world")
        assert answer.field(b"content-length") == b"12"
        await client.expect(client.ask("/large"), 200, LARGE)
        await client.expect(client.ask("/nothing"), 404)
        await client.expect(client.ask("/hello.txt", fields=[("range", "bytes=7-")]), 206, b"world")
        await client.expect(client.ask("/hello.txt", "POST", content=b"x" * 100_000), 405)
        streams = [client.ask("/large" if n % 10 == 0 else "/hello.txt") for n in range(90)]
        for n, stream in enumerate(streams):
            await client.expect(stream, 200, LARGE if n % 10 == 0 else b"hello, world")


async def compressed():
    """A compressed file arrives complete; its response has no content-length."""
    async with connected() as client:
        answer = await client.expect(client.ask("/large.txt", fields=[("accept-encoding", "gzip")]), 200)
        assert answer.field(b"content-encoding") == b"gzip", answer.heads
        assert answer.field(b"content-length") is None, answer.heads
        assert zlib.decompress(bytes(answer.content), 31) == LARGE


async def compressed_lines():
    """Prints the lines of a streamed response, compressed by gzip, each when it has arrived. The path is the second argument."""
    async with connected() as client:
        stream = client.ask(sys.argv[3], fields=[("accept-encoding", "gzip")])
        answer, decoder, taken = client.answers[stream], zlib.decompressobj(31), 0
        while not answer.has_ended or taken < len(answer.content):
            await client.until(lambda: answer.has_ended or taken < len(answer.content))
            piece = bytes(answer.content[taken:])
            taken += len(piece)
            sys.stdout.write(decoder.decompress(piece).decode())
            sys.stdout.flush()
        assert answer.field(b"content-encoding") == b"gzip", answer.heads
        assert decoder.eof


async def many():
    """A client asks for more files than it may have streams open at a time; all are answered on one connection."""
    async with connected() as client:
        for _ in range(5):
            for stream in [client.ask("/hello.txt") for _ in range(80)]:
                await client.expect(stream, 200, b"hello, world")


async def uploads():
    """The content of requests reaches the backend complete and in order."""
    async with connected() as client:
        for size in (0, 1, 1000, 65_536, 1_000_000):
            content = os.urandom(size)
            await client.expect(client.ask("/echo", "POST", content=content), 200, content)
        contents = [os.urandom(50_000) for _ in range(8)]
        for stream, content in [(client.ask("/echo", "POST", content=content), content) for content in contents]:
            await client.expect(stream, 200, content)


async def waiting_uploads():
    """A request's content arrives complete even if its header section refers to QPACK entries that the server receives only later."""
    async with connected() as client:
        await client.until(lambda: client.h3.received_settings is not None)
        send, held = client._quic.send_stream_data, []

        def hold(stream, data, end_stream=False):
            if stream == client.h3._local_encoder_stream_id:
                held.append(data)
            else:
                send(stream, data, end_stream)

        client._quic.send_stream_data = hold
        contents = [os.urandom(8000) for _ in range(10)]
        fields = [("x-same", "of all requests")]
        streams = [client.ask("/echo", "POST", fields, content) for content in contents]
        # When the server answers the PING, it has received everything that was sent before.
        await client.ping()
        assert b"".join(held), "the client has inserted nothing into the QPACK table"
        send(client.h3._local_encoder_stream_id, b"".join(held))
        client._quic.send_stream_data = send
        client.transmit()
        for stream, content in zip(streams, contents):
            await client.expect(stream, 200, content)


async def alternatives():
    """Responses have one alt-svc field for HTTP/3; where the path sets or removes alt-svc itself, the server adds none."""
    async with connected() as client:
        for path, want in (("/hello.txt", f'h3=":{PORT}"'), ("/other/hello.txt", "clear"), ("/without/hello.txt", None)):
            answer = await client.answer(client.ask(path))
            found = [value.decode() for name, value in answer.heads[0] if name == b"alt-svc"]
            assert found == ([want] if want else []), (path, found)


async def tunnels():
    """CONNECT and extended CONNECT carry bytes in both directions until a side ends."""
    async with connected() as client:
        host, upgrade = sys.argv[3].split(",")
        plain = client._quic.get_next_available_stream_id()
        client.answers[plain] = Answer()
        client.h3.send_headers(plain, [(b":method", b"CONNECT"), (b":authority", host.encode())])
        client.transmit()
        await client.until(lambda: client.answers[plain].heads)
        assert client.answers[plain].status == "200", client.answers[plain].heads
        for n in range(1, 6):
            client.h3.send_data(plain, b"x" * 1000, False)
            client.transmit()
            await client.until(lambda: len(client.answers[plain].content) == 1000 * n)
        client.h3.send_data(plain, b"", True)
        client.transmit()
        answer = await client.expect(plain, 200, b"x" * 5000)
        assert answer.has_ended
        socket = client._quic.get_next_available_stream_id()
        client.answers[socket] = Answer()
        head = [
            (b":method", b"CONNECT"),
            (b":protocol", b"websocket"),
            (b":scheme", b"https"),
            (b":authority", f"localhost:{PORT}".encode()),
            (b":path", upgrade.encode()),
            (b"sec-websocket-version", b"13"),
        ]
        client.h3.send_headers(socket, head)
        client.transmit()
        await client.until(lambda: client.answers[socket].heads)
        assert client.answers[socket].status == "200", client.answers[socket].heads
        client.h3.send_data(socket, b"hello", False)
        client.transmit()
        await client.until(lambda: client.answers[socket].content)
        client.h3.send_data(socket, b"", True)
        client.transmit()
        await client.expect(socket, 200, b"hello")


async def resumption():
    """A second connection resumes the session of the first, and its request in early data is answered."""
    tickets = []
    async with connected(session_ticket_handler=tickets.append) as client:
        await client.expect(client.ask("/hello.txt"), 200, b"hello, world")
        assert not client.handshake.session_resumed
        await client.until(lambda: tickets)
    async with connected(configuration(session_ticket=tickets[-1]), wait_connected=False) as client:
        stream = client.ask("/hello.txt")
        await client.expect(stream, 200, b"hello, world")
        assert client.handshake.session_resumed
        assert client.handshake.early_data_accepted
        await client.expect(client.ask("/large"), 200, LARGE)


async def key_update():
    """The connection survives key updates (RFC 9001 section 6) that the client begins."""
    async with connected() as client:
        for _ in range(3):
            await client.expect(client.ask("/hello.txt"), 200, b"hello, world")
            client.request_key_update()
            await client.expect(client.ask("/large"), 200, LARGE)


async def migration():
    """A client whose UDP port changes keeps its connection."""
    async with connected() as client:
        stream = client.ask("/large")
        await client.until(lambda: client.answers[stream].content)
        loop = asyncio.get_running_loop()
        old = client._transport
        await loop.create_datagram_endpoint(lambda: client, local_addr=("::", 0))
        old.abort()
        client.change_connection_id()
        await client.expect(stream, 200, LARGE)
        await client.expect(client.ask("/hello.txt"), 200, b"hello, world")


async def cancelled():
    """Responses that the client cancels by STOP_SENDING do not hold up other responses."""
    async with connected() as client:
        for _ in range(50):
            stream = client.ask("/large")
            await client.until(lambda: client.answers[stream].heads)
            client._quic.stop_stream(stream, 0x10C)
            client.transmit()
        await client.expect(client.ask("/hello.txt"), 200, b"hello, world")


async def shutdown():
    """On SIGTERM the server completes the responses in flight, then closes the connection."""
    async with connected() as client:
        await client.expect(client.ask("/hello.txt"), 200, b"hello, world")
        streams = [client.ask("/large") for _ in range(10)]
        os.kill(int(sys.argv[3]), signal.SIGTERM)
        for stream in streams:
            await client.expect(stream, 200, LARGE)
        async with asyncio.timeout(PATIENCE):
            while client.closed is None:
                client.news.clear()
                await client.news.wait()
        assert client.closed.error_code in (0, 0x100), client.closed


async def while_listening_again():
    """While a connection of a removed listener is open, new clients can connect once the listener is there again."""
    held, again = sys.argv[3].split(",")
    async with connected() as client:
        await client.expect(client.ask("/hello.txt"), 200, b"hello, world")
        open(held, "w").close()
        async with asyncio.timeout(PATIENCE):
            while not os.path.exists(again):
                await asyncio.sleep(0.02)
        for _ in range(10):
            async with connected() as other:
                await other.expect(other.ask("/hello.txt"), 200, b"hello, world")


class Far(asyncio.DatagramProtocol):
    """The target of UDP tunnels: answers each payload in capitals, and after `long...` first with 1,490 bytes that no datagram can carry.
    """

    def connection_made(self, transport):
        self.transport = transport
        self.heard = []

    def datagram_received(self, data, address):
        self.heard.append(data)
        if data.startswith(b"long"):
            self.transport.sendto(b"x" * 1490, address)
        self.transport.sendto(data.upper(), address)


async def far_end():
    loop = asyncio.get_running_loop()
    _, far = await loop.create_datagram_endpoint(Far, local_addr=("127.0.0.1", int(sys.argv[3])))
    return far


def capsule(payload, context=b"\0"):
    return b"\0" + encode_uint_var(len(context + payload)) + context + payload


async def udp():
    """UDP payloads travel in QUIC datagrams if both sides support them, otherwise in capsules on the stream."""
    far = await far_end()
    path = f"/udp/127.0.0.1/{sys.argv[3]}/"
    async with connected(configuration(max_datagram_frame_size=65536)) as client:
        streams = [client.ask_tunnel(path, "connect-udp") for _ in range(3)]
        for stream in streams:
            answer = client.answers[stream]
            await client.until(lambda: answer.heads)
            assert answer.status == "200", answer.heads
            assert answer.field(b"capsule-protocol") == b"?1", answer.heads
        for size in (1, 100, 1000):
            for stream in streams:
                sent = b"a" * size
                client.h3.send_datagram(stream, b"\0" + sent)
                client.transmit()
                await client.until(lambda: client.datagrams)
                assert client.datagrams.pop() == (stream, b"\0" + sent.upper())
        # A payload of an unknown context id does not reach the target; one in a DATAGRAM capsule does, and its answer comes as a datagram.
        stream = streams[0]
        far.heard.clear()
        client.h3.send_datagram(stream, b"\2other")
        client.h3.send_datagram(stream, b"\0")
        client.carry(stream, capsule(b"unknown", b"\x40\x07") + capsule(b"by capsule"))
        await client.until(lambda: client.datagrams)
        assert client.datagrams.pop() == (stream, b"\0BY CAPSULE")
        assert sorted(far.heard) == [b"", b"by capsule"], far.heard
        # The server drops a payload that is too long for a packet of the path.
        client.h3.send_datagram(stream, b"\0long")
        client.transmit()
        await client.until(lambda: client.datagrams)
        assert client.datagrams == [(stream, b"\0LONG")], client.datagrams
        assert not client.answers[stream].content
        # Datagrams for a tunnel that has ended, and for a stream that does not exist, are ignored.
        client.datagrams.clear()
        client.carry(streams[1], ends=True)
        await client.answer(streams[1])
        for lost in (streams[1], 400):
            client.h3.send_datagram(lost, b"\0nobody")
        client.h3.send_datagram(stream, b"\0last")
        client.transmit()
        await client.until(lambda: client.datagrams)
        assert client.datagrams == [(stream, b"\0LAST")], client.datagrams
        client.carry(stream, ends=True)
        await client.answer(stream)
    async with connected() as client:
        stream = client.ask_tunnel(path, "connect-udp")
        answer = client.answers[stream]
        await client.until(lambda: answer.heads)
        assert answer.status == "200", answer.heads
        client.carry(stream, capsule(b"plain"))
        want = capsule(b"PLAIN")
        await client.until(lambda: len(answer.content) >= len(want))
        assert bytes(answer.content) == want, answer.content


async def udp_draft():
    """With the method CONNECT-UDP of an old draft, the client's field `datagram-flow-id` names the flow of the tunnel's datagrams."""
    await far_end()
    async with connected(configuration(max_datagram_frame_size=65536)) as client:
        stream = client._quic.get_next_available_stream_id()
        answer = client.answers[stream] = Answer()
        authority = f"127.0.0.1:{sys.argv[3]}"
        head = {":method": "CONNECT-UDP", ":scheme": "masque", ":authority": authority, ":path": "/"}
        head["datagram-flow-id"] = "10; ecn=1"
        client.h3.send_headers(stream, [(name.encode(), value.encode()) for name, value in head.items()])
        client.transmit()
        await client.until(lambda: answer.heads)
        assert answer.status == "200", answer.heads
        assert answer.field(b"datagram-flow-id") == b"10; ecn=1", answer.heads
        assert answer.field(b"capsule-protocol") is None, answer.heads
        client._quic.send_datagram_frame(encode_uint_var(10) + b"ping")
        client.transmit()
        await client.until(lambda: client.datagrams)
        assert client.datagrams == [(40, b"PING")], client.datagrams
        client.carry(stream, b"\0\x05again")
        await client.until(lambda: len(client.datagrams) > 1)
        assert client.datagrams[1] == (40, b"AGAIN"), client.datagrams


async def nodes():
    """A relay sends packets of one connection now to one server of a fleet, now to the other: the connection goes on."""
    words = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def tell(word):
        words.sendto(word, ("127.0.0.1", PORT))

    for name in (b"one", b"two"):
        # During the handshake the relay changes the server after each datagram.
        tell(b"turn after each")
        async with connected() as client:
            tell(b"stay")
            served_by = bytes((await client.expect(client.ask("/who"), 200)).content)
            for _ in range(4):
                tell(b"turn")
                await client.expect(client.ask("/who"), 200, served_by)
                stream = client.ask("/large")
                await client.until(lambda: client.answers[stream].content)
                tell(b"turn after each")
                await client.expect(stream, 200, LARGE)
                tell(b"stay")
        tell(b"go to " + name)
        async with connected() as client:
            await client.expect(client.ask("/who"), 200, name)


async def forged():
    """A forwarded packet, which names the client's address, is accepted only from a server of the fleet."""

    def asks(mark):
        # A long header packet of an unknown version: the server answers its source address with Version Negotiation.
        return b"\xc0\x1a\x1a\x1a\x1a\x08" + mark.ljust(8) + bytes(1200)

    def bound():
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(PATIENCE)
        return sock

    def wrapped(victim, packet):
        host, port = victim.getsockname()
        return b"\x80\x91\xc1\x70\0\0\x04" + socket.inet_aton(host) + port.to_bytes(2, "big") + b"\x04" + packet

    victim, stranger, node = bound(), bound(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    node.bind(("127.0.0.1", int(sys.argv[3])))
    server = ("127.0.0.1", PORT)
    stranger.sendto(wrapped(victim, asks(b"forged")), server)
    # When the server answers this second packet, it has read the forged one before it.
    stranger.sendto(asks(b"plain"), server)
    while b"plain" not in stranger.recv(2000):
        pass
    node.sendto(wrapped(victim, asks(b"known")), server)
    answer = victim.recv(2000)
    assert b"known" in answer and b"forged" not in answer, answer


async def most():
    """The server has as many connections as it allows; a third one begins only when one of the two has ended."""
    async with connected() as first, connected() as second:
        loop = asyncio.get_running_loop()
        third = Client(QuicConnection(configuration=configuration()))
        await loop.create_datagram_endpoint(lambda: third, local_addr=("127.0.0.1", 0))
        third.connect(("127.0.0.1", PORT))
        # When the server has answered these requests, it has read the first packet of the third connection.
        for client in (first, second):
            await client.expect(client.ask("/large"), 200, LARGE)
        assert third.handshake is None
        first.close()
        await first.wait_closed()
        await third.until(lambda: third.handshake)
        await third.expect(third.ask("/hello.txt"), 200, b"hello, world")
        await second.expect(second.ask("/hello.txt"), 200, b"hello, world")
        third.close()
        await third.wait_closed()


async def retry():
    """The server sends Retry, so that the client proves that it receives at its address (RFC 9000 section 8.1.2)."""
    async with connected() as client:
        await client.expect(client.ask("/hello.txt"), 200, b"hello, world")
        assert client._quic._retry_source_connection_id is not None


async def tokens():
    """A token of an earlier connection saves one Retry, whichever worker the later connections reach."""
    tokens = []
    async with connected(token_handler=tokens.append) as client:
        await client.expect(client.ask("/hello.txt"), 200)
        await client.until(lambda: tokens)
    without_retry = 0
    for _ in range(12):
        async with connected(configuration(token=tokens[0])) as client:
            await client.expect(client.ask("/hello.txt"), 200)
            without_retry += client._quic._retry_source_connection_id is None
    assert without_retry == 1, without_retry


async def handshake():
    """Client and server agree on HTTP/3, exchange SETTINGS, and end without an error."""
    async with connected() as client:
        await client.until(lambda: client.handshake)
        assert client.handshake.alpn_protocol == "h3", client.handshake
        await client.until(lambda: client.h3.received_settings is not None)


async def get():
    """Fetches a small and a large file."""
    async with connected() as client:
        answer = await client.expect(client.ask("/hello.txt"), 200, b"hello, world")
        assert answer.field(b"content-length") == b"12"
        await client.expect(client.ask("/large"), 200, LARGE)


async def one():
    """Sends one request, with the path and the fields of the arguments, and prints the status and the content."""
    fields = [tuple(line.split(": ", 1)) for line in sys.argv[4].splitlines()]
    async with connected() as client:
        answer = await client.answer(client.ask(sys.argv[3], fields=fields))
        print(answer.status, answer.content.decode())


async def download():
    """Fetches files over a path that loses, reorders or duplicates packets, or forgets the client's port."""
    async with connected() as client:
        for stream in [client.ask("/large") for _ in range(3)]:
            await client.expect(stream, 200, LARGE)
        await client.expect(client.ask("/hello.txt"), 200, b"hello, world")


async def requests():
    """More than 1,000 requests on one connection, 100 at a time."""
    async with connected() as client:
        for _ in range(12):
            for stream in [client.ask(f"/hello.txt?{n}") for n in range(100)]:
                await client.expect(stream, 200, b"hello, world")


async def huge():
    """A file of 100 MB arrives unchanged."""
    windows = {"max_data": 16 << 20, "max_stream_data": 16 << 20}
    async with connected(configuration(**windows)) as client:
        stream = client.ask("/huge")
        await client.until(lambda: client.answers[stream].has_ended, 10 * PATIENCE)
        answer = await client.expect(stream, 200)
        assert hashlib.sha256(answer.content).hexdigest() == sys.argv[3], len(answer.content)


async def upload():
    """A request's content of 3 MB reaches a backend, which sends it back."""
    async with connected() as client:
        content = os.urandom(3_000_000)
        await client.expect(client.ask("/backend/echo", "POST", content=content), 200, content)


async def early_data():
    """A request in the early data of a resumed connection reaches the backend."""
    tickets = []
    async with connected(session_ticket_handler=tickets.append) as client:
        await client.expect(client.ask("/hello.txt"), 200, b"hello, world")
        await client.until(lambda: tickets)
    async with connected(configuration(session_ticket=tickets[-1]), wait_connected=False) as client:
        await client.expect(client.ask("/backend/echo"), 200, b"")
        assert client.handshake.early_data_accepted


async def late_resumption():
    """A second connection resumes the session of the first; requests are sent after the handshake."""
    tickets = []
    async with connected(session_ticket_handler=tickets.append) as client:
        await client.expect(client.ask("/hello.txt"), 200, b"hello, world")
        await client.until(lambda: tickets)
    async with connected(configuration(session_ticket=tickets[-1])) as client:
        assert client.handshake.session_resumed
        await client.expect(client.ask("/hello.txt"), 200, b"hello, world")


async def long_hello():
    """The ClientHello is too long for one datagram."""
    settings = configuration()
    settings.alpn_protocols = H3_ALPN + [f"no-such-protocol-{n:03}" for n in range(70)]
    async with connected(settings) as client:
        await client.expect(client.ask("/hello.txt"), 200, b"hello, world")


async def versions():
    """The client begins with QUIC version 2, which the server does not support; both continue with version 1."""
    async with connected(
        configuration(
            original_version=QuicProtocolVersion.VERSION_2,
            supported_versions=[QuicProtocolVersion.VERSION_2, QuicProtocolVersion.VERSION_1],
        )
    ) as client:
        await client.expect(client.ask("/hello.txt"), 200, b"hello, world")
        assert client._quic._version == QuicProtocolVersion.VERSION_1, client._quic._version


async def trailers():
    """A request with trailers is answered, and the trailers of the response arrive."""
    async with connected() as client:
        stream = client.ask("/go/call", "POST", [("te", "trailers")], b"content", ends=False)
        client.h3.send_headers(stream, [(b"x-sum", b"of content")], end_stream=True)
        client.transmit()
        answer = await client.expect(stream, 200, b"content")
        assert answer.trailers.get(b"grpc-message") == b"not today", answer.heads


async def semantics():
    """Conditional requests and ranges. There is no HEAD, because aioquic takes the `content-length` of its response for an error."""
    async with connected() as client:
        answer = await client.expect(client.ask("/large"), 200, LARGE)
        fields = [("if-none-match", answer.field(b"etag").decode())]
        await client.expect(client.ask("/large", fields=fields), 304, b"")
        answer = await client.expect(client.ask("/large", fields=[("range", "bytes=100-299")]), 206, LARGE[100:300])
        assert answer.field(b"content-range") == b"bytes 100-299/%d" % len(LARGE)
        await client.expect(client.ask("/large", fields=[("range", "bytes=9999999-")]), 416)


async def idle():
    """The server closes a connection that is idle; a new one is served."""
    async with connected() as client:
        await client.expect(client.ask("/hello.txt"), 200, b"hello, world")
        async with asyncio.timeout(PATIENCE):
            while client.closed is None:
                client.news.clear()
                await client.news.wait()
        assert client.closed.reason_phrase == "Idle timeout", client.closed
    await get()


async def comes_first(client, fields, urgent, urgency):
    """Whether the response for `urgent` is complete before any of three large ones, although it is requested after the first has begun."""
    parts = [client.ask(f"/part/{n}", fields=fields) for n in range(3)]
    await client.until(lambda: client.answers[parts[0]].content)
    await client.expect(client.ask(urgent, fields=[("priority", urgency)]), 200)
    is_first = not any(client.answers[part].has_ended for part in parts)
    for part in parts:
        await client.expect(part, 200)
    return is_first


async def priorities():
    """A more urgent response is completed before others that were requested earlier."""
    async with connected() as client:
        # `/part/style.css` is so small that the transport takes it as a whole at once.
        for fields, urgent, urgency in [([("priority", "u=6")], "/part/3", "u=1"), ([], "/part/style.css", "u=0")]:
            # If the machine is so busy that the urgent request is sent too late, the client repeats the attempt, three times at most.
            for _ in range(3):
                if await comes_first(client, fields, urgent, urgency):
                    break
            else:
                raise AssertionError(f"a less urgent response came before that for {urgent}")


async def take_turns(client, priorities):
    """Asks for responses with these priorities. Returns whether each began in its turn, and ended in the order of its priority."""
    client.pieces.clear()
    streams = [client.ask("/large", fields=[("priority", priority)], waits=True) for priority in priorities]
    client.transmit()
    for stream in streams:
        await client.expect(stream, 200, LARGE)
    begun = list(dict.fromkeys(client.pieces))
    ended = sorted(streams, key=lambda stream: len(client.pieces) - client.pieces[::-1].index(stream))
    wholes = [stream for stream, priority in zip(streams, priorities) if not priority]
    turns = [stream for stream in streams if stream not in wholes]
    # After the others, the incremental responses take turns.
    rest = client.pieces[-20:]
    return begun == streams and ended[: len(wholes)] == wholes and all(stream in rest for stream in turns)


async def turns():
    """Each incremental response begins in its turn, and goes on after the responses of its urgency that are not incremental."""
    async with connected() as client:
        await client.expect(client.ask("/large"), 200)
        for priorities in ["i", "i", ""], ["", "i", ""]:
            # A packet that is lost, because the machine is busy, changes the order: the client then repeats the attempt, three times at most.
            for _ in range(4):
                if await take_turns(client, priorities):
                    break
            else:
                raise AssertionError(f"{priorities}: {client.pieces}")


async def stopped():
    """A client that is answered before its content has ended is told at once that the rest is not wanted."""
    async with connected() as client:
        long = client.ask("/hello.txt", "POST", fields=[("content-length", "9999999999")], content=b"x", ends=False)
        strange = client.ask("/hello.txt", "POST", fields=[("expect", "else")], content=b"x", ends=False)
        await client.expect(long, 413)
        await client.expect(strange, 417)
        # The back end answers this request after two seconds.
        await client.expect(client.ask("/late"), 200)
        assert client.stopped == {long: 0x100, strange: 0x100}, client.stopped


async def websocket():
    """A WebSocket by extended CONNECT: a message goes to the backend and comes back."""
    async with connected() as client:
        await client.until(lambda: client.h3.received_settings is not None)
        assert client.h3.received_settings.get(8) == 1, client.h3.received_settings
        stream = client._quic.get_next_available_stream_id()
        client.answers[stream] = answer = Answer()
        head = {
            ":method": "CONNECT",
            ":protocol": "websocket",
            ":scheme": "https",
            ":authority": f"localhost:{PORT}",
            ":path": "/backend/websocket",
            "sec-websocket-version": "13",
        }
        client.h3.send_headers(stream, [(name.encode(), value.encode()) for name, value in head.items()])
        text, mask = b"hello", b"mask"
        client.h3.send_data(stream, b"\x81\x85" + mask + bytes(a ^ b for a, b in zip(text, mask + mask)), False)
        client.transmit()
        await client.until(lambda: len(answer.content) >= 2 + len(text))
        assert answer.status == "200", answer.heads
        assert bytes(answer.content) == b"\x81\x05" + text, answer.content
        client.h3.send_data(stream, b"\x88\x80" + mask, False)
        client.transmit()
        await client.until(lambda: answer.has_ended)
        assert bytes(answer.content[7:8]) == b"\x88", answer.content


async def through_reloads():
    """Until the file in the argument exists: sends requests on a lasting and on new connections, and bytes through a tunnel."""
    stop = sys.argv[3]
    asked = 0
    async with connected() as client:
        tunnel = client.ask_tunnel("/tunnel", "echo")
        echoed = client.answers[tunnel]
        await client.until(lambda: echoed.status is not None)
        assert echoed.status == "200", echoed.heads
        while not os.path.exists(stop):
            size = len(echoed.content)
            client.carry(tunnel, b"%08d" % asked)
            for stream in [client.ask(path) for path in ("/a.txt", "/backend") for _ in range(5)]:
                answer = await client.answer(stream)
                assert answer.status == "200", (asked, answer.heads)
                asked += 1
            await client.until(lambda: len(echoed.content) >= size + 8)
            async with connected() as other:
                answer = await other.answer(other.ask("/a.txt"))
                assert answer.status == "200", (asked, answer.heads)
            asked += 1
        client.carry(tunnel, b"", True)
        assert not client.goaways, client.goaways
    print(asked)


async def slow():
    """A response that makes a long pause arrives complete."""
    async with connected() as client:
        await client.expect(client.ask("/slow"), 200, b"begin" + LARGE)


async def main():
    await globals()[sys.argv[1]]()
    print("ok")


asyncio.run(main())
