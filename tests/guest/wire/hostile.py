#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A peer on a plain TCP socket that plays iWARP by hand, correctly and incorrectly, against a verbs
program on the device under test.

usage: hostile.py PUPPET DEVICE_ADDRESS OWN_ADDRESS PORT [CASE...]

SETTING in the environment is a program that gives a setting of the device (its first argument) a
value. Prints `ok NAME`, `not ok NAME: why` or `skip NAME: why` for each case. The codes expected are those
of RFC 5040 (section 4.8), RFC 5041 (section 7.2), RFC 5044 (section 8) and RFC 6581 (section 8)."""

import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from iwarp import *  # noqa: E402,F403
from puppet import ALL_RIGHTS, LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, Puppet  # noqa: E402

# Start-up must be over, or given up, within this time.
START_UP_LIMIT = 20.0

CASES = []


def case(function):
    CASES.append(function)
    return function


class Skip(Exception):
    pass


class Bench:
    """What a case works with: the verbs program, its listener and its memory."""

    def __init__(self, program, device, own, port):
        self.device, self.own, self.port = device, own, port
        self.program = program
        self.wires = []
        self.changed = {}
        self.next_port = port + 1
        self.begin()

    def begin(self):
        self.puppet = Puppet(self.program, self.device)
        self.puppet.ask(f"listen {self.port}")
        region = self.puppet.region
        self.ram = region(8192)
        self.no_write = region(8192, LOCAL_WRITE | REMOTE_READ)
        self.no_read = region(8192, LOCAL_WRITE | REMOTE_WRITE)
        self.foreign = region(8192, ALL_RIGHTS, pd=1)
        self.large = region(1 << 21)

    def open(self, rcvbuf=None):
        """A TCP connection to the listener, nothing said yet."""
        wire = Wire.connect(self.device, self.port, rcvbuf)
        self.wires.append(wire)
        return wire

    def connect(self, flags=CRC, rev=1, data=b"", rcvbuf=None, **settings):
        """A connection that is up."""
        if settings:
            self.puppet.set(**settings)
        wire = self.open(rcvbuf)
        wire.start(flags, rev, data)
        wire.conn = int(self.puppet.wait("request")[1])
        self.puppet.wait("established", wire.conn)
        return wire

    def after(self):
        """Between cases: everything closed, the program's memory and settings as at the start."""
        for wire in self.wires:
            wire.close()
        self.wires.clear()
        for name, value in list(self.changed.items()):
            self.setting(name, value)
        self.changed.clear()
        self.puppet.defaults()
        self.puppet.forget()

    def clean(self):
        for region in (self.ram, self.no_write, self.no_read, self.foreign):
            region.fill(0x55)

    def untouched(self):
        for region in (self.ram, self.no_write, self.no_read, self.foreign):
            region.untouched(0x55)

    def came_to_an_end(self, wire, event=True):
        """The program has been told that this connection has failed."""
        if event:
            self.puppet.wait("event", wire.conn, None)
        self.puppet.wait("disconnected", wire.conn)
        require(self.puppet.ask(f"state {wire.conn}") == "6", "the QP is not in error")

    def setting(self, name, value):
        """Changes a setting of the device until the end of the case."""
        defaults = {"crc": 1, "mpa_rev": 2, "peer_to_peer": 1}
        self.changed[name] = defaults[name]
        subprocess.run([os.environ["SETTING"], name, str(value)], check=True,
                       stderr=subprocess.DEVNULL, timeout=10)

    def works(self, wire):
        """A Read through this connection succeeds."""
        self.ram.poke(0, b"still alive")
        wire.read_msn += 1
        wire.send(read_request(wire.read_msn, 0xABCD, 0x10, 11, self.ram.key, self.ram.address))
        wire.expect(read_response(0xABCD, 0x10, b"still alive"), "the Read Response")

    def listen(self):
        """A TCP listener for the program to connect to: (socket, port)."""
        self.next_port += 1
        family = socket.AF_INET6 if ":" in self.own else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((self.own, self.next_port))
        sock.listen(4)
        sock.settimeout(10)
        return sock, self.next_port

    def called(self):
        """The program connects to us: the wire, with its Request taken."""
        sock, port = self.listen()
        conn = int(self.puppet.ask(f"connect {self.own} {port}"))
        wire = Wire(sock.accept()[0])
        sock.close()
        self.wires.append(wire)
        wire.conn = conn
        wire.reply = wire.get_start_frame()
        require(wire.reply.key == REQUEST_KEY, f"request with key {wire.reply.key}")
        return wire

    def answered(self, flags=CRC, enhanced=None, data=b"", **settings):
        """The program connects to us and is accepted; what it asked stays in wire.reply."""
        if settings:
            self.puppet.set(**settings)
        wire = self.called()
        if wire.reply.rev == 2 and wire.reply.flags & ENHANCED:
            data = (enhanced if enhanced is not None else
                    depths(wire.reply.ord, wire.reply.ird, bool(wire.reply.p2p),
                           bool(wire.reply.send_rtr), bool(wire.reply.write_rtr),
                           bool(wire.reply.read_rtr))) + data
            flags |= ENHANCED
        wire.put(start_frame(REPLY_KEY, flags, wire.reply.rev, data))
        self.puppet.wait("established", wire.conn)
        if wire.reply.rev == 2 and wire.reply.p2p:
            take_rtr(wire)
        return wire


def take_rtr(wire):
    """The ready-to-receive message of a peer-to-peer start."""
    first = wire.get()
    if first.opcode == READ_REQUEST:
        stag, to, size, _, _ = struct.unpack(">IQIIQ", first.data)
        require(size == 0, f"RTR Read of {size}")
        wire.send(read_response(stag, to))
        wire.rtr_read = True
    else:
        require(first.opcode in (WRITE, SEND) and not first.data, f"RTR {first}")


# --- start-up: the device as responder -------------------------------------------------------------


@case
def responder_is_silent_until_asked(b):
    wire = b.open()
    wire.silent(0.5)


@case
def plain_start_up(b):
    wire = b.open()
    wire.request()
    reply = wire.take(20)
    require(reply == start_frame(REPLY_KEY, CRC, 1), f"reply {reply.hex()}")
    wire.silent(0.1)
    b.puppet.wait("established")


@case
def crc_is_on_if_only_the_responder_wants_it(b):
    wire = b.open()
    wire.request(flags=0)
    reply = wire.get_start_frame()
    require(reply.flags & CRC, "no CRC by default")
    wire.crc = True
    b.works(wire)
    wire.send(write(b.ram.key, b.ram.address, b"x"), bad_crc=True)
    wire.expect_terminate(2, 0, 2)


@case
def reserved_flags_are_neither_checked_nor_echoed(b):
    wire = b.open()
    wire.request(flags=CRC | 0x0F)
    reply = wire.get_start_frame()
    require(reply.flags == CRC, f"flags {reply.flags:#x}")
    b.works(wire)


@case
def reject_in_a_request_is_ignored(b):
    wire = b.open()
    wire.request(flags=CRC | REJECT)
    reply = wire.get_start_frame()
    require(reply.flags == CRC, f"flags {reply.flags:#x}")
    b.works(wire)


@case
def request_octet_by_octet(b):
    wire = b.open()
    for octet in start_frame(REQUEST_KEY, CRC, 1, b"hello"):
        wire.put(bytes([octet]))
        time.sleep(0.005)
    wire.get_start_frame()
    require(b.puppet.wait("request")[2] == b"hello".hex(), "other private data")
    b.works(wire)


@case
def private_data_of_a_request(b):
    for length in (0, 1, 3, 4, 127, 255):
        data = bytes(i * 7 & 255 for i in range(length))
        wire = b.open()
        wire.start(data=data)
        event = b.puppet.wait("request")
        require(event[2] == (data.hex() or "-"), f"{length} octets arrived as {event[2]}")
        b.works(wire)


@case
def private_data_beyond_the_interface(b):
    # iw_cm carries 255 octets: either the connection comes up with what fits, or it is rejected.
    for length in (256, 257, 508, 512):
        wire = b.open()
        wire.request(data=bytes(length))
        reply = wire.get_start_frame()
        if reply.flags & REJECT:
            wire.ends()
        else:
            b.works(wire)


@case
def too_much_private_data(b):
    wire = b.open()
    wire.request(data=b"", length=513)
    wire.ends(reset_allowed=True)


@case
def wrong_keys(b):
    for key in (REPLY_KEY, b"MPA ID Req frame", b"GET / HTTP/1.1\r\n", bytes(16), b"\xff" * 16):
        wire = b.open()
        wire.request(key=key)
        wire.ends(reset_allowed=True)


@case
def wrong_key_is_seen_without_the_rest(b):
    wire = b.open()
    wire.put(b"GET / HTTP/1.0\r\n")
    wire.ends(reset_allowed=True)


@case
def wrong_revisions(b):
    for rev in (0, 3, 4, 255):
        wire = b.open()
        wire.request(rev=rev)
        try:
            wire.ends(reset_allowed=True)
        except Failure as error:
            raise Failure(f"revision {rev}: {error}") from error


@case
def octets_behind_the_request(b):
    # Nothing may follow the Request before the Reply.
    b.puppet.set(auto=0)
    wire = b.open()
    wire.put(start_frame(REQUEST_KEY, CRC, 1) + fpdu(send(1, b"early")))
    time.sleep(0.2)
    try:
        conn = b.puppet.wait("request", seconds=1)[1]
        b.puppet.try_ask(f"accept {conn}")
    except Failure:
        pass  # refused at once: fine
    b.puppet.none("established", seconds=0.3)
    wire.ends(reset_allowed=True)


@case
def request_cut_off_by_the_end(b):
    for length in (0, 1, 15, 16, 19, 20, 22):
        wire = b.open()
        wire.put(start_frame(REQUEST_KEY, CRC, 1, b"data")[:length])
        wire.sock.shutdown(socket.SHUT_WR)
        wire.ends(reset_allowed=True)
    b.puppet.none("request")


@case
def request_cut_off_by_a_reset(b):
    for length in (0, 10, 20):
        wire = b.open()
        wire.put(start_frame(REQUEST_KEY, CRC, 1, b"data")[:length])
        wire.reset()
    b.puppet.none("request")


@case
def reject_carries_private_data(b):
    b.puppet.set(auto=2)
    b.puppet.ask("data " + b"no, thank you".hex())
    wire = b.open()
    wire.request()
    reply = wire.get_start_frame()
    require(reply.flags & REJECT, "not a rejection")
    require(reply.data == b"no, thank you", f"private data {reply.data}")
    wire.ends()


@case
def accept_carries_private_data(b):
    b.puppet.ask("data " + bytes(range(200)).hex())
    wire = b.connect()
    require(wire.reply.data == bytes(range(200)), f"private data {wire.reply.data.hex()}")
    b.works(wire)


@case
def enhanced_start_up(b):
    b.puppet.set(ird=3, ord=5)
    b.puppet.ask("data " + b"pd".hex())
    wire = b.open()
    reply = wire.start(CRC | ENHANCED, 2, depths(7, 2) + b"ULP data")
    event = b.puppet.wait("request")
    require(event[2] == b"ULP data".hex(), f"private data {event[2]}")
    require(event[3:] == ["2", "7"], f"depths told as {event[3:]} instead of 2 and 7")
    require(reply.rev == 2 and reply.flags == CRC | ENHANCED, f"rev {reply.rev} flags {reply.flags:#x}")
    require(reply.data == b"pd", f"private data {reply.data}")
    require(not (reply.p2p or reply.send_rtr or reply.write_rtr or reply.read_rtr),
            "peer-to-peer although not asked for")
    require(reply.ird >= 2, f"IRD {reply.ird} although {2} was asked for and 3 is there")
    require(reply.ord <= 7, f"ORD {reply.ord} beyond the initiator's IRD 7")
    b.works(wire)


@case
def revision_2_without_enhanced_data(b):
    wire = b.open()
    wire.start(CRC, 2, b"just data")
    event = b.puppet.wait("request")
    require(event[2] == b"just data".hex(), f"private data {event[2]}")
    require(not wire.reply.flags & ENHANCED, "enhanced reply to a plain request")
    b.works(wire)


@case
def enhanced_without_its_data(b):
    for length in range(4):
        wire = b.open()
        wire.request(CRC | ENHANCED, 2, bytes(length))
        wire.ends(reset_allowed=True)


@case
def depths_without_negotiation(b):
    # 0x3FFF leaves a depth to the application.
    b.puppet.set(ird=4, ord=4)
    wire = b.open()
    reply = wire.start(CRC | ENHANCED, 2, depths(0x3FFF, 0x3FFF))
    require(reply.ird == 0x3FFF and reply.ord == 0x3FFF, f"IRD {reply.ird:#x} ORD {reply.ord:#x}")
    b.works(wire)


@case
def depths_of_all_sizes(b):
    for ird, ord_ in ((0, 0), (1, 1), (255, 255), (16382, 16382), (0, 1), (3, 200)):
        wire = b.open()
        reply = wire.start(CRC | ENHANCED, 2, depths(ird, ord_))
        require(reply.ord <= ird, f"ORD {reply.ord} for an IRD of {ird}")
        b.puppet.wait("established")
        wire.send(send(1, b"x"))
        b.puppet.wait("wc", None, "recv", None, "success")


@case
def peer_to_peer_replies(b):
    for kinds in range(8):
        s, w, r = kinds & 1, kinds >> 1 & 1, kinds >> 2 & 1
        wire = b.open()
        reply = wire.start(CRC | ENHANCED, 2, depths(4, 4, True, bool(s), bool(w), bool(r)))
        require(reply.p2p, f"kinds {kinds}: no peer-to-peer reply")
        require(reply.send_rtr or reply.write_rtr or reply.read_rtr, f"kinds {kinds}: no RTR kind")
        if w or r:
            require(w and reply.write_rtr or r and reply.read_rtr or s and reply.send_rtr,
                    f"kinds {kinds}: no common kind")
        wire.close()


@case
def kinds_without_peer_to_peer(b):
    wire = b.open()
    reply = wire.start(CRC | ENHANCED, 2, depths(4, 4, False, True, True, True))
    require(not (reply.p2p or reply.send_rtr or reply.write_rtr or reply.read_rtr), "kinds in the reply")
    b.works(wire)


def peer_to_peer(b, kind):
    wire = b.open()
    reply = wire.start(CRC | ENHANCED, 2, depths(4, 4, True, False, kind == "write", kind == "read"))
    require(getattr(reply, kind + "_rtr"), f"{kind} is not taken")
    conn = int(b.puppet.wait("request")[1])
    b.puppet.none("established", conn, seconds=0.3)
    rtr = write(1, 0) if kind == "write" else read_request(1, 1, 0, 0, 1, 0)
    octets = fpdu(rtr)
    wire.put(octets[:-1])
    b.puppet.none("established", conn, seconds=0.2)
    wire.put(octets[-1:])
    b.puppet.wait("established", conn)
    if kind == "read":
        wire.expect(read_response(1, 0), "the answer to the RTR")
        wire.read_msn = 1
    b.puppet.none("wc", conn, seconds=0.1)
    b.works(wire)
    wire.send(send(1, b"first"))
    b.puppet.wait("wc", conn, "recv", None, "success", 5)


@case
def ready_to_receive_by_write(b):
    peer_to_peer(b, "write")


@case
def ready_to_receive_by_read(b):
    peer_to_peer(b, "read")


@case
def responder_waits_for_the_first_fpdu(b):
    # The responder's application sends at once; nothing may go out before the initiator's first FPDU.
    wire = b.connect()
    b.puppet.ask(f"send {wire.conn} 100 -")
    wire.silent(0.5)
    wire.send(write(0, 0))
    segment = wire.get()
    require(segment.opcode == SEND and len(segment.data) == 100, str(segment))


# Stalling peers: started early, looked at in the end.


@case
def stalling_start_ups(b):
    begun = time.monotonic()
    stalled = []
    frame = start_frame(REQUEST_KEY, CRC, 1, b"data")
    for length in (0, 0, 1, 10, 16, 20, 21, 23):
        wire = b.open()
        wire.put(frame[:length])
        stalled.append(wire)
    # Meanwhile others are served.
    for _ in range(5):
        start = time.monotonic()
        b.works(b.connect())
        took = time.monotonic() - start
        require(took < 3, f"{took:.1f} s for another connection")
    for wire in stalled:
        left = START_UP_LIMIT - (time.monotonic() - begun)
        wire.ends(wait=max(left, 0.1), reset_allowed=True)


@case
def a_trickle_does_not_extend_the_start_up(b):
    # The limit holds for the whole exchange, not from octet to octet.
    wire = b.open()
    begun = time.monotonic()
    frame = start_frame(REQUEST_KEY, CRC, 1, bytes(100))
    try:
        for octet in frame:
            wire.put(bytes([octet]))
            time.sleep(0.5)
            if time.monotonic() - begun > START_UP_LIMIT:
                raise Failure("still open")
    except (BrokenPipeError, ConnectionResetError):
        pass


@case
def many_stalling_start_ups(b):
    for _ in range(100):
        b.open().put(b"MPA ID Req")
    b.works(b.connect())


# --- start-up: the device as initiator -------------------------------------------------------------


@case
def request_of_the_device(b):
    b.puppet.ask("data " + b"to you".hex())
    b.puppet.set(ird=6, ord=3)
    wire = b.called()
    request = wire.reply
    require(request.rev in (1, 2), f"revision {request.rev}")
    require(request.flags & CRC, "no CRC by default")
    require(not request.flags & (REJECT | 0x0F), f"flags {request.flags:#x}")
    require(request.data == b"to you", f"private data {request.data}")
    if request.rev == 2:
        require(request.flags & ENHANCED, "revision 2 without enhanced data")
        require(request.ird >= 6 and request.ord == 3 or request.p2p,
                f"IRD {request.ird} ORD {request.ord}")
    wire.silent(0.2)


@case
def reply_octet_by_octet(b):
    wire = b.called()
    request = wire.reply
    data = b"a reply"
    flags = CRC
    if request.rev == 2 and request.flags & ENHANCED:
        flags |= ENHANCED
        data = depths(request.ord, request.ird, bool(request.p2p), False, bool(request.write_rtr),
                      bool(request.read_rtr)) + data
    for octet in start_frame(REPLY_KEY, flags, request.rev, data):
        wire.put(bytes([octet]))
        time.sleep(0.005)
    event = b.puppet.wait("established", wire.conn)
    require(event[2] == b"a reply".hex(), f"private data {event[2]}")


@case
def crc_is_on_if_only_the_initiator_wants_it(b):
    wire = b.answered(flags=0)
    wire.crc = True
    b.puppet.ask(f"send {wire.conn} 10 -")
    segment = wire.get()
    require(segment.opcode == SEND, str(segment))
    wire.send(write(b.ram.key, b.ram.address, b"x"), bad_crc=True)
    wire.expect_terminate(2, 0, 2)


@case
def revision_1_reply(b):
    wire = b.called()
    wire.put(start_frame(REPLY_KEY, CRC, 1, b"old"))
    event = b.puppet.wait("established", wire.conn)
    require(event[2] == b"old".hex(), f"private data {event[2]}")
    b.puppet.ask(f"send {wire.conn} 10 -")
    require(wire.get().opcode == SEND, "no Send")


@case
def rejection_is_told_with_its_data(b):
    wire = b.called()
    flags = CRC | REJECT
    data = b"busy"
    if wire.reply.rev == 2 and wire.reply.flags & ENHANCED:
        flags |= ENHANCED
        data = depths(0, 0) + data
    wire.put(start_frame(REPLY_KEY, flags, wire.reply.rev, data))
    event = b.puppet.wait("rejected", wire.conn)
    require(event[2] == "-111", f"status {event[2]}")
    require(event[3] == b"busy".hex(), f"private data {event[3]}")
    wire.ends(reset_allowed=True)


def failed_start_up(b, frame, close=False):
    wire = b.called()
    wire.put(frame(wire.reply) if callable(frame) else frame)
    if close:
        wire.close()
    event = b.puppet.wait(None, wire.conn)
    require(event[0] in ("rejected", "unreachable", "error"), " ".join(event))
    require(event[2] not in ("0", "-111"), " ".join(event))
    if not close:
        wire.ends(reset_allowed=True)


@case
def enhanced_reply_without_its_data(b):
    for length in range(4):
        failed_start_up(b, start_frame(REPLY_KEY, CRC | ENHANCED, 2, bytes(length)))


@case
def reply_with_a_wrong_key(b):
    failed_start_up(b, start_frame(REQUEST_KEY, CRC, 1))
    failed_start_up(b, start_frame(b"MPA ID Rep frame", CRC, 1))
    failed_start_up(b, b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n")


@case
def reply_with_a_wrong_revision(b):
    for rev in (0, 3, 255):
        failed_start_up(b, start_frame(REPLY_KEY, CRC, rev))


@case
def reply_with_too_much_private_data(b):
    failed_start_up(b, start_frame(REPLY_KEY, CRC, 1, b"", 513))
    failed_start_up(b, start_frame(REPLY_KEY, CRC, 1, b"", 0xFFFF))


@case
def reply_cut_off(b):
    for length in (1, 15, 20, 25):
        failed_start_up(b, start_frame(REPLY_KEY, CRC, 1, bytes(10))[:length], close=True)


@case
def octets_behind_the_reply(b):
    # The responder may not send before the initiator's first FPDU.
    wire = b.called()
    data, flags = b"", CRC
    if wire.reply.rev == 2:
        flags |= ENHANCED
        data = depths(wire.reply.ord, wire.reply.ird, bool(wire.reply.p2p), False,
                      bool(wire.reply.write_rtr), bool(wire.reply.read_rtr))
    wire.put(start_frame(REPLY_KEY, flags, wire.reply.rev, data) + fpdu(send(1, b"early")))
    event = b.puppet.wait(None, wire.conn)
    if event[0] == "established":
        b.puppet.wait("disconnected", wire.conn)
    else:
        require(event[0] in ("rejected", "unreachable", "error"), " ".join(event))
    b.puppet.none("wc", wire.conn, "recv", None, "success")


@case
def reply_asks_for_more_than_the_initiator_serves(b):
    b.puppet.set(ird=2, ord=2)
    wire = b.called()
    if wire.reply.rev != 2:
        raise Skip("the device starts with revision 1")
    data = depths(8, wire.reply.ird + 1, bool(wire.reply.p2p), False, bool(wire.reply.write_rtr),
                  bool(wire.reply.read_rtr))
    wire.put(start_frame(REPLY_KEY, CRC | ENHANCED, 2, data))
    wire.expect_terminate(2, 0, 6)
    event = b.puppet.wait(None, wire.conn)
    require(event[0] in ("rejected", "unreachable", "error"), " ".join(event))


@case
def crc_off_on_both_sides(b):
    b.setting("crc", 0)
    wire = b.open()
    wire.start(flags=0)
    require(not wire.crc, "CRC although neither side wants it")
    wire.send(send(1, b"unchecked"), crc=False)
    b.puppet.wait("wc", None, "recv", None, "success", 9)
    wire.send(write(b.ram.key, b.ram.address, b"abcd"), crc=False)
    wire.send(read_request(1, 1, 0, 4, b.ram.key, b.ram.address), crc=False)
    wire.expect(read_response(1, 0, b"abcd"), "the Read Response")


@case
def crc_off_on_one_side_only(b):
    b.setting("crc", 0)
    wire = b.connect(flags=CRC)
    require(wire.reply.flags & CRC, "the reply declines CRC")
    b.works(wire)
    wire.send(send(1, b"x"), bad_crc=True)
    wire.expect_terminate(2, 0, 2)
    wire = b.called()
    require(not wire.reply.flags & CRC, "CRC asked for although switched off")


@case
def revision_1_by_setting(b):
    b.setting("mpa_rev", 1)
    b.puppet.ask("data " + b"rev 1".hex())
    wire = b.called()
    request = wire.reply
    require(request.rev == 1 and request.flags == CRC and request.data == b"rev 1",
            f"rev {request.rev} flags {request.flags:#x} data {request.data}")
    wire.put(start_frame(REPLY_KEY, CRC, 1))
    b.puppet.wait("established", wire.conn)
    b.puppet.ask(f"send {wire.conn} 4 -")
    require(wire.get().opcode == SEND, "no Send")
    b.works(wire)


@case
def peer_to_peer_by_setting(b):
    for value in (0, 1):
        b.setting("peer_to_peer", value)
        request = b.called().reply
        require(request.p2p == value, f"A={request.p2p} with the setting {value}")
        require(value or not (request.send_rtr or request.write_rtr or request.read_rtr),
                "RTR kinds without A")


@case
def no_common_ready_to_receive(b):
    # The Reply agrees to peer-to-peer with a kind that the device has not offered.
    wire = b.called()
    request = wire.reply
    if request.rev != 2 or not request.p2p:
        raise Skip("the device does not offer peer-to-peer")
    if request.send_rtr and request.write_rtr and request.read_rtr:
        raise Skip("the device offers all kinds")
    data = depths(request.ord, request.ird, True, not request.send_rtr, not request.write_rtr,
                  not request.read_rtr)
    wire.put(start_frame(REPLY_KEY, CRC | ENHANCED, 2, data))
    wire.expect_terminate(2, 0, 7)
    event = b.puppet.wait(None, wire.conn)
    require(event[0] in ("rejected", "unreachable", "error"), " ".join(event))


# --- FPDUs -----------------------------------------------------------------------------------------


@case
def a_send_arrives(b):
    wire = b.connect()
    wire.send(send(1, b"hello"))
    event = b.puppet.wait("wc", wire.conn, "recv")
    require(event[4:] == ["success", "5", b"hello".hex()], " ".join(event))


@case
def sends_of_all_kinds_arrive(b):
    wire = b.connect(recvs=8)
    wire.send(send(1, b"a"), send(2, b"", opcode=SEND_SE), send(3, b"ccc", opcode=SEND_SE), send(4))
    for length in (1, 0, 3, 0):
        event = b.puppet.wait("wc", wire.conn, "recv")
        require(event[4:6] == ["success", str(length)], " ".join(event))


@case
def segments_make_one_message(b):
    wire = b.connect()
    data = bytes(i * 3 & 255 for i in range(4000))
    cuts = [0, 1, 2, 500, 1900, 4000]
    wire.send(*[send(1, data[i:j], mo=i, last=int(j == 4000)) for i, j in zip(cuts, cuts[1:])])
    event = b.puppet.wait("wc", wire.conn, "recv")
    require(event[4:] == ["success", "4000", data[:64].hex()], " ".join(event))


@case
def octets_one_by_one(b):
    wire = b.connect()
    data = b"in small pieces"
    octets = fpdu(send(1, data)) + fpdu(write(b.ram.key, b.ram.address + 7, data))
    octets += fpdu(read_request(1, 5, 6, 15, b.ram.key, b.ram.address + 7))
    for i in range(0, len(octets)):
        wire.put(octets[i:i + 1])
        if i % 16 == 0:
            time.sleep(0.002)
    b.puppet.wait("wc", wire.conn, "recv", None, "success", 15, data.hex())
    wire.expect(read_response(5, 6, data), "the Read Response")


@case
def every_cut_position(b):
    # One stream of four FPDUs, cut in two at every position.
    wire = b.connect(recvs=64)
    data = b"0123456789"
    msn = 0
    whole = None
    position = 0
    while whole is None or position <= len(whole):
        msn += 1
        wire.read_msn += 1
        whole = (fpdu(send(msn, data[:7])) + fpdu(write(b.ram.key, b.ram.address, data)) +
                 fpdu(write(0, 0)) +
                 fpdu(read_request(wire.read_msn, 9, position, 10, b.ram.key, b.ram.address)))
        wire.put(whole[:position])
        time.sleep(0.001)
        wire.put(whole[position:])
        wire.expect(read_response(9, position, data), f"cut at {position}")
        b.puppet.wait("wc", wire.conn, "recv", None, "success", 7, data[:7].hex())
        b.puppet.ask(f"recv {wire.conn} 1")
        position += 1


@case
def nothing_happens_before_the_last_octet(b):
    wire = b.connect()
    b.clean()
    for frame, undo in ((fpdu(write(b.ram.key, b.ram.address, b"write")), True),
                        (fpdu(send(1, b"send")), False),
                        (fpdu(read_request(1, 1, 0, 4, b.ram.key, b.ram.address)), False)):
        for held in (1, 4, 5):
            if held != 1 and not undo:
                continue
            wire.put(frame[:-held])
            time.sleep(0.1)
            if undo:
                b.ram.untouched(0x55)
            b.puppet.none("wc", wire.conn, seconds=0.1)
            wire.silent(0.05)
            wire.put(frame[-held:])
            time.sleep(0.1)
            if undo:
                b.ram.fill(0x55)
            b.puppet.forget()
    wire.expect(read_response(1, 0, b"\x55" * 4), "the Read Response")


@case
def pad_octets_are_not_checked(b):
    wire = b.connect()
    wire.send(send(1, b"12345"), pad=b"\xff\xff\xff")
    b.puppet.wait("wc", wire.conn, "recv", None, "success", 5)


@case
def bad_crc_of_a_write(b):
    wire = b.connect()
    b.clean()
    wire.send(write(b.ram.key, b.ram.address, b"payload"), bad_crc=True)
    wire.expect_terminate(2, 0, 2)
    b.untouched()
    b.came_to_an_end(wire)


@case
def bad_crc_comes_before_all_other_faults(b):
    for bad in (write(b.ram.key ^ 0x100, 0, b"x"), send(9, b"x"), write(0, 0, b"x", dv=2),
                untagged(15, 7, 7, 7), read_request(5, 1, 1, 1, 1, 1)):
        wire = b.connect()
        wire.send(bad, bad_crc=True)
        wire.expect_terminate(2, 0, 2)


@case
def one_flipped_bit_anywhere(b):
    rng = random.Random(3)
    good = fpdu(write(b.ram.key, b.ram.address, bytes(range(40))))
    b.clean()
    for _ in range(12):
        bit = rng.randrange(16, len(good) * 8)  # the length field decides where the CRC is
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        wire = b.connect()
        wire.put(bytes(bad))
        wire.expect_terminate(2, 0, 2)
    b.untouched()


@case
def after_a_fault_all_is_dropped(b):
    # Valid Writes behind a bad frame change nothing and there is one Terminate only.
    wire = b.connect()
    b.clean()
    wire.put(fpdu(write(b.ram.key, b.ram.address, b"bad"), bad_crc=True) +
             fpdu(write(b.ram.key, b.ram.address, b"good")) * 20 + fpdu(send(1, b"good")))
    wire.expect_terminate(2, 0, 2)
    b.untouched()
    b.puppet.none("wc", wire.conn, "recv", None, "success")


@case
def the_first_fault_is_reported(b):
    wire = b.connect()
    first = write(b.ram.key ^ 1, b.ram.address, b"bad")
    wire.put(fpdu(first) + fpdu(send(77, b"bad")) + fpdu(write(0, 0, b"x", rv=3)))
    wire.expect_terminate(1, 1, 0, first)


@case
def terminate_arrives_while_the_peer_keeps_sending(b):
    # Unread data must not turn the end into a reset that eats the Terminate.
    wire = b.connect()
    bad = write(b.ram.key ^ 1, b.ram.address, b"bad")
    filler = fpdu(write(b.ram.key, b.ram.address, bytes(1000)))
    stop = threading.Event()

    def flood():
        try:
            while not stop.is_set():
                wire.sock.send(filler * 20)
        except OSError:
            pass

    wire.put(fpdu(bad))
    thread = threading.Thread(target=flood)
    thread.start()
    try:
        time.sleep(0.3)
        want = terminate(1, 1, 0, bad)
        got = wire.get()
        require(got.raw == want, describe(got))
    finally:
        stop.set()
        wire.sock.shutdown(socket.SHUT_RDWR)
        thread.join()


@case
def empty_ulpdu(b):
    # An FPDU without a segment: harmless or refused, at once.
    wire = b.connect()
    wire.send(b"")
    wire.send(read_request(1, 1, 0, 0, 0, 0))
    segment = wire.get()
    require(segment.opcode in (READ_RESPONSE, TERMINATE), str(segment))


@case
def segments_shorter_than_their_header(b):
    # Refused at once, without waiting for octets behind the FPDU.
    whole_tagged = write(b.ram.key, b.ram.address)
    whole_untagged = send(1)
    b.clean()
    for whole in (whole_tagged, whole_untagged):
        for length in range(1, len(whole)):
            wire = b.connect()
            wire.send(whole[:length])
            segment = wire.get()
            require(segment.opcode == TERMINATE, f"{length}: {segment}")
            wire.ends()
    b.untouched()


@case
def longest_ulpdu(b):
    wire = b.connect()
    data = os.urandom(65535 - 14)
    wire.send(write(b.large.key, b.large.address, data))
    wire.send(read_request(1, 1, 0, 0, 0, 0))
    wire.expect(read_response(1, 0), "the Read Response")
    require(b.large.peek(0, len(data)) == data, "data differs")


@case
def end_inside_an_fpdu(b):
    for count in (1, 2, 10, 20):
        wire = b.connect()
        b.clean()
        wire.put(fpdu(write(b.ram.key, b.ram.address, b"1234"))[:count])
        wire.sock.shutdown(socket.SHUT_WR)
        b.puppet.wait("disconnected", wire.conn)
        b.puppet.wait("wc", wire.conn, "recv", None, "flushed")
        b.ram.untouched(0x55)


@case
def reset_inside_an_fpdu(b):
    wire = b.connect()
    wire.put(fpdu(send(1, bytes(100)))[:50])
    time.sleep(0.05)
    wire.reset()
    b.puppet.wait("disconnected", wire.conn)
    b.puppet.wait("wc", wire.conn, "recv", None, "flushed")


@case
def urgent_data_does_no_harm(b):
    wire = b.connect(recvs=32)
    for msn in range(1, 20):
        frame = fpdu(send(msn, bytes(50)))
        try:
            wire.put(frame[:30])
            wire.sock.send(frame[30:31], socket.MSG_OOB)
            wire.put(frame[31:])
        except OSError:
            break
    time.sleep(0.2)
    b.works(b.connect())


@case
def graceful_end(b):
    wire = b.connect()
    wire.send(send(1, b"last words"))
    wire.sock.shutdown(socket.SHUT_WR)
    b.puppet.wait("wc", wire.conn, "recv", None, "success", 10)
    b.puppet.wait("disconnected", wire.conn)
    for _ in range(3):
        b.puppet.wait("wc", wire.conn, "recv", None, "flushed")
    wire.ends()


@case
def disconnect_is_graceful(b):
    wire = b.connect()
    wire.send(write(0, 0))
    b.puppet.ask(f"send {wire.conn} 3000 -")
    b.puppet.wait("wc", wire.conn, "send", None, "success")
    b.puppet.ask(f"disconnect {wire.conn}")
    first, data = wire.get_message()
    require(first.opcode == SEND and len(data) == 3000, str(first))
    wire.ends()


@case
def half_close_behind_a_read_request(b):
    # The Response still arrives completely.
    wire = b.connect()
    b.large.poke(0, b"tail")
    wire.send(read_request(1, 3, 0, 1 << 20, b.large.key, b.large.address))
    wire.sock.shutdown(socket.SHUT_WR)
    first, data = wire.get_message()
    require(first.opcode == READ_RESPONSE and len(data) == 1 << 20, str(first))
    wire.ends()


@case
def half_close_of_a_slow_reader(b):
    # What was packed and has found no room in the socket yet is part of the Response too.
    wire = b.connect(rcvbuf=1 << 14)
    wire.pace = 0.02
    wire.send(read_request(1, 3, 0, 1 << 20, b.large.key, b.large.address))
    wire.sock.shutdown(socket.SHUT_WR)
    first, data = wire.get_message()
    require(first.opcode == READ_RESPONSE and len(data) == 1 << 20, str(first))
    wire.ends()


@case
def markers_are_inserted_when_asked_for(b):
    wire = b.connect(flags=CRC | MARKERS)
    b.large.poke(0, bytes(range(256)) * 4)
    wire.read_msn = 0
    for size in (1, 100, 600, 1400, 5000):
        wire.read_msn += 1
        wire.send(read_request(wire.read_msn, 1, 0, size, b.large.key, b.large.address))
        first, data = wire.get_message()
        require(first.opcode == READ_RESPONSE and len(data) == size, f"{size}: {first}")
        require(data[:256] == (bytes(range(256)) * 4)[:min(size, 256)], f"{size}: data differs")


# --- DDP and RDMAP: one bad segment ----------------------------------------------------------------
#
# name: (segment, layer, type, code). For each: this Terminate octet by octet, no octet of any region
# written, the QP in error, an event, the receives flushed.

REFUSED = {
    # DDP header
    "tagged_with_ddp_version_0": lambda b: (write(b.ram.key, b.ram.address, b"x", dv=0), 1, 1, 4),
    "tagged_with_ddp_version_2": lambda b: (write(b.ram.key, b.ram.address, b"x", dv=2), 1, 1, 4),
    "tagged_with_ddp_version_3": lambda b: (write(b.ram.key, b.ram.address, b"x", dv=3), 1, 1, 4),
    "untagged_with_ddp_version_0": lambda b: (send(1, b"x", dv=0), 1, 2, 6),
    "untagged_with_ddp_version_2": lambda b: (send(1, b"x", dv=2), 1, 2, 6),
    "untagged_with_ddp_version_3": lambda b: (send(1, b"x", dv=3), 1, 2, 6),
    # RDMAP control
    "write_with_rdmap_version_0": lambda b: (write(b.ram.key, b.ram.address, b"x", rv=0), 0, 2, 5),
    "write_with_rdmap_version_2": lambda b: (write(b.ram.key, b.ram.address, b"x", rv=2), 0, 2, 5),
    "send_with_rdmap_version_3": lambda b: (send(1, b"x", rv=3), 0, 2, 5),
    "untagged_opcode_8": lambda b: (untagged(8, 0, 1, data=bytes(8)), 0, 2, 6),
    "untagged_opcode_9": lambda b: (untagged(9, 0, 1, data=bytes(8)), 0, 2, 6),
    "atomic_request_with_an_unknown_stag":
        lambda b: (untagged(10, 1, 1, data=bytes(52)), 0, 1, 0),
    "atomic_response_that_nobody_waits_for":
        lambda b: (untagged(11, 3, 1, data=bytes(12)), 1, 2, 2),
    "untagged_opcode_12": lambda b: (untagged(12, 0, 1), 0, 2, 6),
    "untagged_opcode_13": lambda b: (untagged(13, 0, 1), 0, 2, 6),
    "untagged_opcode_14": lambda b: (untagged(14, 0, 1), 0, 2, 6),
    "untagged_opcode_15": lambda b: (untagged(15, 0, 1), 0, 2, 6),
    "tagged_opcode_12": lambda b: (tagged(12, b.ram.key, b.ram.address, b"x"), 0, 2, 6),
    "tagged_opcode_15": lambda b: (tagged(15, b.ram.key, b.ram.address, b"x"), 0, 2, 6),
    "send_in_the_tagged_model": lambda b: (tagged(SEND, b.ram.key, b.ram.address, b"x"), 0, 2, 6),
    "read_request_in_the_tagged_model":
        lambda b: (tagged(READ_REQUEST, b.ram.key, b.ram.address, bytes(28)), 0, 2, 6),
    "terminate_in_the_tagged_model":
        lambda b: (tagged(TERMINATE, b.ram.key, b.ram.address, bytes(4)), 0, 2, 6),
    "write_in_the_untagged_model": lambda b: (untagged(WRITE, 0, 1, data=b"x"), 0, 2, 6),
    "read_response_in_the_untagged_model":
        lambda b: (untagged(READ_RESPONSE, 0, 1, data=b"x"), 0, 2, 6),
    "unasked_read_response": lambda b: (read_response(b.ram.key, b.ram.address, b"x"), 0, 2, 6),
    # Untagged buffers
    "send_to_queue_1": lambda b: (send(1, b"x", qn=1), 1, 2, 1),
    "send_to_queue_2": lambda b: (send(1, b"x", qn=2), 1, 2, 1),
    "send_to_queue_4": lambda b: (send(1, b"x", qn=4), 1, 2, 1),
    "send_to_the_last_queue": lambda b: (send(1, b"x", qn=0xFFFFFFFF), 1, 2, 1),
    "read_request_to_queue_0":
        lambda b: (read_request(1, 1, 0, 8, b.ram.key, b.ram.address, qn=0), 1, 2, 1),
    "read_request_to_queue_9":
        lambda b: (read_request(1, 1, 0, 8, b.ram.key, b.ram.address, qn=9), 1, 2, 1),
    "send_with_msn_0": lambda b: (send(0, b"x"), 1, 2, 3),
    "send_with_msn_2": lambda b: (send(2, b"x"), 1, 2, 3),
    "send_with_the_last_msn": lambda b: (send(0xFFFFFFFF, b"x"), 1, 2, 3),
    "read_request_with_msn_0":
        lambda b: (read_request(0, 1, 0, 8, b.ram.key, b.ram.address), 1, 2, 3),
    "read_request_with_msn_2":
        lambda b: (read_request(2, 1, 0, 8, b.ram.key, b.ram.address), 1, 2, 3),
    "send_behind_its_buffer": lambda b: (send(1, b"x", mo=4096), 1, 2, 4),
    "send_far_behind_its_buffer": lambda b: (send(1, b"x", mo=0xFFFFFFFF), 1, 2, 4),
    "read_request_with_an_offset":
        lambda b: (read_request(1, 1, 0, 8, b.ram.key, b.ram.address, mo=4), 1, 2, 4),
    "send_longer_than_its_buffer": lambda b: (send(1, bytes(4097)), 1, 2, 5),
    "send_across_the_end_of_its_buffer": lambda b: (send(1, bytes(2), mo=4095), 1, 2, 5),
    # Tagged buffers
    "write_to_an_unknown_stag": lambda b: (write(0x7F000000, b.ram.address, b"x"), 1, 1, 0),
    "write_to_stag_0": lambda b: (write(0, b.ram.address, b"x"), 1, 1, 0),
    "write_to_the_last_stag": lambda b: (write(0xFFFFFFFF, b.ram.address, b"x"), 1, 1, 0),
    "write_with_a_wrong_key_octet": lambda b: (write(b.ram.key ^ 0x01, b.ram.address, b"x"), 1, 1, 0),
    "write_without_the_right": lambda b: (write(b.no_write.key, b.no_write.address, b"x"), 1, 1, 0),
    "write_to_another_pd": lambda b: (write(b.foreign.key, b.foreign.address, b"x"), 1, 1, 2),
    "write_below": lambda b: (write(b.ram.key, b.ram.address - 1, b"xx"), 1, 1, 1),
    "write_at_the_end": lambda b: (write(b.ram.key, b.ram.address + 8192, b"x"), 1, 1, 1),
    "write_past_the_end": lambda b: (write(b.ram.key, b.ram.address + 8190, b"xxx"), 1, 1, 1),
    "write_to_address_0": lambda b: (write(b.ram.key, 0, b"x"), 1, 1, 1),
    "write_that_wraps": lambda b: (write(b.ram.key, 2**64 - 8, bytes(16)), 1, 1, 3),
    # Read Requests
    "read_of_an_unknown_stag":
        lambda b: (read_request(1, 1, 0, 8, 0x7F000000, b.ram.address), 0, 1, 0),
    "read_with_a_wrong_key_octet":
        lambda b: (read_request(1, 1, 0, 8, b.ram.key ^ 0x80, b.ram.address), 0, 1, 0),
    "read_below": lambda b: (read_request(1, 1, 0, 8, b.ram.key, b.ram.address - 1), 0, 1, 1),
    "read_at_the_end": lambda b: (read_request(1, 1, 0, 1, b.ram.key, b.ram.address + 8192), 0, 1, 1),
    "read_past_the_end":
        lambda b: (read_request(1, 1, 0, 8193, b.ram.key, b.ram.address), 0, 1, 1),
    "read_of_2_gib":
        lambda b: (read_request(1, 1, 0, 0x80000000, b.ram.key, b.ram.address), 0, 1, 1),
    "read_of_4_gib":
        lambda b: (read_request(1, 1, 0, 0xFFFFFFFF, b.ram.key, b.ram.address), 0, 1, 1),
    "read_without_the_right":
        lambda b: (read_request(1, 1, 0, 8, b.no_read.key, b.no_read.address), 0, 1, 2),
    "read_of_another_pd":
        lambda b: (read_request(1, 1, 0, 8, b.foreign.key, b.foreign.address), 0, 1, 3),
    "read_that_wraps": lambda b: (read_request(1, 1, 0, 16, b.ram.key, 2**64 - 8), 0, 1, 4),
    "read_request_one_octet_short":
        lambda b: (read_request(1, 1, 0, 8, b.ram.key, b.ram.address)[:-1], 0, 2, 7),
    "read_request_one_octet_long":
        lambda b: (read_request(1, 1, 0, 8, b.ram.key, b.ram.address) + b"x", 0, 2, 7),
    # Send with Invalidate
    "invalidate_of_an_unknown_stag":
        lambda b: (send(1, b"x", opcode=SEND_INV, inv=0x7F000000), 0, 2, 9),
    "invalidate_of_a_shared_region":
        lambda b: (send(1, b"x", opcode=SEND_INV, inv=b.ram.key), 0, 1, 9),
    "solicited_invalidate_of_a_shared_region":
        lambda b: (send(1, opcode=SEND_SE_INV, inv=b.ram.key), 0, 1, 9),
    "invalidate_in_another_pd":
        lambda b: (send(1, b"x", opcode=SEND_INV, inv=b.foreign.key), 0, 1, 9),
}


def refused(name, make):
    def run(b):
        other = b.connect()
        wire = b.connect()
        b.clean()
        bad, layer, etype, code = make(b)
        wire.send(bad)
        # Only a Read Request of full length has a header to quote.
        read = not bad[0] & 0x80 and bad[1] & 15 == READ_REQUEST and len(bad) == 46
        wire.expect_terminate(layer, etype, code, bad, read)
        b.untouched()
        b.came_to_an_end(wire)
        for _ in range(4):
            event = b.puppet.wait("wc", wire.conn, "recv")
            require(event[4] != "success", " ".join(event))
        b.works(other)

    run.__name__ = name
    CASES.append(run)


for _name, _make in REFUSED.items():
    refused(_name, _make)


@case
def no_receive_buffer(b):
    for data in (b"x", b""):
        wire = b.connect(recvs=0)
        bad = send(1, data)
        wire.send(bad)
        wire.expect_terminate(1, 2, 2, bad)
        b.came_to_an_end(wire)


@case
def receive_buffers_used_up(b):
    wire = b.connect(recvs=2)
    wire.send(send(1, b"1"), send(2, b"2"))
    bad = send(3, b"3")
    wire.send(bad)
    wire.expect_terminate(1, 2, 2, bad)
    for _ in range(2):
        b.puppet.wait("wc", wire.conn, "recv", None, "success", 1)


@case
def msn_repeated(b):
    wire = b.connect()
    wire.send(send(1, b"1"))
    bad = send(1, b"again")
    wire.send(bad)
    wire.expect_terminate(1, 2, 3, bad)
    b.puppet.wait("wc", wire.conn, "recv", None, "success", 1)


@case
def read_msn_repeated(b):
    wire = b.connect()
    b.works(wire)
    bad = read_request(1, 1, 0, 8, b.ram.key, b.ram.address)
    wire.send(bad)
    wire.expect_terminate(1, 2, 3, bad, read=True)


@case
def last_segment_leaves_the_region(b):
    wire = b.connect()
    b.clean()
    good = [write(b.ram.key, b.ram.address + 4096 * i, bytes(4096), last=0) for i in range(2)]
    bad = write(b.ram.key, b.ram.address + 8192, b"too far")
    wire.send(*good, bad)
    wire.expect_terminate(1, 1, 1, bad)


@case
def last_segment_leaves_the_receive_buffer(b):
    wire = b.connect()
    bad = send(1, bytes(97), mo=4000)
    wire.send(send(1, bytes(4000), last=0), bad)
    wire.expect_terminate(1, 2, 5, bad)
    event = b.puppet.wait("wc", wire.conn, "recv")
    require(event[4] == "loc_len", " ".join(event))


@case
def opcode_changes_inside_a_message(b):
    wire = b.connect()
    bad = send(1, b"b", mo=1, opcode=SEND_SE)
    wire.send(send(1, b"a", last=0), bad)
    wire.expect_terminate(0, 2, 6, bad)


@case
def another_message_inside_a_message(b):
    wire = b.connect()
    bad = read_request(1, 1, 0, 8, b.ram.key, b.ram.address)
    wire.send(send(1, b"a", last=0), bad)
    wire.expect_terminate(0, 2, 6, bad, read=True)


# --- DDP and RDMAP: what must be accepted ----------------------------------------------------------


@case
def reserved_bits_are_ignored(b):
    wire = b.connect()
    wire.send(send(1, b"reserved", ddp_reserved=15, rdmap_reserved=3, inv=0xDEADBEEF))
    b.puppet.wait("wc", wire.conn, "recv", None, "success", 8)
    wire.send(write(b.ram.key, b.ram.address, b"also", ddp_reserved=15, rdmap_reserved=3))
    wire.send(read_request(1, 1, 0, 4, b.ram.key, b.ram.address, ddp_reserved=15, rdmap_reserved=3,
                           inv=b.ram.key))
    wire.expect(read_response(1, 0, b"also"), "the Read Response")


@case
def nothing_is_written_anywhere(b):
    # A tagged message without payload: neither STag nor TO is looked at.
    wire = b.connect()
    wire.send(write(0xFFFFFFFF, 2**64 - 1), write(0, 0), write(b.foreign.key, 5),
              write(b.ram.key, b.ram.address + 8192))
    b.works(wire)


@case
def empty_segments_inside_a_write(b):
    wire = b.connect()
    wire.send(write(0, 0, last=0), write(b.ram.key, b.ram.address, b"ab", last=0), write(0, 0, last=0),
              write(b.ram.key, b.ram.address + 2, b"cd"))
    wire.send(read_request(1, 1, 0, 4, b.ram.key, b.ram.address))
    wire.expect(read_response(1, 0, b"abcd"), "the Read Response")


@case
def empty_segment_then_stag_0(b):
    wire = b.connect()
    bad = write(0, 0, b"x")
    wire.send(write(0, 0, last=0), bad)
    wire.expect_terminate(1, 1, 0, bad)


@case
def each_segment_of_a_write_goes_where_it_says(b):
    wire = b.connect()
    b.clean()
    wire.send(write(b.ram.key, b.ram.address + 100, b"one", last=0),
              write(b.ram.key, b.ram.address + 10, b"two"))
    wire.send(read_request(1, 1, 0, 0, 0, 0))
    wire.expect(read_response(1, 0), "the Read Response")
    memory = b.ram.peek(0, 200)
    require(memory[100:103] == b"one" and memory[10:13] == b"two", memory.hex())


@case
def segments_of_a_send_out_of_order(b):
    # Not what a sender should do; placed by offset.
    wire = b.connect()
    wire.send(send(1, b"cd", mo=2, last=0), send(1, b"ab", mo=0, last=0), send(1, b"ef", mo=4))
    b.puppet.wait("wc", wire.conn, "recv", None, "success", 6, b"abcdef".hex())


@case
def read_requests_are_answered(b):
    wire = b.connect()
    data = bytes(i * 11 & 255 for i in range(8192))
    b.ram.poke(0, data)
    msn = 0
    for sink, to, offset, size in ((0, 0, 0, 1), (0xFFFFFFFF, 2**64 - 100, 1, 7), (5, 3, 4000, 4192),
                                   (6, 2**32 - 1, 8191, 1), (7, 1, 8192, 0)):
        msn += 1
        wire.send(read_request(msn, sink, to, size, b.ram.key, b.ram.address + offset))
        first, got = wire.get_message()
        require(first.opcode == READ_RESPONSE and first.stag == sink and first.to == to, str(first))
        require(got == data[offset:offset + size], f"{size} at {offset}: data differs")


@case
def read_of_nothing_needs_no_stag(b):
    wire = b.connect()
    wire.send(read_request(1, 77, 88, 0, 0xFFFFFFFF, 2**64 - 1))
    wire.expect(read_response(77, 88), "the Read Response")
    wire.send(read_request(2, 77, 89, 0, b.no_read.key, 0))
    wire.expect(read_response(77, 89), "the Read Response")


@case
def read_of_nothing_behind_other_work(b):
    # While the responder is busy with a large Response, an empty one waits its turn.
    wire = b.connect(rcvbuf=8192)
    b.large.poke(0, b"head")
    wire.send(read_request(1, 1, 0, 1 << 20, b.large.key, b.large.address),
              read_request(2, 2, 22, 0, 0, 0),
              read_request(3, 3, 33, 4, b.large.key, b.large.address))
    time.sleep(0.1)
    first, data = wire.get_message()
    require(first.stag == 1 and len(data) == 1 << 20, str(first))
    wire.expect(read_response(2, 22), "the empty Response")
    wire.expect(read_response(3, 33, b"head"), "the third Response")


@case
def as_many_reads_as_granted(b):
    b.puppet.set(ird=4)
    wire = b.open(rcvbuf=8192)
    reply = wire.start(CRC | ENHANCED, 2, depths(4, 4))
    require(reply.ird == 4, f"IRD {reply.ird}")
    size = 200000
    wire.put(b"".join(fpdu(read_request(i, i, 0, size, b.large.key, b.large.address))
                      for i in range(1, 5)))
    for i in range(1, 5):
        first, data = wire.get_message()
        require(first.stag == i and len(data) == size, str(first))


@case
def one_read_more_than_granted(b):
    b.puppet.set(ird=2)
    wire = b.open(rcvbuf=8192)
    reply = wire.start(CRC | ENHANCED, 2, depths(4, 2))
    require(reply.ird == 2, f"IRD {reply.ird}")
    size = 2 << 20
    requests = [read_request(i, i, 0, size, b.large.key, b.large.address) for i in range(1, 4)]
    wire.send(*requests)
    time.sleep(0.3)
    wire.expect_terminate(1, 2, 2, requests[2], read=False, skip=(READ_RESPONSE,))


@case
def a_read_sees_the_writes_before_it(b):
    wire = b.connect()
    for i in range(1, 30):
        data = bytes([i]) * 64
        wire.put(fpdu(write(b.ram.key, b.ram.address, data)) +
                 fpdu(read_request(i, 1, 0, 64, b.ram.key, b.ram.address)))
        wire.expect(read_response(1, 0, data), f"Read {i}")


@case
def fault_in_the_middle_of_a_response(b):
    # The Terminate goes out at the next FPDU boundary, in the middle of a long Response.
    wire = b.connect(rcvbuf=8192)
    wire.send(read_request(1, 1, 0, 2 << 20, b.large.key, b.large.address))
    bad = write(b.ram.key ^ 1, b.ram.address, b"x")
    time.sleep(0.1)
    wire.send(bad)
    time.sleep(0.1)
    wire.expect_terminate(1, 1, 0, bad, skip=(READ_RESPONSE,))


@case
def invalidate_leaves_a_shared_region_valid(b):
    wire, other = b.connect(), b.connect()
    bad = send(1, b"x", opcode=SEND_INV, inv=b.ram.key)
    wire.send(bad)
    wire.expect_terminate(0, 1, 9, bad)
    b.works(other)


@case
def region_released_between_reads(b):
    wire = b.connect()
    region = b.puppet.region(4096)
    wire.send(read_request(1, 1, 0, 4, region.key, region.address))
    wire.expect(read_response(1, 0, bytes(4)), "the Read Response")
    b.puppet.ask(f"dereg {region.number}")
    bad = read_request(2, 1, 0, 4, region.key, region.address)
    wire.send(bad)
    wire.expect_terminate(0, 1, 0, bad, read=True)


@case
def region_released_between_writes(b):
    wire = b.connect()
    region = b.puppet.region(4096)
    wire.send(write(region.key, region.address, b"fine"))
    b.works(wire)
    b.puppet.ask(f"dereg {region.number}")
    bad = write(region.key, region.address, b"gone")
    wire.send(bad)
    wire.expect_terminate(1, 1, 0, bad)


# --- Terminate received ----------------------------------------------------------------------------


def terminated(b, wire):
    b.came_to_an_end(wire)
    wire.ends(reset_allowed=True)


@case
def terminate_ends_the_connection(b):
    wire = b.connect()
    wire.send(terminate(0, 1, 2, write(1, 2, b"x")))
    terminated(b, wire)
    for _ in range(4):
        b.puppet.wait("wc", wire.conn, "recv", None, "flushed")


@case
def terminate_of_every_shape(b):
    bad_write, bad_read = write(1, 2, b"x"), read_request(1, 1, 0, 8, 1, 1)
    for frame in (terminate(0, 0, 0xFF), terminate(1, 1, 1, bad_write), terminate(1, 2, 5, send(1, b"x")),
                  terminate(0, 1, 2, bad_read, read=True), terminate(2, 0, 2),
                  untagged(TERMINATE, 2, 1, data=struct.pack(">I", 0xFFFF1FFF))):
        wire = b.connect()
        wire.send(frame)
        terminated(b, wire)


@case
def terminate_without_receive_buffers(b):
    wire = b.connect(recvs=0)
    wire.send(terminate(0, 0, 0))
    terminated(b, wire)


@case
def terminate_inside_a_message(b):
    wire = b.connect()
    wire.send(send(1, b"a", last=0), terminate(2, 0, 2))
    terminated(b, wire)


@case
def terminate_with_a_wrong_number(b):
    for frame in (untagged(TERMINATE, 2, 2, data=bytes(4)), untagged(TERMINATE, 0, 1, data=bytes(4)),
                  untagged(TERMINATE, 2, 1, mo=4, data=bytes(4)), untagged(TERMINATE, 2, 1, data=b""),
                  untagged(TERMINATE, 2, 1, data=bytes(3)),
                  untagged(TERMINATE, 2, 1, data=struct.pack(">I", 0x0102E000))):
        wire = b.connect()
        wire.send(frame)
        b.puppet.wait("disconnected", wire.conn)
        require(b.puppet.ask(f"state {wire.conn}") == "6", "the QP is not in error")
    b.works(b.connect())


# --- what the device sends -------------------------------------------------------------------------


def begun(b, **settings):
    """A connection on which the device may send."""
    wire = b.connect(**settings)
    wire.send(write(0, 0))
    return wire


@case
def frames_of_sends(b):
    wire = begun(b)
    for msn, (length, flags, opcode) in enumerate(((0, "-", SEND), (1, "-", SEND), (2, "s", SEND_SE),
                                                   (3, "u", SEND), (4, "-", SEND), (100, "s", SEND_SE)),
                                                  start=1):
        b.puppet.ask(f"send {wire.conn} {length} {flags}")
        segment = wire.get()
        require(segment.raw == send(msn, segment.data, opcode=opcode), f"{length}: {segment}")
        require(len(segment.data) == length, f"{length}: {segment}")


@case
def frame_of_send_with_invalidate(b):
    wire = begun(b)
    b.puppet.ask(f"sendinv {wire.conn} 5 0x12345678")
    segment = wire.get()
    require(segment.raw == send(1, segment.data, opcode=SEND_INV, inv=0x12345678), str(segment))


@case
def long_messages_are_cut(b):
    wire = begun(b)
    for msn, length in enumerate((1442, 1443, 1460, 5000, 100000, 1 << 20), start=1):
        b.puppet.ask(f"send {wire.conn} {length} -")
        first, data = wire.get_message()
        require(first.opcode == SEND and first.qn == 0 and first.msn == msn and first.mo == 0 and
                first.inv == 0 and len(data) == length, f"{length}: {first}")
        b.puppet.wait("wc", wire.conn, "send", None, "success")


@case
def frames_of_a_write(b):
    wire = begun(b)
    data = bytes(i * 5 & 255 for i in range(8192))
    b.ram.poke(0, data)
    b.puppet.ask(f"write {wire.conn} {b.ram.number} 100 5000 {2**64 - 6000} 0xfeedbeef -"
                 .replace("0xfeedbeef", str(0xFEEDBEEF)))
    first, got = wire.get_message()
    require(first.opcode == WRITE and first.stag == 0xFEEDBEEF and first.to == 2**64 - 6000, str(first))
    require(got == data[100:5100], "data differs")


@case
def segments_fit_the_path(b):
    # No FPDU is longer than a TCP segment.
    mss = b.open().sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    wire = begun(b)
    mss = min(mss, wire.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG))
    if mss > 60000:
        raise Skip(f"an MSS of {mss} does not cut")
    b.puppet.ask(f"send {wire.conn} 100000 -")
    longest, total = 0, 0
    while total < 100000:
        segment = wire.get()
        total += len(segment.data)
        longest = max(longest, 2 + len(segment.raw) + -(2 + len(segment.raw)) % 4 + 4)
    require(longest <= mss, f"an FPDU of {longest} octets with an MSS of {mss}")
    require(longest > mss - 16, f"no FPDU longer than {longest} with an MSS of {mss}")


def read_pending(b, wire, size=64):
    """The device has sent a Read Request: its sink STag, TO and MSN."""
    b.puppet.ask(f"read {wire.conn} {b.ram.number} 512 {size} 4096 77 -")
    request = wire.get()
    require(request.opcode == READ_REQUEST and request.qn == 1 and request.mo == 0 and
            request.inv == 0 and len(request.data) == 28, str(request))
    sink, to, length, source, source_to = struct.unpack(">IQIIQ", request.data)
    require(length == size and source == 77 and source_to == 4096, str(request))
    return sink, to, request.msn


@case
def read_of_the_device(b):
    wire = begun(b)
    data = bytes(range(64))
    for msn in (1, 2, 3):
        b.ram.fill(0x55)
        sink, to, number = read_pending(b, wire)
        require(number == msn, f"MSN {number} instead of {msn}")
        b.puppet.none("wc", wire.conn, seconds=0.05)
        wire.send(read_response(sink, to, data[:10], last=0), read_response(sink, to + 10, data[10:]))
        b.puppet.wait("wc", wire.conn, "send", None, "success", 64)
        require(b.ram.peek(512, 64) == data, "data differs")
        require(b.ram.peek(500, 12) + b.ram.peek(576, 12) == b"\x55" * 24, "written beside the sink")


def bad_response(b, frames, layer, etype, code, bad=-1, size=64):
    wire = begun(b)
    b.clean()
    sink, to, _ = read_pending(b, wire, size)
    segments = frames(sink, to)
    wire.send(*segments)
    wire.expect_terminate(layer, etype, code, segments[bad])
    event = b.puppet.wait("wc", wire.conn, "send")
    require(event[4] != "success", " ".join(event))
    b.came_to_an_end(wire, event=False)
    require(b.ram.peek(0, 512) + b.ram.peek(512 + size, 1000) == b"\x55" * 1512, "written beside the sink")


@case
def read_response_with_another_stag(b):
    bad_response(b, lambda s, t: [read_response(s ^ 0x100, t, bytes(64))], 1, 1, 0)


@case
def read_response_to_another_region(b):
    # A valid region with all rights, but not the sink of this Read.
    bad_response(b, lambda s, t: [read_response(b.no_write.key, b.no_write.address, bytes(64))], 1, 1, 0)
    b.no_write.untouched(0x55)


@case
def read_response_below_its_sink(b):
    bad_response(b, lambda s, t: [read_response(s, t - 1, bytes(64))], 1, 1, 1)


@case
def read_response_behind_its_sink(b):
    bad_response(b, lambda s, t: [read_response(s, t + 64, bytes(1))], 1, 1, 1)


@case
def read_response_too_long(b):
    bad_response(b, lambda s, t: [read_response(s, t, bytes(65))], 1, 1, 1)


@case
def second_segment_of_a_read_response_too_long(b):
    bad_response(b, lambda s, t: [read_response(s, t, bytes(32), last=0),
                                  read_response(s, t + 32, bytes(33))], 1, 1, 1)


@case
def read_response_that_ends_early(b):
    bad_response(b, lambda s, t: [read_response(s, t, bytes(63))], 0, 2, 7)


@case
def read_response_of_two_segments_that_ends_early(b):
    bad_response(b, lambda s, t: [read_response(s, t, bytes(10), last=0),
                                  read_response(s, t + 10, bytes(10))], 0, 2, 7)


@case
def empty_read_response_to_a_full_request(b):
    bad_response(b, lambda s, t: [read_response(s, t)], 0, 2, 7)


@case
def empty_read_response_names_anything(b):
    wire = begun(b)
    read_pending(b, wire, size=0)
    wire.send(read_response(0x12345678, 99))
    b.puppet.wait("wc", wire.conn, "send", None, "success", 0)


@case
def read_answered_twice(b):
    wire = begun(b)
    sink, to, _ = read_pending(b, wire)
    answer = read_response(sink, to, bytes(64))
    wire.send(answer)
    b.puppet.wait("wc", wire.conn, "send", None, "success")
    wire.send(answer)
    wire.expect_terminate(0, 2, 6, answer)


@case
def no_more_reads_than_granted(b):
    b.puppet.set(ord=8)
    wire = b.open()
    wire.start(CRC | ENHANCED, 2, depths(3, 4))
    wire.conn = int(b.puppet.wait("request")[1])
    b.puppet.wait("established", wire.conn)
    wire.send(write(0, 0))
    for i in range(8):
        b.puppet.ask(f"read {wire.conn} {b.ram.number} {i * 8} 8 {i} 77 -")
    pending = [wire.get() for _ in range(3)]
    wire.silent(0.3)
    for i in range(8):
        sink, to = struct.unpack(">IQ", pending.pop(0).data[:12])
        wire.send(read_response(sink, to, bytes([i]) * 8))
        if i < 5:
            pending.append(wire.get())
        wire.silent(0.02)
        b.puppet.wait("wc", wire.conn, "send", None, "success", 8)


@case
def sends_complete_behind_reads(b):
    wire = begun(b)
    sink, to, _ = read_pending(b, wire)
    b.puppet.ask(f"send {wire.conn} 10 -")
    require(wire.get().opcode == SEND, "the Send waits")
    b.puppet.none("wc", wire.conn, seconds=0.3)
    wire.send(read_response(sink, to, bytes(64)))
    first = b.puppet.wait("wc", wire.conn, "send")
    second = b.puppet.wait("wc", wire.conn, "send")
    require(int(first[3]) < int(second[3]) and first[5] == "64", f"{first} {second}")


@case
def fenced_send_waits_for_the_read(b):
    wire = begun(b)
    sink, to, _ = read_pending(b, wire)
    b.puppet.ask(f"send {wire.conn} 10 f")
    wire.silent(0.3)
    wire.send(read_response(sink, to, bytes(64)))
    require(wire.get().opcode == SEND, "no Send behind the fence")


@case
def own_fault_sends_no_octet(b):
    # A Send from a region that does not exist: a Terminate in its place.
    wire = begun(b)
    b.puppet.ask(f"badsend {wire.conn}")
    got = wire.get()
    require(got.opcode == TERMINATE and got.qn == 2 and got.msn == 1 and got.mo == 0, str(got))
    word = struct.unpack(">I", got.data[:4])[0]
    require(word & 0xFF00FFFF == 0 and len(got.data) == 4, describe(got))
    wire.ends()
    event = b.puppet.wait("wc", wire.conn, "send")
    require(event[4] == "loc_prot", " ".join(event))


@case
def terminate_fails_a_pending_read(b):
    wire = begun(b)
    b.puppet.ask(f"read {wire.conn} {b.ram.number} 0 8 4096 77 -")
    request = wire.get()
    b.puppet.ask(f"send {wire.conn} 10 -")
    wire.get()
    wire.send(terminate(0, 1, 2, request.raw, read=True))
    event = b.puppet.wait("wc", wire.conn, "send")
    require(event[4] == "rem_access", " ".join(event))
    event = b.puppet.wait("wc", wire.conn, "send")
    require(event[4] in ("flushed", "success"), " ".join(event))
    b.came_to_an_end(wire)


@case
def data_of_a_blocked_peer_arrives_later(b):
    # The peer does not read for a while: nothing is lost, nothing completes that is not sent.
    wire = begun(b, rcvbuf=8192)
    for _ in range(8):
        b.puppet.ask(f"send {wire.conn} 1000000 -")
    time.sleep(0.5)
    done = 0
    try:
        while True:
            b.puppet.wait("wc", wire.conn, "send", seconds=0.1)
            done += 1
    except Failure:
        pass
    require(done < 8, "8 MB are complete although nobody reads")
    for msn in range(1, 9):
        first, data = wire.get_message()
        require(first.msn == msn and len(data) == 1000000, str(first))
    for _ in range(8 - done):
        b.puppet.wait("wc", wire.conn, "send", None, "success")


# --- at random -------------------------------------------------------------------------------------


@case
def random_octets(b):
    rng = random.Random(1)
    for _ in range(20):
        wire = b.connect()
        try:
            wire.put(rng.randbytes(rng.randrange(1, 3000)))
        except OSError:
            pass
        wire.close()
    b.works(b.connect())


@case
def random_faults(b):
    # Good frames with random octets changed and the CRC made right again.
    rng = random.Random(2)
    b.clean()
    for _ in range(150):
        wire = b.connect()
        kinds = [write(b.ram.key, b.ram.address, bytes(rng.randrange(64)), last=rng.randrange(2)),
                 send(1, bytes(rng.randrange(64)), last=rng.randrange(2)),
                 read_request(1, 1, 0, rng.randrange(64), b.ram.key, b.ram.address),
                 read_response(1, 1, bytes(8)), terminate(1, 1, 1, write(1, 1)),
                 send(1, opcode=SEND_INV, inv=b.ram.key)]
        frames = b""
        for _ in range(rng.randrange(1, 4)):
            bad = bytearray(rng.choice(kinds))
            for _ in range(rng.randrange(1, 5)):
                bad[rng.randrange(len(bad))] = rng.randrange(256)
            if rng.random() < 0.2:
                bad = bad[:rng.randrange(len(bad))]
            frames += fpdu(bytes(bad))
        try:
            wire.put(frames)
            wire.sock.settimeout(0.01)
            wire.sock.recv(4096)
        except OSError:
            pass
        if rng.random() < 0.5:
            wire.close()
    for region in (b.no_write, b.no_read, b.foreign):
        region.untouched(0x55)
    b.works(b.connect())


def main():
    program, device, own, port = sys.argv[1:5]
    chosen = set(sys.argv[5:])
    unknown = chosen - {c.__name__ for c in CASES}
    if unknown:
        print(f"not ok hostile: no case {' '.join(unknown)}")
        return 1
    bench = Bench(program, device, own, int(port))
    failed = 0
    for run in CASES:
        name = run.__name__
        if chosen and name not in chosen:
            continue
        begun_at = time.monotonic()
        try:
            run(bench)
            print(f"ok {name}", flush=True)
        except Skip as why:
            print(f"skip {name}: {why}", flush=True)
        except (Failure, OSError, struct.error, ValueError, IndexError,
                subprocess.SubprocessError) as why:
            failed += 1
            kind = "" if isinstance(why, Failure) else f"{type(why).__name__}: "
            print(f"not ok {name}: {kind}{why}", flush=True)
        took = time.monotonic() - begun_at
        if took > 5:
            print(f"# {name} took {took:.1f} s", flush=True)
        try:
            bench.after()
            if len(bench.puppet.events) > 1000 or int(bench.puppet.ask("count")) > 300:
                raise Failure("a fresh program")
        except Failure:
            bench.puppet.quit()
            bench.begin()
    bench.puppet.quit()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
