#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
#
# tests/coverage_module.py LCOV FILE LEAST: called by tests/coverage, in the checkout. LCOV says
# how often each line of the module ran (llvm-cov export -format=lcov). Prints a table of the
# directories and, as the last line, the share, which is to be LEAST. Writes the lines that never
# ran, by function, to FILE. Leaves out code that exists only for KUnit or cargo's tests.
import collections
import os
import re
import sys

CRATES = {"src/riwarp.rs": "src", "src/iwarp/iwarp.rs": "src/iwarp", "rust/kernel_ext.rs": "rust"}
TEST_ATTRIBUTE = re.compile(r"\s*#\[(cfg\((test|any\(.*CONFIG_KUNIT|CONFIG_KUNIT)|.*\bkunit_tests\()")
ATTRIBUTE = re.compile(r"\s*(#\[|//)")
FUNCTION = re.compile(r"(\s*)(?:(?:pub(?:\([^)]*\))?|const|unsafe|extern|\"C\"|default|async)\s+)*fn\s+(\w+)")
IMPL = re.compile(r"(\s*)(?:unsafe\s+)?(impl\b.*|(?:pub(?:\([^)]*\))?\s+)?(?:trait|mod)\s+\w+.*)")


def indent(line):
    return len(line) - len(line.lstrip())


def test_lines(lines):
    """Yields the range of each item that only tests have, and its first line."""
    at = 0
    while at < len(lines):
        if not TEST_ATTRIBUTE.match(lines[at]):
            at += 1
            continue
        begin, depth = at, indent(lines[at])
        while ATTRIBUTE.match(lines[at]):
            at += 1
        item = lines[at].strip()
        # rustfmt ends an item by a line as deep as its first.
        while not (indent(lines[at]) == depth and re.search(r"[;,}]$", lines[at].rstrip())):
            at += 1
        yield begin + 1, at + 1, item
        at += 1


def read_sources():
    """Returns the text of all files, the lines that are tests' in each, and the files that are."""
    texts, tests, test_paths = {}, {}, []
    for top in ("src", "rust"):
        for where, _, names in os.walk(top):
            for name in names:
                if name.endswith(".rs"):
                    path = os.path.join(where, name)
                    with open(path, encoding="utf-8") as file:
                        texts[path] = file.read().splitlines()
    for path, lines in texts.items():
        below = CRATES.get(path, path[:-len(".rs")])
        tests[path] = set()
        for begin, end, item in test_lines(lines):
            tests[path].update(range(begin, end + 1))
            module = re.fullmatch(r"(?:pub(?:\([^)]*\))? )?mod (\w+);", item)
            if module:
                test_paths.append(f"{below}/{module[1]}")
    is_test = {path for path in texts
               if any(path == f"{it}.rs" or path.startswith(f"{it}/") for it in test_paths)}
    return texts, tests, is_test


def function_at(lines, number):
    """Names the function around a line, with the impl or trait around that."""
    name, depth = "", indent(lines[number - 1]) + 1
    for at in range(number, 0, -1):
        line = lines[at - 1]
        if not line.strip() or indent(line) >= depth:
            continue
        found = FUNCTION.match(line)
        if found and not name:
            name, depth = found[2], indent(line)
        elif name and IMPL.match(line):
            return f"{IMPL.match(line)[2].rstrip(' {')} :: {name}"
    return name or "(no function)"


def read_counts(lcov_file, texts, tests, is_test):
    """Returns how often each line of each file ran, but for tests'."""
    counts, path = {}, None
    with open(lcov_file, encoding="utf-8") as lcov:
        for line in lcov:
            if line.startswith("SF:"):
                found = re.search(r"/((?:src|rust)/.*)$", line.rstrip())
                path = found[1] if found and found[1] in texts else None
            elif line.startswith("DA:") and path and path not in is_test:
                number, count = map(int, line[3:].split(",")[:2])
                # Of a region LLVM counts each line, comments too.
                text = texts[path][number - 1].strip()
                if number not in tests[path] and text and not ATTRIBUTE.match(text):
                    of = counts.setdefault(path, {})
                    of[number] = max(of.get(number, 0), count)
    return counts


def main():
    texts, tests, is_test = read_sources()
    counts = read_counts(sys.argv[1], texts, tests, is_test)
    by_directory = collections.defaultdict(lambda: [0, 0])
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        for path, of in sorted(counts.items()):
            top = "/".join(os.path.dirname(path).split("/")[:2])
            for total in (by_directory[top], by_directory["all"]):
                total[0] += len(of)
                total[1] += sum(count > 0 for count in of.values())
            function = None
            for number in sorted(number for number, count in of.items() if count == 0):
                name = function_at(texts[path], number)
                if name != function:
                    function = name
                    print(f"{path}: {name}", file=out)
                print(f"    {number:4} {texts[path][number - 1]}", file=out)
    total = by_directory.pop("all", [0, 0])
    for name, (lines, run) in sorted(by_directory.items()):
        print(f"{name:36} {lines:5} lines {run:5} run {100 * run / lines:6.1f} %")
    share = 100 * total[1] / total[0] if total[0] else 0
    print(f"{total[1]} of {total[0]} lines of the module run, {share:.1f} %")
    sys.exit(share < float(sys.argv[3]))


if __name__ == "__main__":
    main()
