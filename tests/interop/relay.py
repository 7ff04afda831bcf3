#!/usr/bin/env python3
"""A relay for UDP between QUIC clients and a server on loopback: a path with loss, delay, a slow link, or a NAT that forgets.

Prints its port in a line. When its standard input ends it prints in a line of JSON what it saw, and ends. What it does to a
datagram depends on the seed and on the number of datagrams before, never on the clock, except where an option says seconds.
"""

import argparse
import heapq
import json
import random
import selectors
import socket
import struct
import sys
import time
from collections import Counter

VERSION_1, VERSION_2 = 1, 0x6B3343CF
# Packet types of long headers, by QUIC version (RFC 9000 section 17.2, RFC 9369 section 3.2).
KINDS = {VERSION_1: ("initial", "0rtt", "handshake", "retry"), VERSION_2: ("retry", "initial", "0rtt", "handshake")}
ECT_0, CE = 2, 3
# Seconds by which a datagram that is to arrive late is delayed, so that others overtake it.
LATE = 0.03


def variable(data, at):
    """Returns a variable-length integer (RFC 9000 section 16), and the position after it."""
    length = 1 << (data[at] >> 6)
    value = data[at] & 0x3F
    for byte in data[at + 1 : at + length]:
        value = value << 8 | byte
    return value, at + length


def packets(datagram):
    """The kinds of the packets in a datagram, whether an Initial has a token, and the ids of destination and source of the first
    packet if it has a long header."""
    kinds, has_token, at = [], False, 0
    ids = None
    if len(datagram) > 6 and datagram[0] & 0x80 and len(datagram) > 6 + datagram[5]:
        middle = 6 + datagram[5]
        ids = datagram[6:middle], datagram[middle + 1 : middle + 1 + datagram[middle]]
    while at < len(datagram):
        if not datagram[at] & 0x80:
            kinds.append("short")
            break
        version = struct.unpack_from(">I", datagram, at + 1)[0]
        if version == 0:
            kinds.append("versions")
            break
        types = KINDS.get(version)
        if types is None:
            kinds.append("unknown")
            break
        kind = types[datagram[at] >> 4 & 3]
        kinds.append(kind)
        if kind == "retry":
            break
        try:
            at += 5
            at += 1 + datagram[at]
            at += 1 + datagram[at]
            if kind == "initial":
                length, at = variable(datagram, at)
                has_token |= length > 0
                at += length
            length, at = variable(datagram, at)
            at += length
        except IndexError:
            break
    return kinds, has_token, ids


class Direction:
    """What the relay saw of the datagrams in one direction."""

    def __init__(self):
        self.datagrams = 0
        self.bytes = 0
        self.lost = 0
        self.kinds = Counter()
        # The ECN mark of each datagram, in the order in which they came.
        self.marks = []
        self.link_is_free_at = 0.0

    def report(self):
        marks = Counter(self.marks)
        return {
            "datagrams": self.datagrams,
            "bytes": self.bytes,
            "lost": self.lost,
            "kinds": dict(self.kinds),
            "marked": marks[ECT_0] + marks[1] + marks[CE],
            "marked_of_last_20": sum(mark != 0 for mark in self.marks[-20:]),
        }


class Path:
    """A client's path: the server sees all of its datagrams come from one address, until the simulated NAT changes that."""

    def __init__(self, relay, client):
        self.relay = relay
        self.client = client
        self.sockets = []
        self.rebind()

    def rebind(self):
        new = udp_socket()
        new.connect(("127.0.0.1", self.relay.options.server))
        self.relay.selector.register(new, selectors.EVENT_READ, self)
        self.sockets.append(new)


def udp_socket():
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    made.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    return made


def receive(source):
    """Receives a datagram: returns its payload, its ECN mark and its sender; `None` if there is none."""
    try:
        data, extras, _, sender = source.recvmsg(65535, 64)
    except (BlockingIOError, ConnectionRefusedError):
        return None
    tos = next((value[0] for level, kind, value in extras if (level, kind) == (socket.IPPROTO_IP, socket.IP_TOS)), 0)
    return data, tos & 3, sender


def send(target, data, mark, address=None):
    extras = [(socket.IPPROTO_IP, socket.IP_TOS, struct.pack("i", mark))]
    try:
        target.sendmsg([data], extras, 0, *([address] if address else []))
    except (BlockingIOError, ConnectionRefusedError):
        pass


class Relay:
    def __init__(self, options):
        self.options = options
        self.random = random.Random(options.seed)
        self.selector = selectors.DefaultSelector()
        self.front = udp_socket()
        self.front.bind(("127.0.0.1", 0))
        self.selector.register(self.front, selectors.EVENT_READ, None)
        self.selector.register(sys.stdin, selectors.EVENT_READ, None)
        self.paths = {}
        self.to_server, self.to_client = Direction(), Direction()
        # Datagrams on their way, as a heap: time of arrival, a number that keeps the order, the function that delivers.
        self.flying = []
        self.sent = 0
        self.rebindings = 0
        self.hole_ends = None
        # The path from and to the client's first port once it is cut (`--cut-after`).
        self.cut = None
        self.mute_ends = None
        # Connection ids that the server has chosen.
        self.given_ids = set()
        # Whether the server knows that the client receives at its address (RFC 9000 section 8.1): by such a connection id, a token or a
        # Handshake packet. `amplification` is the largest ratio of bytes sent to bytes received before that.
        self.is_validated = False
        self.amplification = 0.0
        self.delivered = self.unproven = 0
        # Number of datagrams with an Initial packet that the client sent before the server's first Handshake packet.
        self.hello_datagrams = 0
        self.hello_is_answered = False

    def run(self):
        print(self.front.getsockname()[1], flush=True)
        # Datagrams that are on their way when standard input ends, such as the client's CONNECTION_CLOSE, are still delivered.
        is_ending = False
        while self.flying or not is_ending:
            wait = max(0.0, self.flying[0][0] - time.monotonic()) if self.flying else None
            for key, _ in self.selector.select(wait):
                if key.fileobj is not sys.stdin:
                    self.take_in(key.fileobj, key.data)
                elif not is_ending:
                    is_ending = True
                    self.selector.unregister(sys.stdin)
            while self.flying and self.flying[0][0] <= time.monotonic():
                heapq.heappop(self.flying)[2]()

    def take_in(self, source, path):
        for _ in range(64):
            found = receive(source)
            if found is None:
                return
            data, mark, sender = found
            if path is None:
                to = self.paths.get(sender)
                if to is None:
                    to = self.paths[sender] = Path(self, sender)
                self.pass_on(data, mark, to, self.to_server)
            else:
                self.pass_on(data, mark, path, self.to_client)

    def pass_on(self, data, mark, path, direction):
        options, now = self.options, time.monotonic()
        kinds, has_token, ids = packets(data)
        is_of_client = direction is self.to_server
        direction.datagrams += 1
        direction.bytes += len(data)
        direction.kinds.update(kinds)
        direction.marks.append(mark)
        self.account(kinds, has_token, ids, is_of_client, len(data))
        if not is_of_client:
            if direction.datagrams == options.hole_after:
                self.hole_ends = now + options.hole_seconds
            if direction.datagrams == options.cut_after:
                self.cut = next(iter(self.paths.values()))
            if options.rebind_after and direction.datagrams % options.rebind_after == 0 and self.rebindings < options.rebindings:
                self.rebindings += 1
                path.rebind()
        is_lost = self.random.random() < options.loss
        if is_lost or path is self.cut or self.is_held(is_of_client, now):
            direction.lost += 1
            return
        if is_of_client:
            self.delivered += len(data)
        if mark == ECT_0 and self.random.random() < options.congested:
            mark = CE
        arrival = now + options.delay / 1000
        if options.rate and not is_of_client:
            start = max(now, direction.link_is_free_at)
            if (start - now) * options.rate > options.queue:
                direction.lost += 1
                return
            direction.link_is_free_at = start + len(data) / options.rate
            arrival += direction.link_is_free_at - now
        if self.random.random() < options.late:
            arrival += LATE
        copies = 2 if self.random.random() < options.duplicate else 1
        for _ in range(copies):
            self.launch(arrival, data, mark, path, is_of_client)

    def is_held(self, is_of_client, now):
        if self.hole_ends is not None and now < self.hole_ends:
            return True
        if is_of_client:
            return self.mute_ends is not None and now < self.mute_ends
        if self.options.mute_seconds and self.mute_ends is None and self.hello_is_answered:
            self.mute_ends = now + self.options.mute_seconds
        return False

    def account(self, kinds, has_token, ids, is_of_client, length):
        """Notes the packets of a datagram, and how much the server has sent before the client's address is validated."""
        if not is_of_client:
            self.hello_is_answered |= "handshake" in kinds
            if ids:
                self.given_ids.add(ids[1])
        if is_of_client and "initial" in kinds and not self.hello_is_answered:
            self.hello_datagrams += 1
        if is_of_client:
            is_muted = self.mute_ends is not None and time.monotonic() < self.mute_ends
            uses_given_id = ids is not None and ids[0] in self.given_ids
            self.is_validated |= not is_muted and (has_token or "handshake" in kinds or uses_given_id)
        elif not self.is_validated:
            self.unproven += length
            self.amplification = max(self.amplification, self.unproven / max(1, self.delivered))

    def launch(self, arrival, data, mark, path, is_of_client):
        self.sent += 1
        if is_of_client:
            # The socket is chosen when the datagram leaves, not now: the NAT's port may change before.
            heapq.heappush(self.flying, (arrival, self.sent, lambda: send(path.sockets[-1], data, mark)))
        else:
            heapq.heappush(self.flying, (arrival, self.sent, lambda: send(self.front, data, mark, path.client)))

    def report(self):
        return {
            "to_server": self.to_server.report(),
            "to_client": self.to_client.report(),
            "clients": len(self.paths),
            "rebindings": self.rebindings,
            "amplification": round(self.amplification, 3),
            "hello_datagrams": self.hello_datagrams,
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=int, required=True, help="port of the server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loss", type=float, default=0.0, help="share of the datagrams that is lost (0 to 1)")
    parser.add_argument("--duplicate", type=float, default=0.0, help="share of the datagrams that arrives twice (0 to 1)")
    parser.add_argument("--late", type=float, default=0.0, help="share of the datagrams that arrives late, overtaken by others (0 to 1)")
    parser.add_argument("--delay", type=float, default=0.0, help="delay of each direction in milliseconds")
    parser.add_argument("--rate", type=float, default=0.0, help="bytes a second towards the client")
    parser.add_argument("--queue", type=float, default=64_000, help="bytes that may wait for the slow link; more are lost")
    parser.add_argument("--congested", type=float, default=0.0, help="share of the ECT(0) datagrams that is marked CE (0 to 1)")
    parser.add_argument("--hole-after", type=int, default=0, help="after this many datagrams of the server, nothing passes for --hole-seconds")
    parser.add_argument("--hole-seconds", type=float, default=0.0)
    parser.add_argument(
        "--cut-after", type=int, default=0, help="after this many datagrams of the server, nothing passes from and to the first port of the client"
    )
    parser.add_argument("--rebind-after", type=int, default=0, help="after this many datagrams of the server, the client's port changes")
    parser.add_argument("--rebindings", type=int, default=1)
    parser.add_argument(
        "--mute-seconds", type=float, default=0.0, help="seconds for which nothing of the client passes after the server's first Handshake packet"
    )
    relay = Relay(parser.parse_args())
    relay.run()
    print(json.dumps(relay.report()), flush=True)


main()
