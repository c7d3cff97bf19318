# SPDX-License-Identifier: GPL-2.0
"""Makes many connections and measures the work that they cause while they are idle.

Arguments: the name of a case, the number of connections, address and port of the agent, the directory of
tracefs, and the command that starts the agent (verbs/agent.c).
"""

import os
import re
import socket
import struct
import subprocess
import sys
import time

case, count, host, port, tracing = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]
slow = int(os.environ.get("SLOW", "1"))

# Seconds for which the driver's work queues are watched.
WATCH = 3
# Work items per second that a connection or queue pair may cost, on average.
STEPS = 4
READ_LEN = 4 << 20
IBV_QPS_RTS = "3"


class Agent:
    def __init__(self, command):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        self.answer("start")

    def do(self, command):
        self.process.stdin.write(command + "\n")
        return self.answer(command)

    def answer(self, command):
        """Returns the agent's answer; drops the events that it reports before."""
        for line in self.process.stdout:
            if line.startswith("="):
                return line[1:].split()
            if line.startswith("-"):
                sys.exit(f"{command}: {line}")
        sys.exit(f"{command}: the agent has ended")


def crc32c(octets):
    crc = 0xFFFFFFFF
    for octet in octets:
        crc ^= octet
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def read_request(addr, key):
    """Returns the FPDU of a Read Request (RFC 5040), the first of its stream."""
    ulpdu = struct.pack("!BBIIII", 0x41, 0x41, 0, 1, 1, 0)
    ulpdu += struct.pack("!IQIIQ", 1, 0, READ_LEN, key, addr)
    fpdu = struct.pack("!H", len(ulpdu)) + ulpdu
    return fpdu + struct.pack("<I", crc32c(fpdu))


def connected():
    """Returns a peer that has completed the start-up. It has a small receive buffer."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.settimeout(20 * slow)
    peer.connect((host, port))
    peer.send(b"MPA ID Req Frame" + bytes((0x40, 1, 0, 0)))
    if peer.recv(20, socket.MSG_WAITALL)[:16] != b"MPA ID Rep Frame":
        sys.exit("not accepted")
    return peer


def write(name, text):
    with open(f"{tracing}/{name}", "w", encoding="ascii") as file:
        file.write(text)


def queued():
    """Returns how many items were queued on the driver's work queues since tracing began."""
    steps = 0
    for cpu in os.listdir(f"{tracing}/per_cpu"):
        with open(f"{tracing}/per_cpu/{cpu}/stats", encoding="ascii") as file:
            stats = dict(re.findall(r"^([\w ]+): (\d+)", file.read(), re.M))
        steps += int(stats["entries"]) + int(stats["overrun"])
    return steps


def worked():
    """Returns the processor time of the kernel's workers in seconds."""
    ticks = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                name, rest = file.read().rsplit(")", 1)
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "(kworker" in name:
            ticks += sum(map(int, rest.split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def newcomers():
    """Returns how long five more connections take, in seconds."""
    begin = time.monotonic()
    for _ in range(5):
        connected().close()
    return time.monotonic() - begin


def all_read():
    """Has each peer read some of what it has asked for; returns how many got something.

    The driver closes the connection of one that takes nothing for five seconds.
    """
    got = 0
    for peer in peers:
        try:
            got += len(peer.recv(8192)) > 0
        except ConnectionError:
            pass
    return got


agent = Agent(sys.argv[6:])
for setting in ("recvs 1", "recv_len 64", "ird 2", "ord 2", "auto 1"):
    agent.do(f"set {setting}")
agent.do(f"listen {port}")
memory, addr, key = agent.do(f"mr {READ_LEN} {1 | 4} 0")
usual = newcomers()
peers = [connected() for _ in range(count)]

if case == "half_closed":
    request = read_request(int(addr, 0), int(key, 0))
    for peer in peers:
        peer.send(request)
        peer.shutdown(socket.SHUT_WR)
    still = all_read()
    if still != count:
        sys.exit(f"{still} of {count} peers were answered")
else:
    for peer in peers:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()

# The driver checks often at first, and rarely later.
time.sleep(3)
if case == "half_closed":
    all_read()
QUEUES = ("riwarp_conn", "riwarp_stream", "riwarp_tx", "riwarp_user", "riwarp_user_wait")
write("events/workqueue/workqueue_queue_work/filter", " || ".join(f'workqueue == "{name}"' for name in QUEUES))
write("trace", "")
write("events/workqueue/workqueue_queue_work/enable", "1")
before, begin = worked(), time.monotonic()
time.sleep(WATCH)
steps, busy, passed = queued(), worked() - before, time.monotonic() - begin
write("events/workqueue/workqueue_queue_work/enable", "0")
if case == "half_closed":
    # What TCP holds would reach the peer also from a connection that was closed.
    all_read()
    here = [agent.do(f"state {5 + n}") for n in range(count)].count([IBV_QPS_RTS])
    if here != count:
        sys.exit(f"the driver closed {count - here} of {count} connections")
late = newcomers()
print(f"{count} of {case}: {steps / passed:.0f} steps and {busy / passed:.3f} s of work per second;", end=" ")
print(f"newcomers {usual:.3f} s before, {late:.3f} s now")

if steps > STEPS * count * passed:
    sys.exit(f"{steps} steps in {passed:.1f} s")
if case == "in_error" and steps < count:
    sys.exit(f"{steps} steps: the driver does not check for receives")
if busy > passed / 4 * slow:
    sys.exit(f"the workers ran for {busy:.2f} of {passed:.1f} s")
if late > 3 * usual + slow:
    sys.exit(f"new connections took {late:.2f} s instead of {usual:.2f} s")
agent.process.stdin.close()
agent.process.wait(20 * slow)
