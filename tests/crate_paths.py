# SPDX-License-Identifier: GPL-2.0
"""crate_paths: the module paths that the files of a crate name, for tests/imports and
tests/circles.
"""

import re
import subprocess


def sources(folder, left_out=()):
    """Returns the text of each source below `folder`/ by its module path, without comments and
    tests; lines stay where they are. Files with a part of their path in `left_out` are left out,
    as are test suites and their fixtures.
    """
    files = subprocess.run(["git", "ls-files", f"{folder}/*.rs"], check=True, capture_output=True,
                           text=True).stdout.split()
    texts = {}
    for file in files:
        path = tuple(file.removeprefix(f"{folder}/").removesuffix(".rs").split("/"))
        if path[0] in left_out or "tests" in path or path[-1] == "bench":
            continue
        with open(file, encoding="utf-8") as source:
            text = re.sub(r"//.*", "", source.read())
        text = re.split(r"#\[kernel::prelude::kunit_tests\(", text)[0]
        # Where an item may be seen is no import.
        text = re.sub(r"\bpub\(in [^)]*\)", "pub", text)
        # An item that only a build with tests has, up to the end of its line or block.
        text = re.sub(r'#\[cfg\(CONFIG_KUNIT = "y"\)\]\s*(pub[^;{]*)?(use|mod)[^;]*;',
                      lambda found: "\n" * found.group(0).count("\n"), text)
        texts[path] = text
    return texts


def paths(text, module):
    """Returns the module paths that a text imports or names, from the root of the crate, each with
    the number of the line where its import or name begins.
    """
    found = set()

    def walk(line, prefix, tree):
        depth, start = 0, 0
        for at, letter in enumerate(tree + ","):
            depth += (letter == "{") - (letter == "}")
            if letter == "," and depth == 0:
                one = tree[start:at].strip()
                start = at + 1
                if "{" in one:
                    head, rest = one.split("{", 1)
                    walk(line, prefix + head.strip(), rest.rsplit("}", 1)[0])
                elif one:
                    found.add((line, prefix + one.split(" as ")[0].strip()))

    def line_of(match):
        return text.count("\n", 0, match.start()) + 1

    for use in re.finditer(r"\buse\s+([^;]*);", text):
        walk(line_of(use), "", re.sub(r"\s+", " ", use.group(1)))
    for name in re.finditer(r"\b(?:crate|super|self)(?:::\w+)+", text):
        found.add((line_of(name), name.group(0)))
    resolved = set()
    for line, path in found:
        parts = [part.strip() for part in path.split("::")]
        base = list(module)
        if parts[0] == "crate":
            base, parts = [], parts[1:]
        elif parts[0] in ("super", "self"):
            while parts and parts[0] in ("super", "self"):
                base = base[:-1] if parts[0] == "super" else base
                parts = parts[1:]
        resolved.add((line, tuple(base + parts)))
    return resolved
