"""28  A transformer: its block, its first loss, its text.       75 minutes, needs: 01, 03, 20

This tutorial goes from one block to a model that writes text. It shows what is computed, what this
costs, and how the next token is chosen.

    python tutorials/28_transformer.py       one process; picture: out/28_transformer.png

1. The block. A text has T tokens, and x has a row of C numbers for each token. A block adds two
results to each row:

    x = x + attention(RMSNorm(x))        a weighted mean over this token and the earlier tokens
    y = x + SwiGLU(RMSNorm(x))           a network that is applied to each token by itself

    SwiGLU(x) = (silu(x @ gate) * (x @ up)) @ down,    silu(a) = a / (1 + e^-a)

RMSNorm divides a row by its root mean square. So the length of the result is sqrt(C) for every row.
RoPE puts the positions of the tokens into the scores of attention. The query and the key of a head
have E numbers, taken as E/2 points (a_i, b_i). At position p the point i turns by the angle
p theta_i, with theta_i = 10000^(-2i/E):

    a' = a cos - b sin         b' = b cos + a sin

A dot product of two turned vectors depends on the difference of their angles. So a score depends on
the distance of two tokens. The chain rule multiplies the gradient by R^T if R is the rotation. For
a rotation, R^T = R^-1. So backward turns the gradient by the negative angle (exercise 28a).

2. The cost. A matrix with n numbers makes n products and n sums for each token: 2n operations.
Backward does twice as much: once for the gradient of the input, and once for the gradient of the
matrix. Attention adds operations for each pair of a query and a key. The table compares formulas
for parameters and operations with counted numbers.

3. The first loss. The output layer computes a score z_v for each of V tokens. It shares its weights
with the embedding: row w_v is the embedding of token v, and also computes the score of token v. The
last RMSNorm makes rows of length sqrt(C). The weights are drawn with a standard deviation
s0 = 0.02. So each score is a sum of C products, with a standard deviation s = s0 sqrt(C). This is
small, so softmax gives each token nearly the probability 1/V. With n random targets:

    loss = log(sum of e^z) - z_target  =  log V + s^2/2 +- 4 s / sqrt(n)

because the mean of e^z is e^(s^2/2) for normal z. For any scores, the difference of the loss and
log V is at most max z - min z. If the first loss is far from log V, look for an error in the model.

4. Sampling. softmax gives the probability of each next token. A temperature below 1 makes likely
tokens even likelier. top-k keeps the k likeliest tokens. Top-p adds up the probabilities, the
likeliest token first, and keeps the tokens until the sum reaches p. So it keeps few tokens where
the model is sure, and many where it is not (exercise 28b).

5. A key-value cache. A token attends only to itself and to earlier tokens. So the keys and values
of a text do not change when a token is added. If they are stored, the model computes only the new
token, and not the whole text again. With L layers, and K heads of keys with E numbers each:

    bytes = 2 L K E * tokens * 4

The plain pages: minidl/plain/transformer.py, sampling.py, kv_cache.py. minidl's own code:
minidl/nn/llama.py, minidl/infer/decoder.py. Papers: Vaswani et al. 2017; Su et al. 2021 (RoPE);
Touvron et al. 2023 (Llama); Press & Wolf 2017 (shared weights); Holtzman et al. 2020 (top-p); Pope
et al. 2022 (the cache).
Exercises: `minidl exercise 28` writes work/28_transformer.py, `minidl check 28` grades it.
"""

import time
from typing import Any

import numpy as np

import minidl
from minidl import infer, nn, optim
from minidl.course.out import BLUE, GREY, ORANGE, RED, line_at
from minidl.course.tutorial import Table, WrongOption, host, launch, picture, progress, put, say
from minidl.data import text
from minidl.infer import cache
from minidl.infer.decoder import nucleus as real_nucleus
from minidl.nn import functional as F
from minidl.nn import llama
from minidl.plain import autograd, kv_cache, sampling
from minidl.plain import transformer as plain

VOCABULARY = 256  # each byte is a token
LAYERS, HEADS, KV_HEADS = 2, 4, 2
PROMPT = b"def __init__(self, "


def rope(x, first=0):
    """Returns (y, backward). x is (..., T, E). In y, the points of token t are turned by the angles
    of the position first + t. backward(gy) returns the gradient of the loss with respect to x. gy
    is the gradient of the loss with respect to y."""
    # >>> exercise 28a: RoPE, and the gradient of a rotation
    # Point i of a token is (a_i, b_i), with a_i = x[..., i] in the first half of the E numbers and
    # b_i = x[..., E // 2 + i] in the second half. At position p point i turns by p * theta_i, with
    # theta_i = 10000 ** (-2 * i / E). Write a function that turns any array by given angles. Then y
    # is x turned by the angles, and backward(gy) is gy turned by the negative angles. A result has
    # the dtype of the array that is turned. Do not change x.
    half = x.shape[-1] // 2
    theta = 10000.0 ** (-np.arange(half) / half)
    angles = (first + np.arange(x.shape[-2]))[:, None] * theta  # (T, E / 2)

    def turned(x, angles):
        a, b = x[..., :half], x[..., half:]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)

    return turned(x, angles), lambda gy: turned(gy, -angles)
    # <<<


def nucleus(p, top_p):
    """Returns the probabilities after top-p. p: (N, V), N rows of probabilities. Tokens that top-p
    drops get 0, and each row is divided by its new sum."""
    # >>> exercise 28b: top-p, the fewest likeliest tokens
    # Order the tokens of each row by their probability, the likeliest first. If two are equally
    # likely, the token with the smaller number comes first: np.argsort(-p, axis=-1, kind="stable").
    # A token stays if the sum of the probabilities before it is less than top_p. So the token with
    # which the sum reaches top_p stays, and the likeliest token always stays. All other tokens get
    # 0. Then divide each row by its sum. Do not change p. np.take_along_axis puts rows in order,
    # and np.put_along_axis puts numbers back to their old places.
    order = np.argsort(-p, axis=-1, kind="stable")
    ordered = np.take_along_axis(p, order, axis=-1)
    before = np.cumsum(ordered, axis=-1) - ordered
    kept = np.zeros_like(p)
    np.put_along_axis(kept, order, np.where(before < top_p, ordered, 0), axis=-1)
    return kept / kept.sum(axis=-1, keepdims=True)
    # <<<


def sizes(args) -> dict[str, Any]:
    """Returns the sizes of the model, as keyword arguments for nn.Llama and for the formulas."""
    return dict(vocab_size=VOCABULARY, n_layers=LAYERS, width=args.width, n_heads=HEADS,
                n_kv_heads=KV_HEADS, head_width=args.width // HEADS, hidden=3 * args.width)


def rotations(table):
    """Part 1, RoPE: compares the exercise's function with the functions of the plain page and of
    minidl."""
    draw = minidl.Generator(28)
    x, gy = draw.normal(2, 3, 7, 8).astype(float)  # 3 heads, 7 tokens, E = 8
    y, backward = rope(x, first=5)
    gx = backward(gy)

    variable = autograd.Tensor(x)
    page = plain.rope(variable, first=5)
    wanted, = autograd.grad((page * gy).sum(), [variable])
    table.row("28a: y, difference from the plain page",
              np.abs(y - page.array).max(), 0.0, "abs<1e-12")
    table.row("28a: gradient, difference from the plain page",
              np.abs(gx - wanted.array).max(), 0.0, "abs<1e-12")

    angles = (5 + np.arange(7))[:, None] * llama.frequencies(8)
    real = minidl.Tensor(x, requires_grad=True)
    turned = llama.Rotary.apply(real, np.cos(angles), np.sin(angles))
    turned.backward(minidl.Tensor(gy))
    table.row("28a: y, difference from nn.Llama", np.abs(y - host(turned)).max(), 0.0, "abs<1e-12")
    error = np.abs(gx - host(real.grad)).max()
    table.row("28a: gradient, difference from nn.Llama", error, 0.0, "abs<1e-12")

    lengths = np.linalg.norm(y, axis=-1) / np.linalg.norm(x, axis=-1)
    table.row("a rotation keeps lengths", np.abs(lengths - 1).max(), 0.0, "abs<1e-12")
    error = np.abs(backward(y) - x).max()
    table.row("y turned back, difference from x", error, 0.0, "abs<1e-12")

    near, far = scores(0, 8), scores(1000, 8)
    error = np.abs(near - far).max()
    # The bound is for float64. The angles are up to 1000, so rounding changes an angle by up to
    # 1000 eps.
    table.row("scores at 0 to 7 and 1000 to 1007", error, 0.0, "abs<1e-10")


def scores(first, n, width=16):
    """Returns n scores of a query at position `first` with keys at the positions first, first + 1,
    ..., first + n - 1. Query and keys are the same vector before they are turned. The scores are
    divided by the largest score."""
    y, _ = rope(np.ones((n, width)), first)
    return y @ y[0] / width


def blocks(table):
    """Part 1: computes the result and the gradient of nn.Llama's block. Compares both with the
    block of the plain page."""
    n_tokens, width, hidden = 6, 16, 40
    minidl.manual_seed(1)
    block = llama.LlamaBlock(width, HEADS, HEADS, width // HEADS, hidden, 1e-5).double()
    w = {name: host(p) for name, p in block.named_parameters()}
    query, key, value = np.split(w["attention.qkv.weight"].T, 3, axis=1)
    weights = {"query": query, "key": key, "value": value, "out": w["attention.proj.weight"].T,
               "norm1": w["norm1.weight"], "norm2": w["norm2.weight"]}
    weights |= {name: w[f"feed_forward.{name}.weight"].T for name in ("gate", "up", "down")}
    weights = {name: autograd.Tensor(array) for name, array in weights.items()}

    x, gy = minidl.Generator(29).normal(2, n_tokens, width).astype(float)
    variable = autograd.Tensor(x)
    page = plain.block(variable, weights, HEADS)
    wanted, = autograd.grad((page * gy).sum(), [variable])

    angles = np.arange(n_tokens)[:, None] * llama.frequencies(width // HEADS)
    real = minidl.Tensor(x[None], requires_grad=True)
    y = block(real, np.cos(angles), np.sin(angles))
    y.backward(minidl.Tensor(gy[None]))
    error = np.abs(host(y)[0] - page.array).max()
    table.row("a block: y, difference from the plain page", error, 0.0, "abs<1e-10")
    error = np.abs(host(real.grad)[0] - wanted.array).max()
    table.row("a block: gradient, difference from the plain page", error, 0.0, "abs<1e-10")

    ones = autograd.Tensor(np.ones(width))
    normed = plain.rms_norm(autograd.Tensor(x), ones, eps=0.0).array
    table.row("length after RMSNorm: sqrt(C)", np.linalg.norm(normed, axis=1).max(),
              np.sqrt(width), "rel<1e-12")
    larger = plain.rms_norm(autograd.Tensor(1000 * x), ones, eps=0.0).array
    table.row("RMSNorm of 1000 x, difference from RMSNorm of x",
              np.abs(larger - normed).max(), 0.0, "abs<1e-12")


def costs(args, table, model, x, y):
    """Part 2: counts parameters and operations, and compares them with the formulas."""
    shape = sizes(args)
    n_parameters = sum(p.numel() for p in model.parameters())
    theory = llama.n_parameters(**shape, tied=True)
    table.row("parameters, output and embedding share", n_parameters, theory, "exact")
    embedding = VOCABULARY * args.width
    apart = llama.n_parameters(**shape)
    table.row("parameters saved by sharing: V C", apart - n_parameters, embedding, "exact")

    with minidl.profile() as run:
        F.cross_entropy(model(x).reshape(-1, VOCABULARY), y.reshape(-1)).backward()
    model.zero_grad()
    counted = {"forward": 0, "backward": 0}
    for operator in run.summary["operators"]:
        counted[operator["phase"]] += int(operator["flops"])
    for phase, one in zip(counted, llama.n_operations(args.context, **shape), strict=True):
        table.row(f"operations of a batch, {phase}", counted[phase], args.batch * one, "exact")
    # The rule of thumb leaves out attention. It counts the parameters of the norms like parameters
    # of matrices.
    n_tokens = args.batch * args.context
    table.row("both; rule of thumb: 6 a parameter and token", sum(counted.values()),
              6 * n_parameters * n_tokens)


def loss_of(model, x, y):
    """Returns (the mean loss over all tokens, the mean of max z - min z over all tokens)."""
    with minidl.no_grad():
        z = host(model(x)).astype(float).reshape(-1, VOCABULARY)
    most = z.max(axis=1)
    log_sum = np.log(np.exp(z - most[:, None]).sum(axis=1)) + most
    of_target = z[np.arange(len(z)), host(y).reshape(-1)]
    return float((log_sum - of_target).mean()), float((most - z.min(axis=1)).mean())


def first_loss(args, table, model):
    """Part 3: compares the untrained model's loss on random bytes with log V + s^2/2."""
    draw = np.random.default_rng(3)
    shape = args.batch, args.context
    x, y = (put(args, minidl.Tensor(draw.integers(0, VOCABULARY, shape))) for _ in range(2))
    loss, spread = loss_of(model, x, y)
    s = float(host(model.token.weight).std()) * np.sqrt(args.width)
    # The embedding of a token is a part of x. So the score of this token itself may be larger: up
    # to s sqrt(C), the length of its row times the length of x. This adds at most e^(s sqrt(C)) to
    # the sum of e^z, which is about V.
    own = np.exp(s * np.sqrt(args.width)) / VOCABULARY
    bound = 4 * s / np.sqrt(y.numel()) + own
    theory = np.log(VOCABULARY) + s**2 / 2
    table.row("untrained loss: log V + s^2/2", loss, theory, f"abs<{bound:.3g}")
    apart = abs(loss - np.log(VOCABULARY))
    table.row("its distance from log V, at most max z - min z", apart, spread, "<=")

    weight = model.token.weight
    with minidl.no_grad():
        weight.mul_(30.0)
        large, _ = loss_of(model, x, y)
        weight.mul_(1 / 30.0)
    table.row("log V + 1, at most the loss with 30 times the weights", np.log(VOCABULARY) + 1,
              large, "<=")


def train(t, args, table, model, batches):
    """Trains for --steps steps. Returns the losses."""
    optimizer = optim.AdamW(model.parameters(), lr=args.lr)
    losses = []
    for _ in progress(t, range(args.steps), "training"):
        x, y = next(batches)
        optimizer.zero_grad()
        scores = model(put(args, x)).reshape(-1, VOCABULARY)
        loss = F.cross_entropy(scores, put(args, y).reshape(-1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    table.row("the last loss, at most the first", losses[-1], losses[0], "<=")
    return losses


def entropy(p):
    """Returns the entropy of p (V,), in nats: log V if all tokens are equally likely."""
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def samples(t, table, model):
    """Part 4: checks top-p, temperature and the draw of a token. Uses the probabilities of the next
    token after each byte of the prompt. Returns these probabilities, (T, V)."""
    with minidl.no_grad():
        z = host(model(np.frombuffer(PROMPT, np.uint8)[None].astype(np.int64)))[0]
    p = np.stack([sampling.probabilities(row.astype(float)) for row in z])
    for top_p in (1e-6, 0.5, 0.9):
        kept = nucleus(p, top_p)
        wanted = np.stack([sampling.probabilities(row.astype(float), top_p=top_p) for row in z])
        error = np.abs(kept - wanted).max()
        table.row(f"28b: p = {top_p:g}, difference from the plain page", error, 0.0, "abs<1e-12")
        real = np.isfinite(real_nucleus(z, 1.0, None, top_p))
        table.row(f"28b: p = {top_p:g}, rows whose tokens differ from the decoder's",
                  int(((kept > 0) != real).any(axis=1).sum()), 0, "exact")

    # with a lower temperature the entropy of the probabilities is lower
    cold, warm, hot = (entropy(sampling.probabilities(z[-1].astype(float), temperature))
                       for temperature in (0.5, 1.0, 2.0))
    table.row("entropy at temperature 0.5, at most that at 1", cold, warm, "<=")
    table.row("entropy at temperature 1, at most that at 2", warm, hot, "<=")
    table.row("entropy at temperature 2, at most log V", hot, np.log(VOCABULARY), "<=")

    kept = nucleus(p, 0.9)[-1]
    n = 10_000
    uniform = np.random.default_rng(4).random(n)
    drawn = np.bincount([sampling.draw(kept, u) for u in uniform], minlength=VOCABULARY)
    # A share of n draws has a standard deviation of at most sqrt(1/4 / n). The limit is five
    # standard deviations.
    apart = np.abs(drawn / n - kept).max()
    table.row("shares of 10,000 draws, difference from p", apart, 0.0, f"abs<{2.5 / n**0.5:g}")
    return p


def timed(call):
    """Returns (the result of call(), seconds)."""
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def without_cache(model, ids, n):
    """Adds n tokens to ids, each time the likeliest one. Returns (all ids, the seconds for each new
    token, the number of tokens that the model has read)."""
    ids, times, n_read = list(ids), [], 0
    with minidl.no_grad():
        for _ in range(n):
            scores, time_s = timed(lambda: model(np.array([ids])))
            n_read += len(ids)
            ids.append(int(host(scores)[0, -1].argmax()))
            times.append(time_s)
    return ids, times, n_read


def with_cache(decoder, ids, n):
    """Does the same as without_cache(), with a decoder that stores keys and values."""
    ids, times = list(ids), []
    n_read = len(ids)
    scores, time_s = timed(lambda: decoder.prefill(np.array([ids])))
    for i in range(n):
        times.append(time_s)
        ids.append(int(scores[0].argmax()))
        if i + 1 < n:
            scores, time_s = timed(lambda: decoder.step(np.array(ids[-1:])))
            n_read += 1
    return ids, times, n_read


def cached(t, args, table, model):
    """Part 5: compares writing with and without a cache. Returns (seconds of each token without a
    cache, seconds of each token with a cache)."""
    # The model of the plain page kv_cache has one layer and one head. Here its matrices are random.
    draw = np.random.default_rng(5)
    tokens, width = 11, 8
    matrices = {name: draw.normal(size=(width, width)) for name in ("wq", "wk", "wv")}
    page = {"token": draw.normal(size=(tokens, width)), "wo": draw.normal(size=(width, tokens))}
    page |= matrices
    same = kv_cache.generate(page, [3, 1, 4], 20) == kv_cache.generate_again(page, [3, 1, 4], 20)
    table.row("the plain page: one text, with and without", same, True, "exact")

    shape = sizes(args)
    decoder = infer.decoder(model, context=args.context)
    held = sum(array.nbytes for pair in decoder.caches for array in pair)
    theory = cache.n_bytes(LAYERS, 1, args.context, KV_HEADS, shape["head_width"])
    table.row("bytes of the cache", held, theory, "exact")
    table.row("bytes of the cache if each head had its own keys", held,
              cache.n_bytes(LAYERS, 1, args.context, HEADS, shape["head_width"]))

    prompt = list(PROMPT)
    # This call builds the decoder's plans for prefill and for step, before the time is measured.
    decoder.step(decoder.prefill(np.array([prompt])).argmax(axis=1))
    ids, slow, n_read = without_cache(model, prompt, args.tokens)
    again, fast, n_read_once = with_cache(decoder, prompt, args.tokens)
    table.row("tokens that differ with a cache", sum(a != b for a, b in zip(ids, again)), 0,
              "exact")
    n, first = args.tokens, len(prompt)
    table.row("tokens read without a cache: n T + n (n - 1) / 2", n_read, n * first
              + n * (n - 1) // 2, "exact")
    table.row("tokens read with a cache: T + n - 1", n_read_once, first + n - 1, "exact")
    table.row("positions that the cache holds then", decoder.position, first + n - 1, "exact")
    table.row("tokens a second without a cache", n / sum(slow))
    table.row("tokens a second with a cache", n / sum(fast))

    generator = minidl.Generator(28)
    for name, options in (("the likeliest", dict(temperature=0.0)),
                          ("top-p 0.9", dict(top_p=0.9)),
                          ("temperature 2", dict(temperature=2.0))):
        some = decoder.generate(np.array([prompt]), min(n, 48), generator=generator, **options)
        say(t, "  ", name, bytes(some[0].tolist()))
    return slow, fast


def main(t, args):
    if args.width % 8:
        raise WrongOption(f"--width must be a multiple of 8, because it is divided into {HEADS} "
                          f"heads, and a head into pairs of numbers; got {args.width}. Try "
                          f"{args.width // 8 * 8 + 8}")
    if len(PROMPT) + args.tokens > args.context:
        raise WrongOption(f"--tokens {args.tokens}: the prompt of {len(PROMPT)} tokens and the new "
                          f"tokens are together longer than --context {args.context}")
    table = Table(t)
    say(t, "1. One block: rotations, norms, attention, a network.")
    rotations(table)
    blocks(table)

    minidl.manual_seed(0)
    shape = sizes(args)
    model = put(args, nn.Llama(context=args.context, tied=True, **shape))
    batches = text.random_batches(text.stdlib_corpus(1 << 18), args.batch, args.context)
    x, y = (put(args, part) for part in next(batches))
    say(t, "2. Parameters and operations.")
    costs(args, table, model, x, y)
    say(t, "3. The first loss, and the training." )
    first_loss(args, table, model)
    losses = train(t, args, table, model, batches)
    say(t, "4. From scores to tokens.")
    model = model.to("cpu").eval()  # a decoder runs on the CPU
    p = samples(t, table, model)
    say(t, "5. Token by token, with and without a cache.")
    times = cached(t, args, table, model)
    picture(t, args, draw, losses, p, times)
    return table


OPTIONS = {
    "width": (64, "C, how many numbers the row of a token has"),
    "context": (96, "number of tokens in a text"),
    "batch": (8, "number of texts in a batch"),
    "steps": (200, "number of training steps"),
    "lr": (3e-3, "learning rate"),
    "tokens": (64, "number of tokens to write"),
}


def draw(plt, losses, p, times):
    """Draws four plots. Above: scores by distance, and the loss. Below: how many tokens top-p
    keeps, and the time of a token."""
    figure, ((score, curve), (bars, line)) = plt.subplots(2, 2, figsize=(13, 9))
    n = 48
    for first, style in ((0, dict(color=GREY, linewidth=6, alpha=0.5)),
                         (500, dict(color=BLUE, linewidth=1.5))):
        score.plot(scores(first, n), label=f"query at {first}", **style)
    score.set(title="RoPE: a score depends on the distance alone",
              xlabel="key's position - query's position", ylabel="score, of equal vectors")
    score.legend()

    curve.plot(losses, color=BLUE)
    line_at(curve, "log V: all bytes equally likely", y=np.log(VOCABULARY), color=RED)
    curve.set(title="An untrained model begins at log V", xlabel="step",
              ylabel="loss, nats a byte", ylim=(0, 1.12 * np.log(VOCABULARY)))

    n_kept = (nucleus(p, 0.9) > 0).sum(axis=1)
    place = np.arange(len(PROMPT))
    shown = bars.bar(place, n_kept, color=ORANGE)
    bars.bar_label(shown, fontsize=9)
    bars.set_xticks(place, PROMPT.decode().replace(" ", "␣"), family="monospace")
    bars.set(title=f"Top-p 0.9: how many of {VOCABULARY} bytes stay",
             xlabel="after this byte of the prompt", ylabel="bytes that may come next")

    slow, fast = times
    positions = len(PROMPT) + np.arange(len(slow))
    line.plot(positions, 1e3 * np.array(slow), color=RED, label="the whole text each time")
    line.plot(positions, 1e3 * np.array(fast), color=BLUE, label="with a cache")
    line.set(title="Time of a token", xlabel="tokens so far", ylabel="ms", yscale="log")
    line.legend()
    return figure


if __name__ == "__main__":
    launch(main, OPTIONS)
