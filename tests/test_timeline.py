"""Sums over spans."""

from minidl.timeline import Span, Timeline


def timeline(*spans):
    made = Timeline()
    for span in spans:
        made.add(*span)
    return made


def test_busy_and_overlap_are_sums_of_seconds():
    made = timeline(("a", "1", 0.0, 2.0), ("b", "2", 1.0, 4.0), ("a", "3", 3.0, 5.0))
    assert made.busy("a") == 4.0 and made.busy("b") == 3.0 and made.busy("c") == 0
    assert made.overlap("a", "b") == made.overlap("b", "a") == 2.0
    for begin in (1.0, 1.5):  # touching, apart
        assert timeline(("a", "1", 0.0, 1.0), ("b", "2", begin, 2.0)).overlap("a", "b") == 0
    assert made.spans[1] == Span("b", "2", 1.0, 4.0)
