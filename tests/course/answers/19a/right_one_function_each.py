# right: a small function for each fault
def spans():
    return (s for rank in ranks for step in rank for s in step)


def synchronises():
    n = sum(1 for s in spans() if s["kind"] == "collective" and s["bytes"] in range(1, 65))
    return n > sum(len(rank) for rank in ranks)


def unlike():
    forward = np.array([[sum(s["bytes"] for s in step if s["kind"] == "forward") for step in rank]
                        for rank in ranks], float)
    return (forward.max(0) / forward.min(0)).mean() > 1.25


def doubles():
    seconds = {True: 0.0, False: 0.0}
    for s in spans():
        if s["kind"] in {"forward", "backward"}:
            seconds[s["dtype"] == "float64"] += s["s"]
    return seconds[True] > 0.05 * sum(seconds.values())


tests = {"synchronisation": synchronises, "loader": unlike, "float64": doubles}
return {name for name, test in tests.items() if test()}
