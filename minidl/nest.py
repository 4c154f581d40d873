"""Works on all values in nested tuples, lists and dicts, such as a model's inputs and outputs.

    each(double, {"a": 1, "b": [2, (3,)]})       {"a": 2, "b": [4, (6,)]}

Test: tests/test_nest.py
"""


def each(fn, value):
    """Returns a copy of `value` with fn(leaf) in place of each leaf. value: nested tuples, lists
    and dicts. A leaf is any value that is not a tuple, list or dict."""
    if isinstance(value, dict):
        return type(value)({key: each(fn, inner) for key, inner in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a namedtuple
        return type(value)(*(each(fn, inner) for inner in value))
    if isinstance(value, (tuple, list)):
        return type(value)(each(fn, inner) for inner in value)
    return fn(value)


def leaves(value):
    """Returns a list of all leaves of `value` (see each()), in order."""
    found = []
    each(found.append, value)
    return found
