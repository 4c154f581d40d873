"""The student's process, and what travels between it and the grader's."""

import numpy as np
import pytest

from minidl.course import student

GRADER = '''
def called(module, *args):
    return module.f(*args)
'''


@pytest.mark.parametrize("value", [
    None, True, 3, -2.5, float("inf"), "text", [1, [2]], (1, "a"), {1: (2.0, None), "k": []},
    np.float32(0.1), np.float64(0.1), np.int8(-3), np.bool_(True)])
def test_a_value_arrives_as_it_was(value):
    got = student.unpack(student.pack(value))
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i8", "?", "c8"])
def test_an_array_arrives_to_the_bit(dtype):
    x = np.arange(6).reshape(2, 3).astype(dtype)[:, ::2]
    got = student.unpack(student.pack([x]))[0]
    assert got.dtype == x.dtype and got.shape == x.shape and (got == x).all()
    got[...] = 0  # it may be written


def test_what_is_no_number_does_not_travel():
    for value in (object(), {1}, np.array([None]), lambda: 0):
        with pytest.raises(student.Wrong, match="wanted results"):
            student.pack(value)
    with pytest.raises(ValueError, match="wanted a dtype of numbers"):
        student.unpack(b'{"array": ["O", [1], "AAAA"]}')


def test_an_array_that_says_it_is_equal_arrives_without_its_methods():
    class Anything(np.ndarray):
        def __eq__(self, other):
            return np.ones(self.shape, bool)

    got = student.unpack(student.pack(np.zeros(2).view(Anything)))
    assert type(got) is np.ndarray and not (got == 1).any()


def test_arguments_must_fit_into_a_pipe(tmp_path):
    (tmp_path / "grader.py").write_text(GRADER)
    (tmp_path / "theirs.py").write_text("def f(n): return n + 1\n")
    theirs = student.Apart(tmp_path / "grader.py", tmp_path / "theirs.py", 30)
    try:
        theirs.loaded()
        called = student.load(tmp_path / "grader.py").called
        assert theirs.run(called, 4) == 5
        with pytest.raises(ValueError, match="Make long inputs in both processes"):
            theirs.run(called, np.zeros(10_000))
        with pytest.raises(student.Failed, match="theirs.py, line 1, in f"):
            theirs.run(called, "text")
        assert theirs.run(called, 1) == 2, "an error is an answer: the process goes on"
    finally:
        theirs.close()


@pytest.mark.timeout(20)
def test_an_error_that_is_its_own_cause_is_explained(tmp_path):
    """Red before: the grader followed the causes for ever."""
    one, two = ValueError("a"), ValueError("b")
    one.__cause__ = one
    assert student.explain(one, tmp_path / "x.py").strip() == "ValueError: a"
    one.__cause__, two.__cause__ = two, one  # a circle of two
    assert student.explain(one, tmp_path / "x.py").strip() in ("ValueError: a", "ValueError: b")
