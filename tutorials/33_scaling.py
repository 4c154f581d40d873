"""33  Scaling laws: a loss is predicted before the model is trained.   60 minutes, needs: 07, 31

    mpirun -n 2 python tutorials/33_scaling.py          (or: minidl run -n 2 ...)
    python tutorials/33_scaling.py --sim 2              picture: out/33_scaling.png

Let N be the number of parameters of a language model, without embeddings. Let D be the number of
tokens that the model is trained on. The loss falls nearly as a power of N, and nearly as a power of
D:

    L(N) = (N / N_c)^-alpha      D fixed                L(D) = (D / D_c)^-beta      N fixed

Kaplan et al. measured alpha = 0.076 and beta = 0.095 with large models. Here five tiny GPTs of
different sizes give the first law. Five runs with different numbers of tokens give the second law.
Each law predicts the loss of a sixth run before this run is trained.

1. In logarithms a power law is a straight line. There are n runs, with x = N or x = D. Let
u = ln x - mean(ln x). Then the best line, and the errors of its two numbers, are (exercise 33a):

    ln L = level + slope u        slope = sum(u ln L) / sum(u^2),   level = mean(ln L)
    scatter s = sqrt(sum of squared residuals / (n - 2))            two numbers were fitted
    level error = s / sqrt(n),  slope error = s / sqrt(sum(u^2))

Because u has the mean 0, the two errors are independent. A new run at u has the scatter s, too:

    error of a prediction = sqrt(s^2 + level_error^2 + slope_error^2 u^2)

The interval from 3.182 errors below the prediction to 3.182 errors above it holds 95 of 100 new
runs. The factor 3.182 is from Student's distribution with 5 points - 2 = 3 degrees of freedom. It
is larger than the usual 1.96, because s is computed from few points. Part 1 of the table tries this
on 2,000 artificial studies in which a power law is true: the share must be 95 %.

2. Every point is a mean over seeds. The ranks share the runs, because no run needs another run.

3. The interval is right only if the law is a power law. With D fixed, the loss stays above a limit
E. So L(N) = E + A N^-alpha, and in logarithms the line bends up for large N. N of the fifth point
is only ten times N of the first. Such points do not show E, and a fit of three numbers to five
points is worth little. So the plain power law is fitted, and the sixth model is only twice as large
as the fifth. This study was repeated 11 times with other seeds. Each time the loss of the sixth
size was inside its interval, and 10 times it was above the prediction. With three other texts this
loss was inside its interval, too. So the table checks this row. The loss for the sixth number of
tokens was 0.4 to 4.1 errors above its prediction. The five points lie close to a line, so the
interval is narrow, but the true curve bends. So the table does not check the row of D. The option
`--largest 48` trains one more size, far beyond the fit.

4. Training costs C = 6 N D operations. For each weight and token, forward takes 2 of these and
backward 4. If C, the budget, is given, which N and D give the smallest loss? Put D = C / (6 N) into

    L(N, D) = E + A N^-alpha + B D^-beta

and set the derivative with respect to N to 0. Then alpha A N^-alpha = beta B D^-beta, and
(exercise 33b)

    N = G (C / 6)^(beta / (alpha + beta)),    G = (alpha A / (beta B))^(1 / (alpha + beta))

So with a larger budget, N and D grow together. Hoffmann et al. found alpha = 0.34 and beta = 0.28,
which are nearly equal. So N and D grow with nearly the same power of C.

Papers: Kaplan et al. 2020, arXiv 2001.08361; Hoffmann et al. 2022, arXiv 2203.15556 (Chinchilla).
Exercises: `minidl exercise 33` writes work/33_scaling.py, `minidl check 33` grades it.
"""

import math

import numpy as np

import minidl
from minidl import nn, optim
from minidl.comm import ring
from minidl.course.out import BLUE, GREY, ORANGE, RED
from minidl.course.tutorial import Table, launch, picture, progress, put, say
from minidl.data import text
from minidl.nn import functional as F
from minidl.plain import optimizers as plain

CHARACTERS = 128  # the corpus has few bytes above 127; these bytes all become 127
LENGTH = 16  # number of tokens in a window
BATCH = 32  # number of windows in a batch
WIDTHS = [6, 8, 12, 16, 20, 28]  # the last run is predicted
STEPS = [24, 38, 60, 96, 153, 245]  # the last run is predicted
WIDTH = 16  # the width of all models that are trained on different numbers of tokens
STUDENT_3 = 3.182  # 97.5 % of Student's distribution with 3 degrees of freedom is below this number


def fit_power_law(x, loss):
    """Returns five numbers: (level, slope, scatter, level error, slope error). They describe the
    line ln loss = level + slope u, with u = ln x - mean(ln x). x, loss: arrays of n >= 3
    numbers."""
    # >>> exercise 33a: a power law by least squares, with its errors
    # Take the natural logarithms of x and of loss. u is ln x minus its mean. The slope is
    # sum(u ln L) / sum(u^2). The level is the mean of ln L. A residual is ln L - level - slope u.
    # The scatter is sqrt(sum of squared residuals / (n - 2)). The level error is the scatter
    # divided by sqrt(n), and the slope error is the scatter divided by sqrt(sum(u^2)).
    log_x = np.log(x)
    y = np.log(loss)
    u = log_x - log_x.mean()
    slope = (u * y).sum() / (u**2).sum()
    level = y.mean()
    residuals = y - level - slope * u
    scatter = np.sqrt((residuals**2).sum() / (len(u) - 2))
    return level, slope, scatter, scatter / np.sqrt(len(u)), scatter / np.sqrt((u**2).sum())
    # <<<


def compute_optimal(c, a, b, alpha, beta):
    """Returns (N, D) with 6 N D = c for which a N^-alpha + b D^-beta is smallest."""
    # >>> exercise 33b: where a budget is best spent
    # N = G (c / 6)^(beta / (alpha + beta)) with G = (alpha a / (beta b))^(1 / (alpha + beta)).
    # D follows from 6 N D = c.
    g = (alpha * a / (beta * b)) ** (1 / (alpha + beta))
    n = g * (c / 6) ** (beta / (alpha + beta))
    return n, c / (6 * n)
    # <<<


def predict(fit, x, new):
    """Returns (the predicted ln loss of a run at `new`, the error of this prediction).

    fit: the result of fit_power_law(x, loss)."""
    level, slope, scatter, level_error, slope_error = fit
    u = math.log(new) - float(np.log(x).mean())
    error = math.sqrt(scatter**2 + level_error**2 + (slope_error * u) ** 2)
    return level + slope * u, error


def synthetic(table):
    """Part 1: compares fit_power_law() with NumPy. Checks how many intervals hold the new run."""
    draw = np.random.default_rng(33)
    x = np.array([522.0, 888.0, 1908.0, 3312.0, 5100.0])
    new = 9828.0
    n_studies = 2000
    inside = 0
    for _ in range(n_studies):
        loss = np.exp(1.2 - 0.035 * np.log(x) + 0.01 * draw.normal(size=5))
        wanted, error = predict(fit_power_law(x, loss), x, new)
        measured = 1.2 - 0.035 * math.log(new) + 0.01 * draw.normal()
        inside += abs(measured - wanted) < STUDENT_3 * error
    level, slope, _, level_error, slope_error = fit_power_law(x, loss)
    u = np.log(x) - np.log(x).mean()
    (their_slope, their_level), covariance = np.polyfit(u, np.log(loss), 1, cov=True)
    # The bound is for float64. NumPy solves the same problem of least squares in another way, by a
    # singular value decomposition
    table.row("33a: slope, and np.polyfit's", float(slope), float(their_slope), "rel<1e-9")
    table.row("33a: level, and np.polyfit's", float(level), float(their_level), "rel<1e-12")
    table.row("33a: slope error, and np.polyfit's", float(slope_error),
              float(covariance[0, 0] ** 0.5), "rel<1e-9")
    table.row("33a: level error, and np.polyfit's", float(level_error),
              float(covariance[1, 1] ** 0.5), "rel<1e-9")
    # the bound is four standard deviations of a share of 2,000 studies
    bound = 4 * math.sqrt(0.95 * 0.05 / n_studies)
    table.row("of 2,000 true power laws: the new run inside its 95 % interval",
              inside / n_studies, 0.95, f"abs<{bound:.4f}")


def n_parameters(model):
    """Returns N, the number of parameters without embeddings and without the output layer."""
    embeddings = "token", "position", "head"
    return sum(p.numel() for name, p in model.named_parameters() if not name.startswith(embeddings))


def train(args, data, evaluation, width, n_steps, seed):
    """Trains a GPT for n_steps. Returns (N, its loss on `evaluation`).

    evaluation: (ids, next ids), two arrays (windows, LENGTH)."""
    minidl.manual_seed(seed)
    # The first weights are larger than in GPT-2, because the layers have few inputs (tutorial 31).
    model = nn.GPT(CHARACTERS, LENGTH, n_layers=1, n_heads=1, width=width, tied=False,
                   init_std=0.5 / math.sqrt(width))
    model = put(args, model)
    largest_lr = 0.035 / math.sqrt(width)
    optimizer = optim.AdamW(model.parameters(), lr=largest_lr, betas=(0.9, 0.99), weight_decay=0.0)
    batches = text.random_batches(data, BATCH, LENGTH, 0, 1, seed)
    warmup = max(1, n_steps // 10)
    for step in range(n_steps):
        # In each run, lr falls until the last step. If a run stops before the end of a longer
        # schedule, its loss is larger (Hoffmann et al.).
        optimizer.param_groups[0]["lr"] = plain.schedule(step, warmup, n_steps, largest_lr)
        x, y = next(batches)
        optimizer.zero_grad()
        loss_of(args, model, x, y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
    with minidl.no_grad():
        return n_parameters(model), loss_of(args, model, *evaluation).item()


def loss_of(args, model, x, y):
    logits = model(put(args, x))
    return F.cross_entropy(logits.reshape(-1, CHARACTERS), put(args, y).reshape(-1))


def study(t, args):
    """Part 2: trains all runs, each on one of the ranks. Returns four arrays: N for each width; the
    losses of these runs, (widths, seeds); D for each number of steps; the losses of these runs,
    (numbers of steps, seeds)."""
    data = np.minimum(text.stdlib_corpus(1 << 21), CHARACTERS - 1)
    data, held_out = text.split(data)
    evaluation = text.spread(held_out, LENGTH, 256)
    widths = WIDTHS + [args.largest] * (args.largest > 0)
    steps = [max(1, n * args.steps // 150) for n in STEPS]
    settings = [(width, args.steps) for width in widths] + [(WIDTH, n) for n in steps]
    found = np.zeros((len(settings), args.seeds, 2))
    runs = [(i, seed) for i in range(len(settings)) for seed in range(args.seeds)]
    for i, seed in progress(t, runs[t.rank :: t.size], "training"):
        width, n_steps = settings[i]
        found[i, seed] = train(args, data, evaluation, width, n_steps, seed)
    ring.all_reduce(t, found)  # a run's numbers are zeros on all ranks that have not trained it
    sizes, losses = found[:, 0, 0], found[:, :, 1]
    tokens = [n * BATCH * LENGTH for n in steps]
    return (sizes[: len(widths)].astype(int), losses[: len(widths)], np.array(tokens),
            losses[len(widths) :])


def law(args, table, name, x, losses):
    """Part 3: fits a law to the first five points, and compares the sixth run with its interval.
    Returns the fit. name: "N" or "D". x: N or D of each run. losses: (runs, seeds)."""
    means = losses.mean(axis=1)
    fit = fit_power_law(x[:5], means[:5])
    _, slope, _, _, slope_error = map(float, fit)
    table.row(f"L({name}): the exponent", -slope)
    table.row(f"L({name}): its error by least squares", slope_error)
    draw = np.random.default_rng(0)
    again = []
    for _ in range(200):  # bootstrap: draws seeds with repetition, and fits the law again
        chosen = draw.integers(0, args.seeds, (5, args.seeds))
        resampled = np.take_along_axis(losses[:5], chosen, axis=1).mean(axis=1)
        again.append(-fit_power_law(x[:5], resampled)[1])
    table.row(f"L({name}): its error by bootstrap over seeds", float(np.std(again)))

    log_loss, error = predict(fit, x[:5], x[5])
    predicted = math.exp(log_loss)
    # `half` is the distance from the prediction to the lower end of the interval. It is a
    # difference of losses, and not of logarithms. The upper end is farther away.
    half = predicted * (1 - math.exp(-STUDENT_3 * error))
    # The row of L(D) has no rule, because L(D) is not a straight line (part 3). In a short study
    # L(N) is not a straight line, too. With few seeds the means are not exact enough for a rule.
    has_rule = name == "N" and args.steps >= 150 and args.seeds >= 3
    table.row(f"L({name}): the sixth run and its prediction", float(means[5]), predicted,
              f"abs<{half:.3f}" if has_rule else "info")
    table.row(f"L({name}): (measured - predicted) / error, in ln L",
              (math.log(means[5]) - log_loss) / error)
    for i in range(6, len(x)):
        log_loss, error = predict(fit, x[:5], x[i])
        table.row(f"L({name}): {name} = {x[i]:,}, far beyond the fit", float(means[i]),
                  math.exp(log_loss))
    return fit


# Hoffmann et al. 2022, their third approach: L = E + A N^-alpha + B D^-beta
CHINCHILLA = dict(a=406.4, b=410.7, alpha=0.34, beta=0.28)
IRREDUCIBLE = 1.69  # E in the formula of Hoffmann et al.
BUDGET = 5.76e23  # operations to train Gopher, and also Chinchilla


def budget(table):
    """Part 4: compares the formula of exercise 33b with a search over sizes N.
    Returns (the sizes of the search, their losses)."""
    n, d = compute_optimal(BUDGET, **CHINCHILLA)
    sizes = np.geomspace(n / 30, n * 30, 20001)
    losses = model_loss(sizes, BUDGET / (6 * sizes))
    table.row("33b: 6 N D / C", 6 * n * d / BUDGET, 1.0, "rel<1e-12")
    # neighbouring sizes of the search differ by 0.034 %
    table.row("33b: N for 5.76e23 operations, and by a search", n,
              float(sizes[losses.argmin()]), "rel<0.0004")
    a, b, alpha, beta = CHINCHILLA.values()
    table.row("33b: alpha A N^-alpha", alpha * a * n**-alpha, beta * b * d**-beta, "rel<1e-12")
    table.row("33b: tokens for each parameter", d / n)
    wide, _ = compute_optimal(100 * BUDGET, **CHINCHILLA)
    table.row("33b: 100 times the budget: N grows by", wide / n, 100 ** (beta / (alpha + beta)),
              "rel<1e-12")
    return sizes, losses


def model_loss(n, d):
    a, b, alpha, beta = CHINCHILLA.values()
    return IRREDUCIBLE + a * n**-alpha + b * d**-beta


def main(t, args):
    table = Table(t)
    say(t, "1. The fit and its intervals, on artificial power laws.")
    synthetic(table)
    n_runs = (len(WIDTHS) + len(STEPS) + (args.largest > 0)) * args.seeds
    say(t, f"2. {n_runs} runs on {t.size} rank{'s' * (t.size > 1)}.")
    sizes, by_size, tokens, by_tokens = study(t, args)
    width = np.array(WIDTHS)
    table.row("N of the sixth model: 12 w^2 + 15 w", int(sizes[5]),
              int(12 * width[5] ** 2 + 15 * width[5]), "exact")
    say(t, "3. Two laws, each from five points, and the sixth run.")
    fits = (law(args, table, "N", sizes, by_size), law(args, table, "D", tokens, by_tokens))
    say(t, "4. Where a budget is best spent, by Hoffmann's numbers.")
    search = budget(table)
    picture(t, args, draw, (sizes, by_size), (tokens, by_tokens), fits, search)
    return table


OPTIONS = {
    "steps": (150, "number of training steps of the models of different sizes"),
    "seeds": (3, "number of runs of each kind, with different seeds"),
    "largest": (0, "the width of one more model, far beyond the fit; 0 means none"),
}


def draw(plt, by_size, by_tokens, fits, search):
    """Draws three plots. Left and middle: for each law the points, the fit, the interval and the
    sixth run. Right: the loss over N, for one budget."""
    figure, axes = plt.subplots(1, 3, figsize=(17, 5.2))
    names = (("parameters without embeddings, N", "Loss by size, tokens fixed"),
             ("tokens, D", "Loss by tokens, size fixed: it bends"))
    for axis, (x, losses), fit, (label, title) in zip(
            axes[:2], (by_size, by_tokens), fits, names, strict=True):
        line = np.geomspace(x[0] * 0.8, x[-1] * 1.3, 60)
        pairs = np.array([predict(fit, x[:5], value) for value in line])
        axis.fill_between(line, np.exp(pairs[:, 0] - STUDENT_3 * pairs[:, 1]),
                          np.exp(pairs[:, 0] + STUDENT_3 * pairs[:, 1]), color=BLUE, alpha=0.12,
                          linewidth=0, label="95 % of new runs")
        axis.plot(line, np.exp(pairs[:, 0]), color=BLUE, label=f"power {fit[1]:.3f}")
        axis.plot(np.repeat(x, losses.shape[1]), losses.ravel(), ".", color=GREY, markersize=5,
                  label="single runs")
        means = losses.mean(axis=1)
        axis.plot(x[:5], means[:5], "o", color=BLUE, label="fitted: means over seeds")
        axis.plot(x[5:], means[5:], "*", color=RED, markersize=15, label="predicted, then trained")
        axis.set(title=title, xlabel=label, ylabel="loss", xscale="log", yscale="log")
        low, high = losses.min() * 0.95, losses.max() * 1.05
        ticks = np.linspace(low, high, 5).round(1)
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_yticks([], minor=True)
        shown = x[[0, 2, 4, *range(5, len(x))]]
        axis.set_xticks(shown, [f"{n:,}" for n in shown])
        axis.set_xticks([], minor=True)
        axis.set_ylim(low, high)
        axis.legend(fontsize=10)

    sizes, losses = search
    best = losses.argmin()
    axes[2].semilogx(sizes / 1e9, losses, color=ORANGE)
    axes[2].plot(sizes[best] / 1e9, losses[best], "*", color=RED, markersize=15)
    axes[2].annotate(f"N = {sizes[best] / 1e9:.0f} billion", (sizes[best] / 1e9, losses[best]),
                     (0, 18), textcoords="offset points", ha="center")
    axes[2].set(title="One budget, 5.76e23 operations:\nleft small models, right few tokens",
                xlabel="parameters, billions", ylabel="loss by Hoffmann's formula")
    return figure


if __name__ == "__main__":
    launch(main, OPTIONS, ranks=2)
