# SPDX-License-Identifier: GPL-2.0
"""Plays the verbs program `puppet` (verbs/puppet.c): commands, and waiting for what it tells."""

import queue
import subprocess
import threading
import time

from iwarp import Failure, require

LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ = 1, 2, 4
ALL_RIGHTS = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ


class Region:
    def __init__(self, puppet, number, address, key, length):
        self.puppet, self.number, self.address, self.key, self.length = puppet, number, address, key, length

    def fill(self, octet):
        self.puppet.ask(f"fill {self.number} {octet}")

    def poke(self, offset, octets):
        for at in range(0, len(octets), 500):
            self.puppet.ask(f"poke {self.number} {offset + at} {octets[at:at + 500].hex()}")

    def peek(self, offset, length):
        out = b""
        while len(out) < length:
            step = min(length - len(out), 4096)
            out += bytes.fromhex(self.puppet.ask(f"peek {self.number} {offset + len(out)} {step}"))
        return out

    def untouched(self, octet):
        at = self.puppet.ask(f"odd {self.number} {octet}")
        require(at == "-1", f"memory was written at {at}")


class Puppet:
    def __init__(self, program, address):
        self.address = address
        self.process = subprocess.Popen([program, address], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, bufsize=1)
        self.answers = queue.Queue()
        self.events = []
        self.changed = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()
        self._answer()

    def _listen(self):
        for line in self.process.stdout:
            line = line.rstrip("\n")
            if line.startswith("! "):
                with self.changed:
                    self.events.append(line[2:].split(" "))
                    self.changed.notify_all()
            else:
                self.answers.put(line)
        self.answers.put("- the program has ended")

    def _answer(self):
        try:
            return self.answers.get(timeout=20)
        except queue.Empty as error:
            raise Failure("the verbs program does not answer") from error

    def try_ask(self, command):
        """The answer with its mark."""
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._answer()

    def ask(self, command):
        answer = self.try_ask(command)
        require(answer.startswith("= "), f"'{command}': {answer}")
        return answer[2:]

    def set(self, **values):
        for key, value in values.items():
            self.ask(f"set {key} {value}")

    def defaults(self):
        self.set(recvs=4, recv_len=4096, ird=4, ord=4, pd=0, auto=1)
        self.ask("data -")

    def region(self, length, access=ALL_RIGHTS, pd=0):
        number, address, key = self.ask(f"mr {length} {access} {pd}").split()
        return Region(self, int(number), int(address), int(key), length)

    # Events are lists of words; they are taken out as they are waited for.

    def wait(self, *words, seconds=10):
        """The first event that starts with these words (None matches any)."""
        end = time.monotonic() + seconds
        words = [None if w is None else str(w) for w in words]
        with self.changed:
            while True:
                for event in self.events:
                    if len(event) >= len(words) and all(w is None or w == e
                                                        for w, e in zip(words, event)):
                        self.events.remove(event)
                        return event
                left = end - time.monotonic()
                if left <= 0:
                    raise Failure(f"no event '{' '.join(w or '*' for w in words)}'; there were: " +
                                  "; ".join(" ".join(e) for e in self.events[-8:]))
                self.changed.wait(left)

    def none(self, *words, seconds=0.2):
        """No such event may come."""
        try:
            event = self.wait(*words, seconds=seconds)
        except Failure:
            return
        raise Failure(f"unexpected event: {' '.join(event)}")

    def forget(self):
        with self.changed:
            self.events.clear()

    def quit(self):
        try:
            self.process.stdin.write("quit\n")
            self.process.stdin.flush()
            self.process.wait(timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
