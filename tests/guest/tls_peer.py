#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""An independent peer: MPA frames inside Python's (OpenSSL's) TLS.

tls_peer.py connect|accept ADDRESS PORT CREDENTIALS [WAY]: plays the other end of rdma_server or
rdma_client, which send 16 octets each way. CREDENTIALS are one of

    psk:IDENTITY:SECRET                 a key that both ends have
    x509:AUTHORITY:CERTIFICATE:KEY      certificates, in files; the server's is that of its address
    x509:AUTHORITY                      the same as a client without one

WAY is how:

    whole      each frame in a record (the default)
    split      each octet in a record of its own
    cut        ends with a FIN and without TLS's closure alert, before the exchange
    garbage    goes on, before the exchange, with octets that are no record of its own
    replay     its first FPDU comes in two records, of which somebody on the way repeats the first
    swap       ... exchanges them
    drop       ... takes the first away
    early      sends an FPDU behind the Request, where the other end must be silent
    stall      connects and sends half of a ClientHello, and waits
    flood      does that ten thousand times, from CREDENTIALS, an address
"""
import resource
import socket
import ssl
import struct
import sys
import threading

SERVER_DATA_LEN = 16
IP_BIND_ADDRESS_NO_PORT = 24
MPA_REQUEST, MPA_REPLY = b"MPA ID Req Frame", b"MPA ID Rep Frame"


def frame(key, revision):
    """A start-up frame without flags and private data (RFC 5044, section 7.1)."""
    return key + struct.pack(">BBH", 0, revision, 0)


def send_fpdu(msn, data):
    """An FPDU without CRC, with an untagged Send that is whole (RFC 5040, 5041, 5044)."""
    ulpdu = bytes([0x41, 0x43]) + struct.pack(">IIII", 0, 0, msn, 0) + data
    body = struct.pack(">H", len(ulpdu)) + ulpdu
    return body + bytes(-len(body) % 4) + bytes(4)


def context(role, credentials):
    kind, *files = credentials.split(":")
    ctx = ssl.SSLContext(role)
    ctx.minimum_version = ssl.TLSVersion.TLSv1_3
    if kind == "x509":
        authority, *own = files
        ctx.load_verify_locations(authority)
        ctx.verify_mode = ssl.CERT_REQUIRED
        if own:
            ctx.load_cert_chain(*own)
        return ctx
    identity, secret = files
    secret = secret.encode()
    ctx.check_hostname = False
    ctx.verify_mode = ssl.CERT_NONE
    if role == ssl.PROTOCOL_TLS_CLIENT:
        ctx.set_psk_client_callback(lambda hint: (identity, secret))
    else:
        ctx.set_psk_server_callback(lambda who: secret if who == identity else b"")
        # OpenSSL sends two tickets, which the other end ignores.
    return ctx


def exactly(tls, length):
    octets = b""
    while len(octets) < length:
        more = tls.recv(length - len(octets))
        if not more:
            raise EOFError(f"{len(octets)} of {length} octets")
        octets += more
    return octets


def receive_fpdu(tls):
    (length,) = struct.unpack(">H", exactly(tls, 2))
    ulpdu = exactly(tls, length)
    exactly(tls, -(2 + length) % 4 + 4)
    return ulpdu


class Way(threading.Thread):
    """Somebody on the way between a socket of TCP and `end`, for which TLS can be used in its place."""

    def __init__(self, tcp, what):
        super().__init__(daemon=True)
        self.tcp, self.what, self.begun = tcp, what, threading.Event()
        self.end, self.inside = socket.socketpair()
        threading.Thread(target=self.back, daemon=True).start()
        self.start()

    def back(self):
        """What the other end sends."""
        try:
            while octets := self.tcp.recv(65536):
                self.inside.sendall(octets)
        except OSError:
            pass
        self.inside.shutdown(socket.SHUT_WR)

    def record(self):
        head = exactly(self.inside, 5)
        return head + exactly(self.inside, int.from_bytes(head[3:], "big"))

    def run(self):
        """What this end sends: the first two records behind `begun` are treated."""
        try:
            while not self.begun.is_set():
                record = self.record()
                if self.begun.is_set():
                    break
                self.tcp.sendall(record)
            then = self.record()
            self.tcp.sendall({"replay": record + record + then, "swap": then + record,
                              "drop": then}[self.what])
            while True:
                self.tcp.sendall(self.record())
        except (OSError, EOFError):
            pass


HALF = bytes.fromhex("1603010200010001fc0303")


def flood(address, port, source):
    """Begins handshakes, until the other end has closed all of them."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (12000, 12000))
    begun, refused = [], 0
    for n in range(10000):
        tcp = socket.socket()
        tcp.settimeout(20)
        # The source port is chosen when it connects.
        tcp.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        try:
            tcp.bind((source, 0))
            tcp.connect((address, port))
            tcp.sendall(HALF)
            begun.append(tcp)
        except OSError:
            refused += 1
        if n == 100:
            print("begun", flush=True)
    print("stalled", len(begun), "refused", refused, flush=True)
    for tcp in begun:
        tcp.settimeout(60)
        try:
            tcp.recv(1)
        except ConnectionError:
            pass
    print("closed by the other end")


def main():
    role, address, port, credentials = sys.argv[1:5]
    way = sys.argv[5] if len(sys.argv) > 5 else "whole"
    between = None
    if role == "connect":
        if way == "flood":
            return flood(address, int(port), credentials)
        raw = socket.create_connection((address, int(port)), timeout=20)
        if way == "stall":
            raw.sendall(HALF)
            print("stalled", flush=True)
            raw.settimeout(60)
            # Reset, or closed.
            try:
                raw.recv(1)
            except ConnectionError:
                pass
            print("closed by the other end")
            return
        ctx = context(ssl.PROTOCOL_TLS_CLIENT, credentials)
        if way in ("replay", "swap", "drop"):
            between = Way(raw, way)
            raw = between.end
        tls = ctx.wrap_socket(raw, server_hostname=address, suppress_ragged_eofs=False)
    else:
        server = socket.create_server((address, int(port)))
        raw, _ = server.accept()
        raw.settimeout(20)
        ctx = context(ssl.PROTOCOL_TLS_SERVER, credentials)
        tls = ctx.wrap_socket(raw, server_side=True, suppress_ragged_eofs=False)
    print(tls.version(), tls.cipher()[0], flush=True)

    def send(octets):
        if way != "split":
            return tls.sendall(octets)
        for octet in octets:
            tls.sendall(bytes([octet]))

    # TCP below it.
    beneath = socket.fromfd(tls.fileno(), socket.AF_INET, socket.SOCK_STREAM)
    data = b"independent-peer"

    def end_badly():
        """Whether this peer ends here, badly."""
        if way == "cut":
            beneath.shutdown(socket.SHUT_WR)
        elif way == "garbage":
            octets = b"\x17\x03\x03\x00\x40" + bytes(64)
            beneath.sendall(octets)
        elif between:
            between.begun.set()
            fpdu = send_fpdu(1, data)
            tls.sendall(fpdu[:20])
            tls.sendall(fpdu[20:])
        else:
            return False
        try:
            while tls.recv(4096):
                pass
            print("the other end has closed in order")
        except (OSError, ssl.SSLError) as error:
            print("the other end:", error)
        return True

    if role == "connect":
        send(frame(MPA_REQUEST, 1) + (send_fpdu(1, data) if way == "early" else b""))
        reply = exactly(tls, 20)
        assert reply[:16] == MPA_REPLY, reply
        # Neither Markers, CRCs nor a rejection.
        assert reply[16] & 0xE0 == 0, reply
        if end_badly():
            return
        send(send_fpdu(1, data))
        ulpdu = receive_fpdu(tls)
    else:
        request = exactly(tls, 20)
        assert request[:16] == MPA_REQUEST, request
        assert request[16] & 0xC0 == 0 and request[17] == 1, request
        exactly(tls, struct.unpack(">H", request[18:20])[0])
        send(frame(MPA_REPLY, 1))
        if end_badly():
            return
        ulpdu = receive_fpdu(tls)
        send(send_fpdu(1, data))
    assert ulpdu[1] & 0xF == 3 and len(ulpdu) == 18 + SERVER_DATA_LEN, ulpdu
    # The other end closes: an alert, and then a FIN.
    try:
        rest = tls.recv(1)
    except ssl.SSLZeroReturnError:
        rest = b""
    assert rest == b"", rest
    tls.setblocking(False)
    try:
        tls.unwrap()
    except (ssl.SSLWantReadError, OSError):
        pass
    print("ok")


main()
