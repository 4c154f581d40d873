"""einsum is NumPy's, for equations of every kind; wrong equations are refused by name."""

import numpy as np
import pytest

import minidl

RNG = np.random.default_rng(0)
CASES = [  # equation, shapes
    ("ij->", [(2, 3)]), ("ij->ji", [(2, 3)]), ("ii", [(3, 3)]), ("ii->i", [(3, 3)]),
    ("ij,jk", [(2, 3), (3, 4)]), ("ij,jk->ki", [(2, 3), (3, 4)]), ("i,i", [(3,), (3,)]),
    ("i,j->ij", [(2,), (3,)]), ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
    ("ij,ij->ij", [(2, 3)] * 2),
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]), ("i...->...", [(3, 2, 2)]),
    ("ia,jb,ab->ij", [(2, 3), (4, 5), (3, 5)]), ("iij,jk->ik", [(2, 2, 3), (3, 4)]),
    (",i->i", [(), (3,)]), ("abc,cd,de,ea->b", [(2, 3, 4), (4, 2), (2, 3), (3, 2)]),
    ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]), ("ij,k->ik", [(2, 3), (4,)]),
    (" i j , j -> i ", [(2, 3), (3,)]),
]


@pytest.mark.parametrize("equation, shapes", CASES)
def test_it_is_numpys(equation, shapes):
    arrays = [RNG.standard_normal(s) for s in shapes]
    got = minidl.einsum(equation, *map(minidl.Tensor, arrays)).numpy()
    wanted = np.einsum(equation.replace(" ", ""), *arrays)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-13)  # other orders of addition


def test_operands_may_come_as_a_list_and_in_two_dtypes():
    a, b = minidl.ones(2, 3), minidl.ones(3, 2, dtype="f8")
    y = minidl.einsum("ij,jk->ik", [a, b])
    assert y.tolist() == [[3, 3], [3, 3]] and y.dtype == np.float64


@pytest.mark.parametrize("equation, message", [
    ("ij", "wants 1 operands; got 2"), ("ij,jk->iz", "each letter of the result must"),
    ("ij,jk->ii", "only once in the result"), ("i,jk->ik", "operand of 'i' has 2 dimensions"),
    ("ij,ij->ij", "dimension 'i' has size 2 and size 3"), ("i1,jk", "operand of 'i1' has")])
def test_wrong_equations_are_refused(equation, message):
    with pytest.raises(ValueError, match=message):
        minidl.einsum(equation, minidl.ones(2, 3), minidl.ones(3, 3))
