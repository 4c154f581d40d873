"""What stands in nested tuples, lists and dicts: what a model is called with, what it returns.

    each(double, {"a": 1, "b": [2, (3,)]})       {"a": 2, "b": [4, (6,)]}

Test: tests/test_nest.py
"""


def each(fn, value):
    """Returns the same nest with fn(leaf) for every leaf. Leaves: all but tuples, lists, dicts."""
    if isinstance(value, dict):
        return type(value)({key: each(fn, inner) for key, inner in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a namedtuple
        return type(value)(*(each(fn, inner) for inner in value))
    if isinstance(value, (tuple, list)):
        return type(value)(each(fn, inner) for inner in value)
    return fn(value)


def leaves(value):
    """Returns the leaves of a nest in a list, in order."""
    found = []
    each(found.append, value)
    return found
