"""A warm start: a run on a stream starts with the rows of a model that was trained offline.

    offline rows           a 0.4   b 0.1   c 0.9               trained on records before the cut
    this run's rows                b 0.3   c 0.2   d 0.7       the id d came after the cut
    rows afterwards        a 0.4   b 0.1   c 0.9   d 0.7       and the optimizer's state of each row

The cut is a time. The offline model was trained on the stream's records up to this time.

    offline = Tables(t, [...], servers, P)                     the same tables and servers
    snapshot.load("offline", t, model=model, tables=offline)
    taken, before, after = warm_start(tables, offline, gate)
    start = [log.at_time(p, cut) for p in range(P)]            the stream from the cut on, if taken

The offline rows have seen no record after the cut. So the stream is read again from the cut, and
positions are counted again from there. A row that this run keeps (d) sees these records twice.
Suppose that this run has no rows yet, as at its start. Then the result equals the result of another
run, which has itself trained on the records before the cut. With SYNC the two results have the same
bits.

gate() computes the log loss of predictions for some records. Use records on which neither of the
two runs has trained, or on which both runs have trained. If the offline rows are worse (trained on
other features, too briefly, or on broken data), this run gets its old rows back.
Source: Dawid 1984 (prequential); He et al. 2014 (ADKDD), on fresh training data.
Test: tests/parallel/server/test_warm.py   Tutorial: tutorials/24_stream.py, train_clicks.py
"""

import numpy as np


def warm_start(tables, offline, gate):
    """Returns (taken, before, after). taken: True if this run now has the offline rows. before,
    after: the results of gate() with the old rows and with the offline rows. Collective. Call
    warm_start() while no server serves.

    tables, offline   Tables with the same number of servers
    gate()            returns a mean log loss, the same on all ranks. On a server gate() must call
                      serve(). On a worker it pulls rows and predicts, without a push

    Raises ValueError if the tables or the numbers of servers differ."""
    tables.load_state_dict(offline.state_dict())  # raises an error if the tables differ
    if tables.n_servers != offline.n_servers:
        raise ValueError(f"rank {tables.t.rank}: a warm start wants offline Tables on "
                         f"{tables.n_servers} servers, because the run's Tables are on "
                         f"{tables.n_servers}; got offline Tables on {offline.n_servers}. Load "
                         f"the offline snapshot into Tables with {tables.n_servers} servers. The "
                         "snapshot can come from a run with another number of servers")
    own = {name: (table.rows(), table.now) for name, table in tables.tables.items()}
    before, taken = gate(), False
    for name, table in tables.tables.items():
        taken_over(table, offline.tables[name])
    try:
        after = gate()
        taken = bool(after <= before)  # False if `before` or `after` is nan
    finally:
        for name, table in tables.tables.items() if not taken else ():
            rows, now = own[name]
            table.load_rows(rows, everything)
            table.now = now
    tables.seen[...] *= not taken
    return taken, before, after


def taken_over(table, offline):
    """Copies all rows of `offline` into `table`. For ids without a row it copies the counts of
    their pushes."""
    own, new, now = table.rows(), offline.rows(), max(table.now, offline.now)
    stays = ~np.isin(own["id"], new["id"])
    rows = {kind: np.concatenate([own[kind][stays], new[kind]])
            for kind in own if kind != "waiting"}
    left = [one[~np.isin(one[:, 0], ids)] for one, ids in (
        (own["waiting"], np.concatenate([new["id"], new["waiting"][:, 0]])),
        (new["waiting"], rows["id"]))]
    table.load_rows(rows | {"waiting": np.concatenate(left)}, everything)
    table.now = now


def everything(ids):
    return np.full(len(ids), True)
