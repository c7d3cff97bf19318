# SPDX-License-Identifier: GPL-2.0
"""Runs the tests of rdma-core and prints one line with the result of each.

pyverbs_lines.py TESTS SKIPS WITHOUT [ARGUMENTS of the tests...]

TESTS is the directory with the tests. SKIPS lists the tests that may be skipped, one regular expression a line,
which is searched in "NAME: REASON"; a test that is skipped for another reason fails. WITHOUT lists the tests
that are not run, an expression and the reason a line, separated by a tab. Either may be several files,
separated by commas.

Each test runs in a process of its own, so that objects which it leaves behind cannot affect the next test
(pyverbs crashes if they are collected in the wrong order), and only the test that crashes or hangs fails.
"""

import faulthandler
import importlib.machinery
import os
import re
import signal
import sys
import unittest

LIMIT = int(os.environ.get('TEST_LIMIT', '60'))


def lines(paths):
    stripped = []
    for path in paths.split(','):
        with open(path, encoding='utf-8') as text:
            stripped += (line.strip() for line in text)
    return [line for line in stripped if line and not line.startswith('#')]


def name_of(test):
    """Returns the name, such as tests.test_mr.MRTest.test_x, without "tests."."""
    return test.id().removeprefix('tests.')


class Lines(unittest.TestResult):
    """Prints a line for each test, in the format of the scripts of tests/guest."""

    def __init__(self, may_skip):
        super().__init__()
        self.may_skip = may_skip

    def say(self, verdict, test, why=''):
        words = why.strip().splitlines()
        name = name_of(test).replace('.', '/', 1)
        print(f'{verdict} {name}' + (f': {words[-1][:200]}' if words else ''), flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.say('ok', test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        skipped = f'{name_of(test)}: {reason}'
        if any(re.search(pattern, skipped) for pattern in self.may_skip):
            self.say('skip', test, reason)
        else:
            self.failures.append((test, reason))
            self.say('not ok', test, f'skipped for a reason that is not listed: {reason}')

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.explain(test, self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self.explain(test, self.errors[-1][1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.explain(test, self._exc_info_to_string(err, test))

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.say('not ok', test, 'succeeds unexpectedly')

    def explain(self, test, text):
        for line in text.splitlines():
            print('# ' + line)
        self.say('not ok', test, text)


class Runner:
    """The interface that unittest requires of a test runner."""

    def __init__(self, may_skip, without):
        self.may_skip = may_skip
        self.without = [line.split('\t', 1) for line in without]

    def run(self, tests):
        result = Lines(self.may_skip)
        for test in self.flat(tests):
            why = self.why_without(name_of(test))
            if why is None:
                self.run_alone(test, result)
            else:
                result.say('skip', test, why)
        return result

    @staticmethod
    def run_alone(test, result):
        """Runs a test in a process of its own, which prints the result."""
        pid = os.fork()
        if pid == 0:
            # A process group of its own, which includes the processes that it starts.
            os.setpgid(0, 0)
            faulthandler.dump_traceback_later(LIMIT)
            signal.alarm(LIMIT + 1)
            test(result)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        result.testsRun += 1
        _, status = os.waitpid(pid, 0)
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        if status != 0:
            why = signal.strsignal(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else 'no verdict'
            result.say('not ok', test, why)

    def why_without(self, name):
        return next((why for what, why in self.without if re.search(what, name)), None)

    def flat(self, tests):
        for test in tests:
            if isinstance(test, unittest.TestSuite):
                yield from self.flat(test)
            else:
                yield test


def main():
    faulthandler.enable()
    directory, skips, without = sys.argv[1:4]
    runner = Runner(lines(skips), lines(without))
    sys.argv[1:] = sys.argv[4:]
    # As run_tests.py does.
    sys.path[0] = directory
    path = os.path.join(directory, '__init__.py')
    tests = importlib.machinery.SourceFileLoader('tests', path).load_module()
    from args_parser import parser
    parser.parse_args()
    unittest.main(module=tests, testRunner=runner)


main()
