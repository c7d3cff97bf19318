# SPDX-License-Identifier: GPL-2.0
"""Runs a command under the seccomp profile of containers without capabilities.

profile.py [--without SYSCALL,...] COMMAND ...: also refuses these system calls, as a hardened runner
may."""

import errno
import json
import os
import sys

import seccomp

words = sys.argv[1:]
without = []
if words[0] == "--without":
    without = words[1].split(",")
    words = words[2:]

with open("/usr/share/containers/seccomp.json", encoding="ascii") as file:
    profile = json.load(file)
rules = seccomp.SyscallFilter(seccomp.ERRNO(errno.ENOSYS))
compare = {"SCMP_CMP_EQ": seccomp.EQ, "SCMP_CMP_NE": seccomp.NE}
for rule in profile["syscalls"]:
    arches = rule["includes"].get("arches", ["amd64"])
    if "caps" in rule["includes"] or "amd64" not in arches:
        continue
    arguments = [seccomp.Arg(arg["index"], compare[arg["op"]], arg["value"]) for arg in rule["args"] or []]
    action = seccomp.ALLOW if rule["action"] == "SCMP_ACT_ALLOW" else seccomp.ERRNO(errno.EPERM)
    for name in rule["names"]:
        try:
            number = seccomp.resolve_syscall(seccomp.Arch(), name)
        except (RuntimeError, ValueError):
            continue  # of another architecture
        if number < 0:
            continue
        if name in without:
            continue
        rules.add_rule(action, name, *arguments)
for name in without:
    rules.add_rule(seccomp.ERRNO(errno.EPERM), name)
rules.load()
os.execvp(words[0], words)
