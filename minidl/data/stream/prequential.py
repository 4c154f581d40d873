"""Evaluates a model on a stream. Each record is predicted first, and then the model trains on it.

    AUC          the probability that a positive's prediction is above a negative's prediction. A
                 tie counts as one half
    log loss     -mean [y log p + (1 - y) log(1 - p)]
    calibration  sum of predictions / number of positives; 1 is best

An exact AUC needs all predictions, sorted. Here predictions are counted in bins of the logit,
positives and negatives separately. An all-reduce of 16 (bins + 1) bytes adds the counts of all
ranks. The number of records does not change this number of bytes. Predictions in one bin count as
ties. The true AUC differs by at most `auc_error`.

Sources: Dawid 1984 (prequential); Fawcett 2006 (AUC).
Test: tests/data/stream/test_prequential.py   Tutorial: tutorials/24_stream.py, train_clicks.py
"""

import numpy as np

from minidl.comm import ring

BINS = 2048
LOGIT = 16.0  # the bins cover -LOGIT to LOGIT. Other logits count in the first or the last bin
LEAST = 1e-7  # the smallest probability in the log loss


class Prequential:
    """Counts predictions on this rank. Call add() in each step. report() is a collective: it
    combines the counts of all ranks."""

    def __init__(self):
        self.counts, self.sums = np.zeros((2, BINS)), np.zeros(2)

    def add(self, p, y):
        """Counts n predictions. p: probabilities, y: labels 0 and 1, both (n,)."""
        p = np.clip(np.asarray(p, np.float64), LEAST, 1 - LEAST)
        y = np.asarray(y) > 0
        at = (np.log(p / (1 - p)) + LOGIT) / (2 * LOGIT) * BINS
        at = np.clip(at, 0, BINS - 1).astype(np.int64)
        for label in (0, 1):
            self.counts[label] += np.bincount(at[y == label], minlength=BINS)
        self.sums += p.sum(), -np.log(np.where(y, p, 1 - p)).sum()

    def report(self, t=None):
        """Returns {"n", "auc", "auc_error", "log_loss", "calibration"} of all ranks of t, and sets
        the counts to zero. If t is None, counts only this rank. A value is nan if its data are
        missing: "auc" needs at least one positive and one negative."""
        flat = np.concatenate([self.counts.ravel(), self.sums])
        if t is not None:
            flat = ring.all_reduce(t, flat)
        self.__init__()
        (negative, positive), (sum_p, loss) = flat[:-2].reshape(2, -1), flat[-2:]
        below = np.cumsum(negative) - negative
        with np.errstate(invalid="ignore", divide="ignore"):
            pairs = negative.sum() * positive.sum()
            ties = (positive * negative).sum() / 2
            return {"n": int(negative.sum() + positive.sum()),
                    "auc": float(((positive * below).sum() + ties) / pairs),
                    "auc_error": float(ties / pairs),
                    "log_loss": float(loss / (negative.sum() + positive.sum())),
                    "calibration": float(sum_p / positive.sum())}
