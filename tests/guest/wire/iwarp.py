# SPDX-License-Identifier: GPL-2.0
"""MPA, DDP and RDMAP frames, written from RFC 5040, 5041, 5044 and 6581 alone, and a TCP connection
that speaks them as badly as it is told to."""

import ctypes
import os
import select
import socket
import struct
import time

# --- CRC32c (RFC 5044, section 4.4) ----------------------------------------------------------------

def _crc32c():
    """The C implementation, since Python's own would take most of the time under emulation."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../build/libcrc32c.so")
    function = ctypes.CDLL(path).crc32c
    function.restype = ctypes.c_uint32
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return lambda data: function(bytes(data), len(data))


crc32c = _crc32c()
assert crc32c(b"123456789") == 0xE3069283

# --- DDP and RDMAP ---------------------------------------------------------------------------------

WRITE, READ_REQUEST, READ_RESPONSE, SEND, SEND_INV, SEND_SE, SEND_SE_INV, TERMINATE = range(8)


def control(tagged, last, opcode, rv=1, dv=1, ddp_reserved=0, rdmap_reserved=0):
    """The first two octets of a DDP segment."""
    return bytes([tagged << 7 | last << 6 | ddp_reserved << 2 | dv,
                  rv << 6 | rdmap_reserved << 4 | opcode])


def tagged(opcode, stag, to, data=b"", last=1, **bits):
    return control(1, last, opcode, **bits) + struct.pack(">IQ", stag, to) + data


def untagged(opcode, qn, msn, mo=0, data=b"", last=1, inv=0, **bits):
    return control(0, last, opcode, **bits) + struct.pack(">IIII", inv, qn, msn, mo) + data


def write(stag, to, data=b"", last=1, **bits):
    return tagged(WRITE, stag, to, data, last, **bits)


def send(msn, data=b"", mo=0, last=1, opcode=SEND, inv=0, qn=0, **bits):
    return untagged(opcode, qn, msn, mo, data, last, inv, **bits)


def read_request(msn, sink_stag, sink_to, size, src_stag, src_to, qn=1, mo=0, **bits):
    return untagged(READ_REQUEST, qn, msn, mo,
                    struct.pack(">IQIIQ", sink_stag, sink_to, size, src_stag, src_to), **bits)


def read_response(stag, to, data=b"", last=1, **bits):
    return tagged(READ_RESPONSE, stag, to, data, last, **bits)


def terminate(layer, etype, code, bad=b"", read=False):
    """The Terminate that answers the segment `bad`: which parts it quotes follows RFC 5040, figure 10."""
    word = layer << 28 | etype << 24 | code << 16
    quote = b""
    if bad and layer < 2 and etype != 0:
        word |= 0xC000
        header = 14 if bad[0] & 0x80 else 18
        quote = struct.pack(">H", len(bad)) + bad[:header]
        if read and layer == 0:
            word |= 0x2000
            quote += bad[18:46]
    return untagged(TERMINATE, 2, 1, data=struct.pack(">I", word) + quote)


class Segment:
    """A DDP segment taken apart."""

    def __init__(self, ulpdu):
        self.raw = ulpdu
        first, second = ulpdu[0], ulpdu[1]
        self.tagged = first >> 7
        self.last = first >> 6 & 1
        self.reserved = first >> 2 & 15
        self.dv = first & 3
        self.rv = second >> 6
        self.rdmap_reserved = second >> 4 & 3
        self.opcode = second & 15
        if self.tagged:
            self.stag, self.to = struct.unpack(">IQ", ulpdu[2:14])
            self.data = ulpdu[14:]
        else:
            self.inv, self.qn, self.msn, self.mo = struct.unpack(">IIII", ulpdu[2:18])
            self.data = ulpdu[18:]

    def __str__(self):
        where = (f"STag {self.stag:#x} TO {self.to:#x}" if self.tagged else
                 f"QN {self.qn} MSN {self.msn} MO {self.mo} inv {self.inv:#x}")
        return (f"opcode {self.opcode} T{self.tagged} L{self.last} {where}, "
                f"{len(self.data)} octets {self.data[:32].hex()}")


# --- MPA -------------------------------------------------------------------------------------------

REQUEST_KEY = b"MPA ID Req Frame"
REPLY_KEY = b"MPA ID Rep Frame"
MARKERS, CRC, REJECT, ENHANCED = 0x80, 0x40, 0x20, 0x10


def start_frame(key, flags=CRC, rev=1, data=b"", length=None):
    return key + bytes([flags, rev]) + struct.pack(">H", len(data) if length is None else length) + data


def depths(ird, ord_, p2p=False, send_rtr=False, write_rtr=False, read_rtr=False):
    """The enhanced data of RFC 6581."""
    return struct.pack(">HH", p2p << 15 | send_rtr << 14 | ird, write_rtr << 15 | read_rtr << 14 | ord_)


def fpdu(ulpdu, bad_crc=False, pad=b"\0\0\0", crc=True):
    body = struct.pack(">H", len(ulpdu)) + ulpdu
    body += pad[:-len(body) % 4]
    value = crc32c(body) if crc else 0xDEADBEEF
    if bad_crc:
        value ^= 0x00010000
    return body + struct.pack("<I", value)


class Failure(Exception):
    pass


def require(condition, why):
    if not condition:
        raise Failure(why)


class Reply:
    """A start-up frame of the peer."""

    def __init__(self, head, data):
        self.key, self.flags, self.rev = head[:16], head[16], head[17]
        self.length = struct.unpack(">H", head[18:20])[0]
        self.data = data
        if self.rev == 2 and self.flags & ENHANCED and len(data) >= 4:
            a, b = struct.unpack(">HH", data[:4])
            self.p2p, self.send_rtr, self.ird = a >> 15, a >> 14 & 1, a & 0x3FFF
            self.write_rtr, self.read_rtr, self.ord = b >> 15, b >> 14 & 1, b & 0x3FFF
            self.data = data[4:]


class Wire:
    """One TCP connection to the device under test."""

    WAIT = 10.0

    def __init__(self, sock):
        self.sock = sock
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pending = b""
        self.crc = True
        self.pace = 0  # seconds before each read
        self.markers = False
        self.marker_at = 0  # octets until the next Marker
        self.stream = 0
        self.msn = 0
        self.read_msn = 0
        self.conn = None
        self.reply = None

    @classmethod
    def connect(cls, address, port, rcvbuf=None):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        if rcvbuf:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        sock.settimeout(cls.WAIT)
        sock.connect((address, port))
        return cls(sock)

    def close(self):
        self.sock.close()

    def reset(self):
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def put(self, octets):
        self.sock.sendall(octets)

    def take(self, count, wait=None):
        """Exactly `count` octets, or a Failure."""
        end = time.monotonic() + (self.WAIT if wait is None else wait)
        while len(self.pending) < count:
            left = end - time.monotonic()
            require(left > 0, f"only {len(self.pending)} of {count} octets came: {self.pending[:60].hex()}")
            self.sock.settimeout(left)
            if self.pace:
                time.sleep(self.pace)
            try:
                more = self.sock.recv(1 << 20)
            except socket.timeout:
                continue
            except ConnectionResetError as error:
                raise Failure("the connection was reset") from error
            require(more, f"end of stream with {len(self.pending)} of {count} octets: "
                    f"{self.pending[:60].hex()}")
            self.pending += more
        octets, self.pending = self.pending[:count], self.pending[count:]
        return octets

    def silent(self, seconds):
        """Nothing may come for so long."""
        if self.pending:
            raise Failure(f"unexpected octets: {self.pending[:60].hex()}")
        if select.select([self.sock], [], [], seconds)[0]:
            self.pending = self.sock.recv(1 << 20)
            raise Failure(f"unexpected octets: {self.pending[:60].hex()}" if self.pending else
                          "unexpected end of stream")

    def ends(self, wait=None, reset_allowed=False):
        """The stream must end, with nothing more on it."""
        self.sock.settimeout(self.WAIT if wait is None else wait)
        if self.pending:
            raise Failure(f"octets before the end: {self.pending[:80].hex()}")
        try:
            more = self.sock.recv(1 << 16)
        except socket.timeout as error:
            raise Failure("the connection stays open") from error
        except ConnectionResetError as error:
            if reset_allowed:
                return
            raise Failure("reset instead of a graceful end") from error
        require(not more, f"octets before the end: {more[:80].hex()}")

    # Start-up

    def request(self, flags=CRC, rev=1, data=b"", length=None, key=REQUEST_KEY):
        self.put(start_frame(key, flags, rev, data, length))

    def get_start_frame(self, wait=None):
        head = self.take(20, wait)
        length = struct.unpack(">H", head[18:20])[0]
        require(length <= 512, f"{length} octets of private data announced")
        return Reply(head, self.take(length))

    def start(self, flags=CRC, rev=1, data=b""):
        """A whole start-up as the initiator; remembers what was agreed."""
        self.request(flags, rev, data)
        self.reply = self.get_start_frame()
        require(self.reply.key == REPLY_KEY, f"reply with key {self.reply.key}")
        require(not self.reply.flags & REJECT, "rejected")
        self.crc = bool((flags | self.reply.flags) & CRC)
        self.markers = bool(flags & MARKERS)
        return self.reply

    # FPDUs

    def send(self, *ulpdus, **how):
        self.put(b"".join(fpdu(u, **how) for u in ulpdus))

    def fpdu_octets(self, count):
        """So many octets of the FPDU stream, Markers checked and taken out."""
        out = b""
        while len(out) < count:
            if self.markers and self.stream % 512 == 0:
                marker = self.take(4)
                require(marker[:2] == b"\0\0", f"marker {marker.hex()} with reserved bits")
                pointer = struct.unpack(">H", marker[2:])[0]
                want = self.stream - self.fpdu_start if self.fpdu_start is not None else 0
                require(pointer == want, f"marker points {pointer} back instead of {want}")
                self.stream += 4
                self.covered += marker
                continue
            step = count - len(out)
            if self.markers:
                step = min(step, 512 - self.stream % 512)
            piece = self.take(step)
            if self.fpdu_start is None:
                self.fpdu_start = self.stream
            self.stream += len(piece)
            self.covered += piece
            out += piece
        return out

    def get(self):
        """The next FPDU's segment; length, pad and CRC are checked."""
        self.fpdu_start = None
        self.covered = b""
        length = struct.unpack(">H", self.fpdu_octets(2))[0]
        ulpdu = self.fpdu_octets(length)
        pad = self.fpdu_octets(-(2 + length) % 4)
        require(not any(pad), f"pad octets {pad.hex()}")
        covered = self.covered
        trailer = self.fpdu_octets(4)
        # A Marker between the pad and the CRC is covered by the CRC too.
        covered = self.covered[:-4] if self.markers else covered
        if self.crc:
            want = struct.pack("<I", crc32c(covered))
            require(trailer == want, f"CRC {trailer.hex()} instead of {want.hex()}")
        segment = Segment(ulpdu)
        require(segment.dv == 1 and segment.rv == 1 and not segment.reserved
                and not segment.rdmap_reserved, f"control octets {ulpdu[:2].hex()}")
        return segment

    def get_message(self):
        """The segments of one message put together: (first segment, data)."""
        first = segment = self.get()
        data = segment.data
        while not segment.last:
            segment = self.get()
            require(segment.opcode == first.opcode and segment.tagged == first.tagged,
                    f"{segment} inside of {first}")
            if segment.tagged:
                require(segment.stag == first.stag and segment.to == first.to + len(data),
                        f"{segment} does not continue {first}")
            else:
                require(segment.msn == first.msn and segment.qn == first.qn and
                        segment.inv == first.inv and segment.mo == len(data),
                        f"{segment} does not continue {first}")
            data += segment.data
        return first, data

    def expect(self, ulpdu, what):
        got = self.get()
        require(got.raw == ulpdu, f"{what}: {got.raw.hex()} instead of {ulpdu.hex()}")

    def expect_terminate(self, layer, etype, code, bad=b"", read=False, skip=()):
        """This Terminate octet by octet, then the graceful end of the stream. Segments with an
        opcode in `skip` may come before it."""
        want = terminate(layer, etype, code, bad, read)
        got = self.get()
        while got.opcode in skip:
            got = self.get()
        require(got.raw == want, f"{describe(got)} instead of {describe(Segment(want))}")
        self.ends()


def describe(segment):
    if segment.opcode != TERMINATE or segment.tagged:
        return str(segment)
    word = struct.unpack(">I", segment.data[:4])[0]
    return (f"Terminate({word >> 28}/{word >> 24 & 15}/{word >> 16 & 255:02x}) MDR {word >> 13 & 7:03b} "
            f"[{segment.raw.hex()}]")
