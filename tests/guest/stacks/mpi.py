# SPDX-License-Identifier: GPL-2.0
"""Functional tests of MPI, each with verified data: mpi.py all|figures, under mpirun.

Every rank computes what it has to receive. A difference aborts the whole program.
"""
import sys
import time
from array import array

from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
SIZES = [1, 7, 64, 1000, 4096, 16384, 65536, 1000003]


def octets(source, target, length, salt=0):
    """What SOURCE sends to TARGET: a pattern without short periods."""
    seed = (source * 31 + target * 17 + salt * 7 + length) % 251
    block = bytes((seed + i * 131 + i // 251) % 256 for i in range(min(length, 4093)))
    return bytearray((block * (length // len(block) + 1))[:length])


def same(what, found, wanted):
    found, wanted = bytes(found), bytes(wanted)
    if found != wanted:
        wrong = [i for i in range(len(wanted)) if found[i] != wanted[i]]
        print(f"rank {rank}: {what}: {len(wrong)} octets of {len(wanted)} are wrong, from {wrong[0]} to {wrong[-1]}:",
              f"{found[wrong[0]:][:16].hex()} instead of {wanted[wrong[0]:][:16].hex()}", flush=True)
        world.Abort(1)


def send_receive():
    right, left = (rank + 1) % size, (rank - 1) % size
    for length in SIZES:
        got = bytearray(length)
        world.Sendrecv(octets(rank, right, length), right, 1, got, left, 1)
        same(f"Sendrecv of {length}", got, octets(left, rank, length))


def unordered():
    """Many messages at once, received in the reverse of their order, by tag."""
    right, left = (rank + 1) % size, (rank - 1) % size
    count = 40
    got = [bytearray(3000 + 100 * tag) for tag in range(count)]
    requests = [world.Irecv(got[tag], left, tag) for tag in reversed(range(count))]
    requests += [world.Isend(octets(rank, right, 3000 + 100 * tag, tag), right, tag)
                 for tag in range(count)]
    MPI.Request.Waitall(requests)
    for tag in range(count):
        same(f"message {tag}", got[tag], octets(left, rank, 3000 + 100 * tag, tag))


def unexpected():
    """Messages that come before their receive is posted, from any source."""
    for target in range(size):
        if target != rank:
            world.send({"from": rank, "data": bytes(octets(rank, target, 50000))}, target, 5)
    world.Barrier()
    seen = set()
    for _ in range(size - 1):
        message = world.recv(source=MPI.ANY_SOURCE, tag=5)
        same("object", message["data"], octets(message["from"], rank, 50000))
        seen.add(message["from"])
    assert len(seen) == size - 1


def broadcast():
    for root in range(size):
        for length in SIZES:
            data = octets(root, 99, length) if rank == root else bytearray(length)
            world.Bcast(data, root)
            same(f"Bcast of {length}", data, octets(root, 99, length))


def reduce():
    for count in (1, 1000, 100003):
        mine = array("q", [rank * count + i for i in range(count)])
        total = array("q", [0]) * count
        base = count * size * (size - 1) // 2
        world.Allreduce(mine, total, MPI.SUM)
        same(f"Allreduce of {count}", total, array("q", [base + size * i for i in range(count)]))
        world.Reduce(mine, total, MPI.MAX, 0)
        if rank == 0:
            same(f"Reduce of {count}", total, array("q", [(size - 1) * count + i for i in range(count)]))


def all_to_all():
    for length in SIZES[:-1]:
        got = bytearray(length * size)
        data = bytearray().join(octets(rank, target, length) for target in range(size))
        world.Alltoall([data, length, MPI.BYTE], [got, length, MPI.BYTE])
        same(f"Alltoall of {length}", got, bytearray().join(octets(source, rank, length) for source in range(size)))


def gather():
    for length in SIZES[:-1]:
        got = bytearray(length * size)
        world.Allgather([octets(rank, 3, length), MPI.BYTE], [got, length, MPI.BYTE])
        same(f"Allgather of {length}", got, bytearray().join(octets(source, 3, length) for source in range(size)))


def one_sided():
    """Put, Get, Accumulate and Fetch_and_op with fences and with locks."""
    right, left = (rank + 1) % size, (rank - 1) % size
    length = 100000
    window = MPI.Win.Allocate(length + 8, 1, comm=world)
    memory = window.tomemory()
    # What is put must stay until the fence.
    data = octets(rank, right, length)
    window.Fence()
    window.Put(data, right)
    window.Fence()
    same("Put", memory[:length], octets(left, rank, length))
    got = bytearray(length)
    window.Get(got, right)
    window.Fence()
    same("Get", got, octets(rank, right, length))
    memory[length:] = bytes(8)
    window.Fence()
    one, before = array("q", [1]), array("q", [0])
    taken = []
    for _ in range(10):
        window.Lock(0, MPI.LOCK_SHARED)
        window.Fetch_and_op([one, MPI.INT64_T], [before, MPI.INT64_T], 0, length, MPI.SUM)
        window.Unlock(0)
        taken.append(before[0])
    every = sorted(sum(world.allgather(taken), []))
    if every != list(range(10 * size)):
        print(f"rank {rank}: Fetch_and_op: {every}", flush=True)
        world.Abort(1)
    window.Free()


def communicators():
    half = world.Split(rank % 2, rank)
    same("Split", array("q", half.allgather(rank)), array("q", range(rank % 2, size, 2)))
    half.Free()


def figures():
    """Half a round trip, and the rate of messages of one size in one direction."""
    for length, count in ((8, 200), (4096, 200), (65536, 50), (1048576, 10)):
        data, got = octets(0, 1, length), bytearray(length)
        world.Barrier()
        begin = time.perf_counter()
        for _ in range(count):
            if rank == 0:
                world.Send(data, 1)
                world.Recv(got, 1)
            else:
                world.Recv(got, 0)
                world.Send(got, 0)
        half = (time.perf_counter() - begin) / count / 2
        if rank == 0:
            same(f"echo of {length}", got, data)
            print(f"{length} octets: {half * 1e6:.1f} us, {length / half / 1e6:.1f} MB/s", flush=True)


TESTS = [send_receive, unordered, unexpected, broadcast, reduce, all_to_all, gather, one_sided,
         communicators]
if sys.argv[1] == "figures":
    figures()
else:
    for test in TESTS:
        world.Barrier()
        test()
        world.Barrier()
        if rank == 0:
            print(f"{test.__name__} on {size} ranks", flush=True)
