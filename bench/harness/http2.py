"""Sends one request over HTTP/2, with the least of the protocol that this needs."""

import struct
import time

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY = 0x20

LARGEST_WINDOW = 2**31 - 1
# In the static table of HPACK the fields 8 to 14 are `:status` with a value.
STATUS_FIELD = 8
STATUSES = dict(enumerate((200, 204, 206, 304, 400, 404, 500), STATUS_FIELD))


class Refused(Exception):
    """The server does not answer the request, or its response is not as expected."""


def frame(kind, flags, stream, payload=b""):
    return struct.pack("!HBBBI", len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + payload


def request(scheme, authority, path):
    """The first octets of a connection: a request for one file, with windows large enough for the whole response."""

    def literal(name, value):
        value = value.encode()
        assert len(value) < 127
        return bytes([name, len(value)]) + value  # a literal without indexing and without compression

    fields = b"\x82" + (b"\x87" if scheme == "https" else b"\x86") + literal(1, authority) + literal(4, path)
    no_push, window = struct.pack("!HI", 2, 0), struct.pack("!HI", 4, LARGEST_WINDOW)
    return (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + frame(SETTINGS, 0, 0, no_push + window)
        + frame(WINDOW_UPDATE, 0, 0, struct.pack("!I", LARGEST_WINDOW - 65_535))
        + frame(HEADERS, END_STREAM | END_HEADERS, 1, fields)
    )


def status(block):
    """The status of a response, which must be its first field."""
    while block and block[0] & 0xE0 == 0x20:  # a change of the table's size, of one octet
        block = block[1:]
    if block and block[0] & 0x80 and block[0] & 0x7F in STATUSES:
        return STATUSES[block[0] & 0x7F]
    # In a literal field the name may be given by any of the static table's `:status` fields.
    index = block[0] & (0x3F if block[0] & 0x40 else 0x0F) if block else 0
    if len(block) > 2 and not block[0] & 0x80 and STATUS_FIELD <= index < STATUS_FIELD + len(STATUSES):
        value = block[2 : 2 + (block[1] & 0x7F)]
        text = digits(value) if block[1] & 0x80 else value.decode("latin-1")
        if len(text) == 3 and text.isdecimal():
            return int(text)
    raise Refused(f"no status in {block[:8].hex()}")


def digits(octets):
    """Decodes digits in HPACK's Huffman code: 0, 1 and 2 have five bits, the others six; the last octet is filled with ones."""
    bits = "".join(f"{octet:08b}" for octet in octets)
    text = ""
    while len(bits) >= 5:
        if bits[:5] in ("00000", "00001", "00010"):
            text, bits = text + str(int(bits[:5], 2)), bits[5:]
        elif len(bits) >= 6 and 0b011001 <= int(bits[:6], 2) <= 0b011111:
            text, bits = text + str(int(bits[:6], 2) - 0b011001 + 3), bits[6:]
        else:
            break
    return text


def ask(sock, scheme, authority, path, deadline=float("inf")):
    """Sends the only request of a new connection, and reads to the end of its response.

    Returns the status, and the octets of head (as compressed) and body. The
    connection stays open, with the server's SETTINGS acknowledged. `deadline` is a time of the
    monotonic clock.
    """
    sock.sendall(request(scheme, authority, path))
    received = bytearray()
    block, body, ended, blocked = b"", 0, False, False
    while not ended or blocked:
        while len(received) < 9 or len(received) < 9 + int.from_bytes(received[:3], "big"):
            if time.monotonic() > deadline:
                raise Refused("the server does not complete its answer")
            octets = sock.recv(65536)
            if not octets:
                raise Refused("the connection was closed by the server")
            received += octets
        length = int.from_bytes(received[:3], "big")
        kind, flags = received[3], received[4]
        payload = bytes(received[9 : 9 + length])
        del received[: 9 + length]
        if kind in (SETTINGS, PING) and not flags & ACK:
            sock.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
        elif kind in (RST_STREAM, GOAWAY):
            raise Refused(f"the server sends {'RST_STREAM' if kind == RST_STREAM else 'GOAWAY'} {payload.hex()}")
        elif kind in (DATA, HEADERS, CONTINUATION):
            if kind != CONTINUATION:
                ended |= bool(flags & END_STREAM)
                if flags & PADDED:
                    payload = payload[1 : len(payload) - payload[0]]
            if kind == DATA:
                body += len(payload)
            else:
                block += payload[5:] if kind == HEADERS and flags & PRIORITY else payload
                blocked = not flags & END_HEADERS
    return status(block), len(block), body
