"""Experts: a layer has many times more weights, but each token uses only a few of them.

There are n experts, one on each rank. Each expert is a small network. The router is a matrix W that
all ranks have. It gives a score to each expert for every token x. The token is sent to the k
experts with the largest scores:

    p = softmax(x W)          gate_j = p_j / sum of the k largest p
    y = sum over the k chosen experts j of  gate_j expert_j(x)

For k = 1 the gate is p_j itself. (p_j / p_j would always be 1, and the router could not learn.)

    rank 0   tokens ─ route ─┐              ┌─ expert 0 ─┐              ┌─ y
    rank 1   tokens ─ route ─┼─ all-to-all ─┼─ expert 1 ─┼─ all-to-all ─┼─ y
    rank 2   tokens ─ route ─┘   dispatch   └─ expert 2 ─┘   combine    └─ y

Some experts are chosen more often than others. So each expert has a capacity: of all T tokens it
takes at most

    C = ceil(factor * T k / n)          factor 1.25: a quarter more than an equal share

The tokens that choose an expert form a queue. First come the tokens that have this expert as first
choice, then the tokens that have it as second choice, and so on. Among choices of the same kind,
the tokens of rank 0 come before the tokens of rank 1, and so on. A choice whose place in the queue
(0, 1, ...) is C or more is dropped: it adds nothing to y. To know the places, a rank needs only
counts from the other ranks: how many of their tokens have each expert as first choice, as second
choice, ...

Backward sends along the same paths: the gradients of y go to the experts, and the gradients of the
rows come back. So there are four all-to-alls, two in forward and two in backward. In each
all-to-all a rank has about k T / n rows, and sends (n-1)/n of these rows to other ranks.

Papers: Lepikhin et al., "GShard", 2020; Fedus, Zoph & Shazeer, "Switch Transformers", 2021.
This page is the plain version. The real one, minidl/parallel/model/experts.py and minidl/nn/moe.py,
adds: backward, any number of experts on a rank, a loss or a bias that makes the loads equal, and no
loop over the tokens.
"""

import math

import numpy as np

from minidl.plain.ulysses import all_to_all


def route(x, router, k):
    """Returns two arrays (tokens, k): the k best experts of each token, the best expert first, and
    the gates of these experts."""
    p = np.exp(x @ router)
    p /= p.sum(axis=1, keepdims=True)
    choice = np.argsort(-p, axis=1, kind="stable")[:, :k]
    gates = np.take_along_axis(p, choice, axis=1)
    if k > 1:
        gates /= gates.sum(axis=1, keepdims=True)
    return choice, gates


def everywhere(t, x):
    """Returns the x of all ranks as one array, (n ranks, ...). Every x has the same shape."""
    incoming = [np.empty_like(x) for _ in range(t.size)]
    all_to_all(t, [x] * t.size, incoming)
    return np.stack(incoming)


def places(t, choice, counts):
    """Returns an array (tokens, k): for token i and its choice j, the position of the token in the
    queue of the chosen expert.

    counts: (n ranks, k, n experts). counts[r, j, e] is the number of tokens of rank r that have
    expert e as choice j."""
    place = np.empty_like(choice)
    for j in range(choice.shape[1]):
        earlier_choices = counts[:, :j].sum(axis=(0, 1))
        earlier_ranks = counts[:t.rank, j].sum(axis=0)
        length = earlier_choices + earlier_ranks  # the length of each expert's queue so far
        for token, expert in enumerate(choice[:, j]):
            place[token, j] = length[expert]
            length[expert] += 1
    return place


def moe(t, x, router, expert, k, factor):
    """Returns y for this rank's tokens x (tokens, width). expert(rows) returns the results of this
    rank's expert for these rows. router: the matrix W. An expert takes at most ceil(factor T k / n)
    tokens."""
    choice, gates = route(x, router, k)
    own = np.array([np.bincount(choice[:, j], minlength=t.size) for j in range(k)])
    counts = everywhere(t, own)
    capacity = math.ceil(factor * counts.sum() / t.size)
    kept = places(t, choice, counts) < capacity

    # This is the dispatch. First each rank gets the numbers of tokens that will come to its expert.
    # Then the tokens are sent. An entry of `chosen` belongs to one expert. It is a pair: the tokens
    # that chose this expert, and the number j of each choice.
    chosen = [np.nonzero(kept & (choice == e)) for e in range(t.size)]
    outgoing = [x[token] for token, _ in chosen]
    n_rows = np.empty((t.size, 1), int)
    all_to_all(t, [np.array([len(rows)]) for rows in outgoing], n_rows)
    incoming = [np.empty((n, x.shape[1])) for (n,) in n_rows]
    all_to_all(t, outgoing, incoming)

    done = expert(np.concatenate(incoming))

    # This is the combine. The rows go back to the ranks that sent the tokens.
    back = np.split(done, np.cumsum(n_rows)[:-1])
    home = [np.empty_like(rows) for rows in outgoing]
    all_to_all(t, back, home)
    y = np.zeros_like(x)
    for (token, j), rows in zip(chosen, home):
        y[token] += gates[token, j, None] * rows
    return y


if __name__ == "__main__":
    from minidl.comm import simulate

    def example(t):
        # The token [1, 0] goes to expert 0, and the token [0, 1] goes to expert 1. The gate of each
        # token is about 1 - e^-99.
        router = np.array([[99.0, 0.0], [0.0, 99.0]])
        x = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])

        def expert(rows):
            return 10 * (t.rank + 1) * rows
        # An expert takes at most ceil(1.0 * 6 tokens * 1 / 2 experts) = 3 tokens. 4 tokens choose
        # expert 0, so one of them is dropped.
        return moe(t, x, router, expert, k=1, factor=1.0)

    for rank, y in enumerate(simulate(2, example)):
        print("rank", rank, *y)
