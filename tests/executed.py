#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Counts instructions of the module by function, for tests/profile.

    executed.py DIR MODULE COUNT

DIR has `executed`, what the guest has executed at the addresses of modules (qemu/run --executed), and
its `kallsyms`. Prints for each function the instructions of one of COUNT operations, and how often one
calls it. The processor runs blocks; one ends with the first jump, call or return, or at the end of a
page, so its length comes from MODULE.
"""
import bisect
import collections
import re
import subprocess
import sys

PAGE = 4096
ENDS = re.compile(r"j|call|ret|loop|int|sti$|syscall|sysret|iret")
BLOCK = re.compile(rb"\[[0-9a-f]+/([0-9a-f]+)/")


def text_of(module):
    """Returns the offsets of the symbols in the text, and those and the names of the instructions."""
    symbols, offsets, names = {}, [], []
    said = subprocess.run(["objdump", "-d", "--no-show-raw-insn", "-j", ".text", module],
                          stdout=subprocess.PIPE, text=True, check=True).stdout
    for line in said.splitlines():
        if found := re.match(r"([0-9a-f]+) <(.*)>:$", line):
            symbols[found[2]] = int(found[1], 16)
        elif found := re.match(r"\s+([0-9a-f]+):\s+(\S+)", line):
            offsets.append(int(found[1], 16))
            names.append(found[2])
    return symbols, offsets, names


def main(folder, module, count):
    symbols, offsets, names = text_of(module)
    functions, bases = [], collections.Counter()
    with open(f"{folder}/kallsyms", encoding="ascii") as lines:
        for address, kind, name, *of in map(str.split, lines):
            if of == ["[riwarp]"] and kind in "tT" and name in symbols:
                functions.append((int(address, 16), name))
                bases[functions[-1][0] - symbols[name]] += 1
    [(base, _)] = bases.most_common(1)
    functions = sorted(function for function in functions if function[0] - symbols[function[1]] == base)
    starts = [start for start, _ in functions]

    def length(block):
        at = bisect.bisect_left(offsets, block - base)
        end = at
        while end + 1 < len(offsets) and not ENDS.match(names[end]) and offsets[end + 1] % PAGE >= offsets[at] % PAGE:
            end += 1
        return end + 1 - at

    blocks = collections.Counter()
    with open(f"{folder}/executed", "rb") as lines:
        blocks.update(int(found[1], 16) for found in map(BLOCK.search, lines) if found)
    taken, called = collections.Counter(), collections.Counter()
    for block, times in blocks.items():
        if base <= block <= base + offsets[-1]:
            start, name = functions[bisect.bisect_right(starts, block) - 1]
            taken[name] += times * length(block)
            called[name] += times * (block == start)
    print(f"{sum(taken.values()) / count:8.1f} instructions of the module for an operation")
    for name, instructions in taken.most_common():
        if instructions >= count / 10:
            print(f"{instructions / count:8.1f} {called[name] / count:6.2f} calls  {name}")


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
