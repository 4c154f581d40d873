"""Grades work/15_hybrid_3d.py.   Test: tests/tutorials/test_exercises.py"""

from itertools import permutations, product

from minidl.comm import Links, grid
from minidl.course.grade import Wrong

WEIGHTS, LAYERS, WIDTH = 1e9, 24, 2048
# (ranks, ranks of a node, seconds per byte between nodes, gigabytes a rank, tokens, m, seconds of
# work). Each mistake in SAY gives another layout in at least one case.
CASES = [
    (8, 4, 1e-9, 2.5, 1 << 18, 16, 20.0), (8, 4, 1e-9, 2.5, 1 << 18, 8, 5.0),
    (8, 4, 1e-10, 3.0, 1 << 16, 32, 20.0), (8, 2, 2e-10, 6.0, 1 << 18, 8, 5.0),
    (8, 4, 1e-10, 2.0, 1 << 16, 8, 5.0), (8, 4, 1e-10, 6.0, 1 << 14, 8, 20.0),
    (4, 2, 4e-10, 16.0, 1 << 16, 8, 10.0), (12, 4, 1e-10, 2.0, 1 << 16, 12, 20.0)]


def links_of(case):
    return Links.nodes(case[1], (5e-6, 1e-11), (20e-6, case[2]))


def chosen(module, case):
    """Returns the student's layout as pairs, or the repr of an answer that is no layout."""
    n, _, _, gigabytes, tokens, m, seconds = case
    net = module.Net(WEIGHTS, LAYERS, WIDTH, tokens, m, seconds)
    layout = module.choose(n, gigabytes * 1e9, net, links_of(case))
    if not isinstance(layout, dict):
        return repr(layout)[:100]
    return [(str(axis), int(size)) for axis, size in layout.items()]


# >>> reference
def layouts(n):
    """Yields all layouts of n ranks: {axis: ranks}, the fastest-varying axis first."""
    for tp, pp in product(range(1, n + 1), repeat=2):
        if n % (tp * pp) == 0:
            for order in permutations(("tp", "pp", "dp")):
                yield grid.shape(n, [*order, "cp", "ep"], tp=tp, pp=pp, dp=n // (tp * pp))


def held(case, layout, mistake=None):
    """Returns the bytes that a rank holds."""
    tp, pp, dp = (layout[axis] for axis in ("tp", "pp", "dp"))
    own = WEIGHTS / (tp * pp)
    return 4 * own + 12 * own / (1 if mistake == "zero" else dp)


def seconds_of(case, layout, mistake=None):
    """Returns {part of a step: its seconds}. mistake: the name in SAY of a mistake to make, or
    None."""
    n, _, _, _, tokens, m, seconds = case
    tp, pp, dp = (layout[axis] for axis in ("tp", "pp", "dp"))
    own = WEIGHTS / (1 if mistake == "dp whole" else tp * pp)
    parts = {"tokens of all": m, "batch": dp}.get(mistake, dp * m)
    activation = 2 * tokens / parts * WIDTH
    cost = grid.traffic(layout, links_of(case), {"tp": activation, "pp": activation, "dp": 2 * own})
    n_sums = 4 * LAYERS / (1 if mistake == "layers" else pp) * (1 if mistake == "once" else m)
    times = {"work and bubble": seconds / n * (1 + (pp - 1) / m), "tp": n_sums * cost["tp"].time_s,
             "pp": 2 * m * cost["pp"].time_s, "dp": cost["dp"].time_s}
    if mistake == "bubble":
        times["work and bubble"] = seconds / n
    if mistake == "pp":
        times["pp"] = 0
    if mistake == "work alone":
        times = {"work and bubble": times["work and bubble"]}
    return times


def best(case, mistake=None):
    """Returns the fastest layout that fits, or None if no layout fits.

    With a mistake: returns the layout that this mistake leads to."""
    fit = [layout for layout in layouts(case[0]) if _fits(case, layout, mistake)]
    return min(fit, key=lambda layout: _cost(case, layout, mistake), default=None)


def _fits(case, layout, mistake=None):
    if mistake == "order" and [a for a in layout if layout[a] > 1] != [
            a for a in ("tp", "dp", "pp") if layout[a] > 1]:
        return False
    return mistake == "limit" or held(case, layout, mistake) <= case[3] * 1e9


def _cost(case, layout, mistake=None):
    if mistake == "least":
        return held(case, layout)
    return sum(seconds_of(case, layout, mistake).values())


def _is_best(case, layout, mistake=None):
    """Returns True if no layout is faster. Several layouts may be equally fast."""
    of = best(case, mistake)
    return (of is not None and {layout["cp"], layout["ep"]} == {1} and _fits(case, layout, mistake)
            and _cost(case, layout, mistake) <= _cost(case, of, mistake) * (1 + 1e-9))
# <<<


SAY = {
    "order": "the order is always tp, dp, pp. Try all six: which group crosses nodes depends on it",
    "limit": "the limit is not looked at: leave out layouts with more than `limit` bytes a rank",
    "zero": "these layouts hold 16 X/(t pp) bytes. With ZeRO 1 the 12 bytes of the optimizer are "
            "divided by d, too",
    "layers": "the all-reduces of tp are counted for all layers, but a rank has layers/pp of them",
    "once": "the all-reduces of tp are counted once a step, but they come in each of the m "
            "micro-batches",
    "dp whole": "the gradients of all X weights are sent along dp, but a rank has only those of "
                "X/(t pp) weights",
    "tokens of all": "an activation has the tokens of all pipelines, but each has tokens/d of them",
    "batch": "an activation has all tokens of a pipeline, but a micro-batch has tokens/(d m)",
    "bubble": "the bubble is missing. With it the work takes 1 + (pp-1)/m times as long",
    "pp": "the sends along pp are missing. Add 2 m of them",
    "work alone": "the groups' messages take no time here. Add the times of tp, pp and dp",
    "least": "these layouts hold the fewest bytes; wanted is the fastest layout that fits",
}


def grade_15a(student):
    """the fastest of all layouts that fit, in several networks."""
    found = []
    for case in CASES:
        found.append(_checked(case, student.run(chosen, case)))
    yield f"{len(CASES)} networks: a layout of all ranks"
    if not all(_is_best(case, layout) for case, layout in zip(CASES, found, strict=True)):
        _explain(found)
    for case, layout in zip(CASES, found, strict=True):
        yield f"{_of(case)}: {_words(layout)}"


def _checked(case, layout):
    """Returns the student's layout in the form of `layouts`. Raises Wrong if it is no layout."""
    if layout == "None":
        raise Wrong(f"{_of(case)}: nothing seems to fit, but some factorisations fit. A rank has "
                    "X/(t pp) weights and holds 4 X/(t pp) + 12 X/(t pp d) bytes")
    if isinstance(layout, str):
        raise Wrong(f"{_of(case)}: wanted a layout {{axis: ranks}}, as grid.shape returns; got "
                    f"{layout}")
    try:
        sizes = dict(layout)
        return grid.shape(case[0], [*sizes, *(a for a in grid.AXES if a not in sizes)], **sizes)
    except (ValueError, TypeError) as error:
        raise Wrong(f"{_of(case)}: {layout} is no layout: {error}") from error


def _explain(found):
    """Raises Wrong. The text names the first wrong layout, and the mistake that gives all these
    layouts if it is known."""
    for mistake, words in SAY.items():
        if all(_is_best(case, mine, mistake) for case, mine in zip(CASES, found, strict=True)):
            raise Wrong(f"{words}. {_first_wrong(found)}")
    raise Wrong(_first_wrong(found))


def _first_wrong(found):
    case, layout = next((case, layout) for case, layout in zip(CASES, found, strict=True)
                        if not _is_best(case, layout))
    n_bytes, right = held(case, layout), best(case)
    if n_bytes > case[3] * 1e9:
        return (f"{_of(case)}: {_words(layout)} holds 4 X/(t pp) + 12 X/(t pp d) = "
                f"{n_bytes / 1e9:.3g} GB a rank; the limit is {case[3]:g} GB")
    times, least = seconds_of(case, layout), seconds_of(case, right)
    most = max(times, key=lambda part: times[part] - least[part])
    other = "the same in another order of the ranks" if layout == right else "another layout"
    return (f"{_of(case)}: {_words(layout)} takes {sum(times.values()):.4g} s, {other} takes "
            f"{sum(least.values()):.4g} s. The difference is mostly in {most}: "
            f"{times[most]:.3g} s, not {least[most]:.3g} s")


def _words(layout):
    return ", ".join(f"{axis} {n}" for axis, n in layout.items() if n > 1)


def _of(case):
    return (f"{case[0]} ranks, {case[1]} a node, {1e-9 / case[2]:g} GB/s between nodes, "
            f"{case[3]:g} GB each")


WRONG = {
    "15a": {
        "one order": ({"in permutations(AXES)": 'in [("tp", "dp", "pp")]'},
                      "which group crosses nodes"),
        "no limit": ({"4 * own + 12 * own / dp > limit": "False"}, "the limit is not looked at"),
        "no ZeRO": ({"12 * own / dp > limit": "12 * own > limit"},
                    "divided by d, too"),
        "the memory of all": ({"4 * own + 12 * own / dp > limit":
                               "4 * net.weights + 12 * net.weights / dp > limit"},
                              "nothing seems to fit"),
        "all layers on every rank": ({"4 * net.layers / pp * net.m": "4 * net.layers * net.m"},
                                     "a rank has layers/pp of them"),
        "one micro-batch": ({"net.layers / pp * net.m": "net.layers / pp"},
                            "in each of the m micro-batches"),
        "all gradients": ({'"dp": 2 * own': '"dp": 2 * net.weights'}, "those of X/(t pp)"),
        "all tokens": ({"(dp * net.m)": "net.m"}, "each has tokens/d"),
        "no bubble": ({"(1 + (pp - 1) / net.m)": "1"}, "the bubble is missing"),
        "no sends": ({"seconds += 2 * net.m": "0 * net.m"}, "2 m of them"),
        "the least memory": ({"if seconds < least": "if own + 3 * own / dp < least",
                              "layout, seconds": "layout, own + 3 * own / dp"},
                             "wanted is the fastest"),
        "the slowest": ({"np.inf": "0", "if seconds <": "if seconds >"}, "mostly in"),
    },
}
