# SPDX-License-Identifier: GPL-2.0
"""Peers that nobody asked for, on TCP sockets; for strangers.sh.

    strangers.py WHAT ADDRESS PORT [ARGUMENT...]

half_open       connects, and sends nothing
slow            sends one octet a second
rubbish         sends random octets
replay          plays one conversation again and again, each message of it twice, and rubbish then
never_reads     requests Reads of a region (KEY AT OCTETS), and never reads from the socket
octet_by_octet  does the same from an address without a host (INTERFACE FROM MAC), by a TCP of its
                own that acknowledges each octet by itself

Prints "begun", and, after SIGTERM, how many connections (of octet_by_octet: octets) there were.
"""
import os
import select
import signal
import socket
import struct
import sys
import time

REQUEST = b"MPA ID Req Frame" + bytes((0, 1, 0, 0))
REPLY_LEN = 20
ABORT = struct.pack("ii", 1, 0)
READS = 4
going_on = True


def stop(*_):
    global going_on
    going_on = False


def untagged(opcode, queue, number, payload):
    """One FPDU with a whole message, without CRC."""
    ulpdu = struct.pack(">BBIIII", 0x41, 0x40 | opcode, 0, queue, number, 0) + payload
    fpdu = struct.pack(">H", len(ulpdu)) + ulpdu
    return fpdu + bytes(-len(fpdu) % 4 + 4)


def read_request(number, key, at, octets):
    return untagged(1, 1, number, struct.pack(">IQIIQ", 1, 0, octets, key, at))


def stream(there, receive_buffer=0):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
    if receive_buffer:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    s.settimeout(5)
    s.connect(there)
    return s


def many(there, at_once, say):
    """Keeps so many connections open; calls `say` for each once a second."""
    poll, peers, opened, when = select.epoll(), {}, 0, time.monotonic() + 1
    while going_on:
        while len(peers) < at_once:
            s = socket.socket()
            s.setblocking(False)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
            s.connect_ex(there)
            peers[s.fileno()] = [s, 0]
            poll.register(s, select.EPOLLIN)
            opened += 1
        for fd, _ in poll.poll(0.1):
            poll.unregister(fd)
            peers.pop(fd)[0].close()
        if time.monotonic() > when:
            when += 1
            for peer in peers.values():
                say(peer)
    return opened


def half_open(there):
    return many(there, 10000, lambda peer: None)


def slow(there):
    def say(peer):
        try:
            peer[0].send(REQUEST[peer[1] : peer[1] + 1])
            peer[1] += 1
        except OSError:
            pass  # not connected yet, or reset

    return many(there, 1000, say)


def again(there, octets):
    """Sends octets, waits for the end, and begins anew."""
    count = 0
    while going_on:
        try:
            with stream(there) as s:
                for part in octets(count):
                    s.send(part)
                while s.recv(65536):
                    pass
        except OSError:
            pass
        count += 1
    return count


def rubbish(there):
    return again(there, lambda n: [os.urandom(1 + n % 3000)])


def replay(there):
    fpdu = untagged(3, 0, 1, bytes(16))
    return again(there, lambda n: [REQUEST, fpdu, fpdu, os.urandom(100)])


def never_reads(there, key, at, octets):
    peers = []
    for _ in range(32):
        s = stream(there, 4096)
        s.send(REQUEST)
        s.recv(REPLY_LEN, socket.MSG_WAITALL)
        s.send(b"".join(read_request(1 + n, key, at, octets) for n in range(READS)))
        peers.append(s)
    while going_on:
        time.sleep(0.1)
    return len(peers)


def checksum(octets):
    total = sum(struct.unpack(f">{len(octets) // 2}H", octets))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


class Tcp:
    """One connection over a packet socket, which loses nothing since the link does not."""

    def __init__(self, there, interface, source, mac):
        self.link = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x800))
        self.link.bind((interface, 0x800))
        self.to = (interface, 0x800, 0, 0, bytes.fromhex(mac.replace(":", "")))
        self.addresses = socket.inet_aton(source) + socket.inet_aton(there[0])
        self.ports = (20000 + os.getpid() % 20000, there[1])
        self.next, self.acked, self.came = 1, 0, 0

    def send(self, flags, payload=b""):
        tcp = struct.pack(">HHIIBBHHH", *self.ports, self.next, self.acked, 0x50, flags, 65535, 0, 0)
        tcp += payload
        pseudo = self.addresses + struct.pack(">BBH", 0, 6, len(tcp))
        tcp = tcp[:16] + struct.pack(">H", checksum(pseudo + tcp + bytes(len(tcp) % 2))) + tcp[18:]
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + self.addresses
        ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
        self.link.sendto(ip + tcp, self.to)
        self.next += len(payload) + (flags & 2) // 2

    def receive(self, seconds):
        """Takes what has arrived: sets `came`, the sequence number behind it, and returns it."""
        while select.select([self.link], [], [], seconds)[0]:
            packet = self.link.recv(70000)
            tcp = packet[20:]
            if packet[9] != 6 or packet[16:20] != self.addresses[:4]:
                continue
            source, port, number, _, offset, flags = struct.unpack(">HHIIBB", tcp[:14])
            if (port, source) != self.ports:
                continue
            if flags & 4:
                raise ConnectionResetError
            payload = tcp[offset >> 2 :]
            end = (number + len(payload) + (flags & 2) // 2) & 0xFFFFFFFF
            if flags & 2 or 0 < (end - self.came) & 0xFFFFFFFF < 1 << 31:
                self.came = end
            return payload
        return b""


def octet_by_octet(there, key, at, octets, interface, source, mac):
    tcp, count, reply = Tcp(there, interface, source, mac), 0, b""
    tcp.send(2)
    tcp.receive(5)
    tcp.acked = tcp.came
    tcp.send(16)
    tcp.send(24, REQUEST)
    while len(reply) < REPLY_LEN:
        reply += tcp.receive(5)
    tcp.acked = tcp.came
    tcp.send(24, b"".join(read_request(1 + n, key, at, octets) for n in range(READS)))
    while going_on:
        tcp.receive(0 if (tcp.came - tcp.acked) & 0xFFFFFFFF else 0.1)
        if (tcp.came - tcp.acked) & 0xFFFFFFFF:
            tcp.acked = (tcp.acked + 1) & 0xFFFFFFFF
            tcp.send(16)
            count += 1
    tcp.send(4)
    return count


def main():
    what, address, port, *rest = sys.argv[1:]
    signal.signal(signal.SIGTERM, stop)
    print("begun", flush=True)
    rest = [int(word) if word.isdigit() else word for word in rest]
    print(globals()[what]((address, int(port)), *rest))


main()
