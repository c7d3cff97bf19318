#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
#
# tests/coverage_walks.py DIRECTORY: called by tests/coverage walks, in the checkout. Prints, for
# each operation of tests/guest/walks.sh, the files, functions and lines of src/ that ran in each of
# its windows. DIRECTORY has the lines of the windows as OPERATION.N.{before,after}.lcov.
import collections
import glob
import sys

from coverage_module import function_at, read_counts, read_sources

# What a page calls one walk, and the operations of which it consists.
WALKS = {"Write posted by a process": ["write"], "received Send": ["send"],
         "accepted connection": ["request", "accept"]}


def main():
    sources = read_sources()

    def window(name):
        """The lines that ran in a window."""
        before, after = (read_counts(f"{name}.{end}.lcov", *sources) for end in ("before", "after"))
        return {(path, number) for path, of in after.items() for number, count in of.items()
                if path.startswith("src/") and count > before.get(path, {}).get(number, 0)}

    for walk, operations in WALKS.items():
        lines = set()
        for operation in operations:
            names = sorted(glob.glob(f"{sys.argv[1]}/{operation}.*.before.lcov"))
            windows = [window(name.removesuffix(".before.lcov")) for name in names]
            # What ran in one window only has another cause.
            lines |= set.intersection(*windows)
        if not lines:
            sys.exit(f"{walk}: no line has run")
        files = collections.defaultdict(lambda: [set(), 0])
        for path, number in lines:
            files[path][0].add(function_at(sources[0][path], number))
            files[path][1] += 1
        functions = sum(len(of) for of, _ in files.values())
        print(f"{walk}: {len(files)} files, {functions} functions, {len(lines)} lines of src/")
        for path, (of, number) in sorted(files.items(), key=lambda item: -item[1][1]):
            print(f"    {path:36} {number:4} lines {len(of):3} functions")


main()
