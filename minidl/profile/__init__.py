"""Measures where the time of a training step goes.

    with minidl.profile() as p:               one process; minidl.profile(t): all ranks of t
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()                  a step ends here
    print(p.report())                         rows that add up to a step, and three hints
    p.trace("trace.json")                     writes a file for ui.perfetto.dev
    p.html(path)                              writes an HTML page; p.picture(path) writes a PNG

    minidl profile -n 4 script.py             the same for a script without these lines
    minidl trace trace.json                   prints the report again

    record    the profile: lanes, spans, messages     instrument  wraps functions, to time them
    device    times of work on a GPU, by its clock    clocks   converts times to rank 0's clock
    flops     operations and bytes of an operator     peaks    measures this machine's best speed
    summary   computes the numbers of a step          report   writes these numbers as text
    advice    makes three hints from the numbers      trace    writes a file for Perfetto
    page      an HTML page                            picture  a PNG

Test: tests/profile/   Tutorial: tutorials/19_profile.py
"""

import sys
from types import ModuleType

from minidl.profile.record import Profile, profile

__all__ = ["Profile", "profile"]


class _Callable(ModuleType):
    """Makes the module `minidl.profile` callable: minidl.profile(...) calls the function
    `profile`."""

    Profile, profile = Profile, staticmethod(profile)  # an editor looks for these names here

    def __call__(self, *args, **options):
        return profile(*args, **options)


sys.modules[__name__].__class__ = _Callable
