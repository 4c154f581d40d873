"""`make peers`: the tests of other projects, run on minidl.

    python -m tests.peers                     all peers; then a table, and why some do not map
    python -m tests.peers tinygrad conv       one peer, and only what has the word in its name

Each peer is a module with cases(word), which yields (name, outcome, why):

    passed        the peer's expectation and minidl's answer agree
    wrong         they differ: the exit status is then 1
    not mapped    minidl has no such thing, or refuses it; `why` says what

A peer that ran nothing counts as wrong: then it was not there, or its names have changed.
"""

import collections
import importlib
import sys
import time
import warnings

PEERS = ("pipelining", "c10d", "gloo", "safetensors", "tinygrad")
MOST_PRINTED = 30  # of wrong cases
OUTCOMES = ("passed", "wrong", "not mapped")


def run(peer, word):
    """Runs one peer. Prints each wrong case, then why cases are not mapped; returns the counts."""
    counts, why_not = collections.Counter(), collections.Counter()
    for name, outcome, why in importlib.import_module(f"tests.peers.{peer}_peer").cases(word):
        counts[outcome] += 1
        if outcome == "wrong" and counts["wrong"] <= MOST_PRINTED:
            print(f"{peer}: wrong  {name}: {why}", flush=True)
        if outcome == "not mapped":
            why_not[why] += 1
    for why, n in why_not.most_common():
        print(f"{peer}: {n:4} not mapped: {why}")
    return counts


def table(rows):
    """Returns the lines of the table. rows: {peer: (its counts, seconds)}."""
    lines = [f"{'peer':12}" + "".join(f"{outcome:>12}" for outcome in (*OUTCOMES, "seconds"))]
    for peer, (counts, time_s) in rows.items():
        lines.append(f"{peer:12}" + "".join(f"{counts[outcome]:12}" for outcome in OUTCOMES)
                     + f"{time_s:12.0f}")
    return lines


def main(only=None, word=""):
    if only is not None and only not in PEERS:
        print(f"no peer {only!r}; there are {', '.join(PEERS)}", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")  # of the peers' own code
    rows = {}
    for peer in PEERS if only is None else (only,):
        begin = time.perf_counter()
        rows[peer] = run(peer, word), time.perf_counter() - begin
    print("\n" + "\n".join(table(rows)))
    return int(any(counts["wrong"] or not counts["passed"] for counts, _ in rows.values()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
