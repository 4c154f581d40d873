"""How long does it take to count a message? The goal is at most 3 us.

    python benchmarks/bench_ledger.py [--messages 10000] [--rounds 9] [--out F.json]

A rank sends itself four floats by `sendrecv`, two messages per call, in the simulator and on MPI in
one process. Three transports are timed in turn: without a ledger, with a ledger, and with a ledger
that is off. Each transport is measured in two cases. The ledger counts messages for each line of
the user's code. A collective looks up this line once. In point-to-point communication the line is
looked up for each message.
"""

import argparse
import statistics

import numpy as np
from common import bar, device_option, finish, heading, row, span, take_turns, timed

from minidl.comm import Ledger, simulate, world
from minidl.comm.collective import collective

PLAIN, COUNTED, OFF = "plain", "counted", "off"


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=9)
    device_option(parser, "Python counts a message in the same way for every device")
    parser.add_argument("--out", help="JSON file")
    return parser.parse_args()


def point_to_point(t, n_messages):
    out, into = np.zeros(4, "f4"), np.zeros(4, "f4")
    for _ in range(n_messages // 2):
        t.sendrecv(out, 0, into, 0)


in_a_collective = collective(point_to_point)


def overheads(t, args):
    """Returns {(how, which): microseconds}. The microseconds are the median of the time that a
    ledger adds to a message. how: "in a collective" or "point to point". which: a ledger that
    counts, or a ledger that is off."""
    off = Ledger(t)
    off.off()
    result = {}
    for how, work in (("in a collective", in_a_collective), ("point to point", point_to_point)):
        times = take_turns(
            {
                name: timed(lambda u=u, work=work: work(u, args.messages))
                for name, u in ((PLAIN, t), (COUNTED, Ledger(t)), (OFF, off))
            },
            args.rounds,
        )
        for name in (COUNTED, OFF):
            more = [a - b for a, b in zip(times[name], times[PLAIN], strict=True)]
            result[how, name] = 1e6 * statistics.median(more) / args.messages
    return result


def main():
    args = options()
    print(heading())
    print(f"{args.messages} messages, median of {args.rounds} rounds\n")
    print(f"{'':10} {'':16} {'counted':>10} {'off':>10}   measured us more a message than plain")
    figures = {}
    for where, result in (
        ("simulator", simulate(1, overheads, args)[0]),
        ("MPI", overheads(world(), args)),
    ):
        for how in ("in a collective", "point to point"):
            on, off = result[how, COUNTED], result[how, OFF]
            print(f"{where:10} {how:16} {on:>10.2f} {off:>10.2f}")
            figures[f"{where}, {how}"] = {"counted_us": on, "off_us": off}
    finish(figures, *report(figures), args.out)


def report(figures):
    """Returns (bars, rows). A bar is a measured number with its goal. A row is a line of the table
    in docs/figures.md."""
    bars = [bar(f"counting a message, {what}, us", f["counted_us"], 3, at_most=True)
            for what, f in figures.items()]
    return bars, [row("counting a message in the ledger: simulator and MPI, in a collective and "
                      "point to point", "", f"{span([b['figure'] for b in bars])} us", bars)]


if __name__ == "__main__":
    main()
