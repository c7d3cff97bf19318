# SPDX-License-Identifier: GPL-2.0
"""Runs riwarp-run on a terminal and says what it does there: terminal.py RIWARP-RUN CASE."""

import fcntl
import os
import pty
import signal
import struct
import sys
import termios


def run(words, steps, rows=33, columns=77):
    """Runs words on a new terminal; each step is a text to wait for, and what to do then.

    Returns all output and the exit status."""
    ready, go = os.pipe()
    pid, fd = pty.fork()
    if pid == 0:
        os.read(ready, 1)
        os.execv(words[0], words)
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    os.write(go, b"x")
    signal.alarm(60)
    seen = out = b""
    while True:
        try:
            octets = os.read(fd, 65536)
        except OSError:
            break
        if not octets:
            break
        out += octets
        seen += octets
        while steps and steps[0][0] in seen:
            text, action = steps.pop(0)
            seen = seen.split(text, 1)[1]
            action(fd, pid)
    _, status = os.waitpid(pid, 0)
    return out, os.waitstatus_to_exitcode(status)


def keys(octets):
    return lambda fd, pid: os.write(fd, octets)


def expect(got, output, status):
    if got != (output, status):
        sys.exit(f"got {got}, not {(output, status)}")


def stays(program):
    """All three streams are one terminal, of the size of the caller's; what is typed arrives."""
    got = run([program, "sh", "-c", "tty <&2; stty size; echo go; read x; echo got $x"],
              [(b"go\r\n", keys(b"hello\n"))])
    expect(got, b"/dev/pts/0\r\n33 77\r\ngo\r\nhello\r\ngot hello\r\n", 0)


def window(program):
    """The size follows that of the caller's."""
    def resize(fd, pid):
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 20, 0, 0))
    got = run([program, "bash", "-c",
               "trap 'stty size; exit 4' WINCH; echo go; while :; do sleep 0.1; done"], [(b"go\r\n", resize)])
    expect(got, b"go\r\n10 20\r\n", 4)


def interrupt(program):
    """Ctrl-C is for the command."""
    got = run([program, "sh", "-c", "trap 'echo int; exit 5' INT; echo go; while :; do sleep 0.1; done"],
              [(b"go\r\n", keys(b"\x03"))])
    expect(got, b"go\r\n^Cint\r\n", 5)
    got = run([program, "sh", "-c", "echo go; exec sleep 60"], [(b"go\r\n", keys(b"\x03"))])
    expect(got, b"go\r\n^C", 130)


def end_of_input(program):
    """Ctrl-D ends the input; the caller's terminal is as it was before."""
    mode = "stty -a | grep -o '.icanon'"
    got = run(["/bin/sh", "-c", f"{program} sh -c 'echo go; cat'; {mode}"],
              [(b"go\r\n", keys(b"x\n\x04"))])
    expect(got, b"go\r\nx\r\nx\r\n icanon\r\n", 0)


def part(program):
    """With an input that is no terminal, the other two are one."""
    got = run(["/bin/sh", "-c", f"echo in | {program} sh -c 'tty; cat; test -t 1 && test -t 2 && echo out'"], [])
    expect(got, b"not a tty\r\nin\r\nout\r\n", 0)


def hang_up(program):
    """A killed riwarp-run leaves nothing behind that the terminal waits for."""
    def kill(fd, pid):
        os.kill(pid, signal.SIGKILL)
    out, status = run([program, "sh", "-c", "echo go; exec sleep 60"], [(b"go\r\n", kill)])
    expect((out, status), b"go\r\n", -signal.SIGKILL)


if __name__ == "__main__":
    globals()[sys.argv[2]](sys.argv[1])
