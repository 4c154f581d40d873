"""Shows which tests use the processor: `make test ARGS="-p tests.cpu"` ends with CPU seconds by
folder, by file and by test. The seconds include processes that a test starts and waits for.

A suite on two cores takes half its CPU seconds. Time in which a test only waits costs little.
pytest's `--durations` does not separate CPU time from waiting.
"""

import collections
import resource
from pathlib import Path

import pytest

ROWS = 40


def cpu_s():
    """Returns user plus system time of this process and of its ended children."""
    who = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return sum(sum(resource.getrusage(w)[:2]) for w in who)


class Count:
    """A plugin in each process of pytest-xdist and in the main process, which gets all reports."""

    def __init__(self):
        self.before, self.of_tests = None, collections.Counter()
        self.apart = 0.0  # CPU seconds of imports and of collecting

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self):
        if self.before is None:
            self.before = cpu_s()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self):
        report = (yield).get_result()
        now = cpu_s()
        report.cpu_s, report.apart_s = now - self.before, now  # sent to the main process
        self.before = now

    def pytest_runtest_logreport(self, report):
        self.of_tests[report.nodeid] += report.cpu_s

    def pytest_sessionfinish(self, session):
        output = getattr(session.config, "workeroutput", None)
        spent = cpu_s() - sum(self.of_tests.values())
        if output is None:
            self.apart += cpu_s() if not self.before else spent
        else:
            output["apart"] = spent

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.apart += getattr(node, "workeroutput", {}).get("apart", 0.0)

    def pytest_terminal_summary(self, terminalreporter):
        files, folders = collections.Counter(), collections.Counter()
        for test, seconds in self.of_tests.items():
            file = test.split("::")[0]
            files[file] += seconds
            folders[str(Path(file).parent)] += seconds
        n_tests = collections.Counter(test.split("::")[0] for test in self.of_tests)
        write = terminalreporter.write_line
        whole = sum(files.values())
        for title, table in ("folder", folders), ("file", files), ("test", self.of_tests):
            terminalreporter.section(f"CPU seconds by {title}")
            for name, seconds in table.most_common(ROWS):
                many = f"  ({n_tests[name]} tests)" if title == "file" else ""
                write(f"{seconds:8.2f}  {name}{many}")
        write(f"{whole:8.1f}  all tests;  {self.apart:.1f} more to start, import, collect")


def pytest_configure(config):
    config.pluginmanager.register(Count())
