"""minidl/parallel/server/table.py: rows against their formulas, how they come and go, cost."""

import tracemalloc

import numpy as np
import pytest

from minidl.parallel.server.table import FIRST, Table, adagrad, ftrl, mixed

DAY = 86_400_000


def ids(*which):
    return np.array(which, np.int64)


def ones(n, dim=2):
    return np.ones((n, dim), np.float32)


def test_ftrl_is_the_minimum_that_it_promises():
    """w minimises g_1:t w + sum of sigma_s (w - w_s)^2 / 2 + l1 |w| + l2 w^2 / 2, in float64."""
    rng = np.random.default_rng(0)
    alpha, beta, l1, l2 = 0.3, 1.0, 0.4, 0.2
    table = Table("t", 1, ftrl(alpha, beta, l1, l2))
    grads, weights = [], [0.0]
    for _ in range(12):
        grads.append(rng.normal())
        table.push(ids(7), np.array([[grads[-1]]], np.float32), 0)
        roots = np.sqrt(np.cumsum([0.0, *np.square(grads)]))
        sigma = np.diff(roots) / alpha

        def objective(w):
            past = sum(s * (w - v) ** 2 for s, v in zip(sigma, weights, strict=True))
            return (sum(grads) * w + past / 2 + l1 * abs(w)
                    + (beta / alpha + l2) * w * w / 2)

        w = float(table.pull(ids(7))[0, 0])
        grid = np.concatenate([np.linspace(-2, 2, 40_001), [0.0]])
        best = grid[np.argmin(objective(grid))]
        assert abs(w - best) < 2e-4
        weights.append(w)
    assert 0.0 in weights[1:], "l1 holds some at zero"


def test_adagrad_is_that_of_torch_on_the_rows_touched():
    torch = pytest.importorskip("torch", reason="pip install torch")
    table = Table("t", 3, adagrad(lr=0.2))
    dense = torch.tensor(table.initial(np.arange(9)), requires_grad=True)
    optimizer = torch.optim.Adagrad([dense], lr=0.2, eps=1e-10)
    rng = np.random.default_rng(1)
    for _ in range(5):
        which = rng.choice(9, 4, replace=False)
        grad = rng.normal(size=(4, 3)).astype(np.float32)
        table.push(which, grad, 0)
        dense.grad = torch.zeros(9, 3)
        dense.grad[which] = torch.tensor(grad)
        optimizer.step()
    np.testing.assert_allclose(table.pull(np.arange(9)), dense.detach().numpy(), rtol=1e-5)


def test_an_id_gets_its_row_after_so_many_pushes():
    table = Table("t", 2, admit=3)
    first = table.pull(ids(5))
    for n in (1, 2):
        table.push(ids(5), ones(1), 0)
        assert len(table) == 0 and table.waiting == {5: (n, 0)}
        np.testing.assert_array_equal(table.pull(ids(5)), first)
    table.push(ids(5), ones(1), 0)
    assert len(table) == 1 and not table.waiting and (table.pull(ids(5)) != first).all()


def test_rows_and_counts_are_forgotten_with_their_state():
    table = Table("t", 2, admit=2, ttl_s=86400)
    for now, which in ((0, ids(1, 2, 3)), (10, ids(1, 2)), (DAY, ids(1)), (DAY + 5, ids(9))):
        table.push(which, ones(len(which)), now)
    assert list(table.slots) == [2, 1] and 3 not in table.waiting, "3 came once, a day ago"
    used = table.pull(ids(2))
    table.push(ids(1), ones(1), DAY + 11)
    assert list(table.slots) == [1]
    assert (table.pull(ids(2)) != used).all()
    for _ in range(2):
        table.push(ids(2), ones(1), DAY + 12)
    fresh = Table("t", 2)
    fresh.push(ids(2), ones(1), 0)
    np.testing.assert_array_equal(table.pull(ids(2)), fresh.pull(ids(2)))  # no old state
    np.testing.assert_array_equal(table.arrays["n"][table.slots[2]], 1.0)
    assert len(table.seen) == FIRST, "slots are used again"


def test_a_row_is_kept_for_all_of_its_time():
    table = Table("t", 2, ttl_s=1)
    for now, left in ((0, [1]), (1000, [1, 2]), (1001, [2])):  # milliseconds
        table.push(ids(2 if now else 1), ones(1), now)
        assert list(table.slots) == left


def test_initial_rows_are_a_function_of_seed_and_id():
    one, other = Table("t", 8, seed=1), Table("t", 8, seed=2)
    many = np.arange(-5000, 5000)
    rows = one.pull(many)
    np.testing.assert_array_equal(rows[[7, 3]], one.pull(many[[7, 3]]))
    assert not (rows == other.pull(many)).any(axis=1).all()
    assert abs(rows.mean()) < 1e-3 and abs(rows.std() - 0.05 / np.sqrt(3)) < 1e-3
    assert rows.min() >= -0.05 and rows.max() < 0.05 and len(np.unique(rows[:, 0])) > 9900
    shares = np.bincount((mixed(many) % np.uint64(3)).astype(int))
    assert shares.min() > 3100, "rows are dealt evenly"


def test_a_push_costs_what_it_touches():
    """64 rows of a table of 2^16: no memory, and so no work, that grows with the table."""
    table = Table("t", 8)
    many = np.arange(1 << 16)
    table.push(many, np.zeros((len(many), 8), np.float32), 0)
    assert len(table) == 1 << 16
    some = many[:: 1 << 10]
    tracemalloc.start()
    table.pull(some)
    table.push(some, ones(64, 8), 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * 8 * 4 * 12 + 16_384, f"{peak} bytes; the table has {table.seen.nbytes * 5}"


@pytest.mark.parametrize("rows", [ftrl(l1=0.1), adagrad()])
def test_what_is_saved_goes_on_to_the_same_bits(rows):
    def pushes(table, steps):
        for step in steps:
            rng = np.random.default_rng(step)
            which = rng.choice(300, 40, replace=False) * (step + 1) % 311
            which = np.unique(which)
            table.push(which, rng.normal(size=(len(which), 2)).astype(np.float32), 1000 * step)

    whole, cut = (Table("t", 2, rows, admit=2, ttl_s=5) for _ in range(2))
    pushes(whole, range(30))
    pushes(cut, range(13))
    for step in range(13, 30):
        saved, resumed = cut.rows(), Table("t", 2, rows, admit=2, ttl_s=5)
        resumed.load_rows(saved, lambda which: which >= -9)
        resumed.now = cut.now
        pushes(resumed, [step])
        cut = resumed
    assert set(whole.slots) == set(cut.slots) and len(whole) > 20
    assert whole.waiting == cut.waiting
    np.testing.assert_array_equal(whole.pull(np.arange(311)), cut.pull(np.arange(311)))


def test_the_hash_is_splitmix64():
    """The first numbers of the generator with seed 0, from the paper's reference program."""
    golden = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    step = 0x9E3779B97F4A7C15
    states = np.array([i * step % 2**64 for i in range(3)], np.uint64)
    assert mixed(states).tolist() == golden
