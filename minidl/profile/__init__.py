"""Where did the time of a training step go?

    with minidl.profile() as p:               one process; minidl.profile(t): all ranks of t
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()                  here a step ends
    print(p.report())                         rows that add up to a step, and three sentences
    p.trace("trace.json")                     ui.perfetto.dev; p.html(path), p.picture(path)

    minidl profile -n 4 script.py             the same of a script that says nothing of it
    minidl trace trace.json                   prints the report again

    record    the profile: lanes, spans, messages      taps     what is wrapped meanwhile
    device    what ran on a GPU, by its clock
    clocks    the ranks' clocks as one                 flops    what an operator computes and moves
    peaks     what this machine can do                 summary  the figures of a step
    report    those as a text                          advice   three sentences
    trace     a file for Perfetto, and its rules       page, picture   HTML, PNG

Test: tests/profile/   Tutorial: tutorials/19_profile.py
"""

import sys
from types import ModuleType

from minidl.profile.record import Profile, profile

__all__ = ["Profile", "profile"]


class _Callable(ModuleType):
    """The folder `minidl.profile` is called as the function in it."""

    Profile, profile = Profile, staticmethod(profile)  # an editor looks for them here

    def __call__(self, *args, **options):
        return profile(*args, **options)


sys.modules[__name__].__class__ = _Callable
