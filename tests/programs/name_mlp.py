"""An MLP over the embeddings of three letters invents names. No layers: each matrix by hand."""

import numpy as np
import torch
import torch.nn.functional as F

seed = 2147
rng = np.random.default_rng(seed)

words = """ada alma amelie anton arno bela berta bruno carla cleo clara dario dora edda elmo
emil enno erna fabio flora frida gerda gina greta hanno helga hedi ida ilse ines ivo jana jonas
juna karla kian klara lara leo lena lino luca mara mila mira nele nico nora olga oskar paula peer
pia rosa ruben rudi sara selma silas tara theo tilda uma vera viola wanda willi xenia yara
zoe""".split()
chars = sorted(set("".join(words)))
stoi = {s: i + 1 for i, s in enumerate(chars)}
stoi["."] = 0
itos = {i: s for s, i in stoi.items()}
vocab_size = len(itos)
block_size = 3


def build_dataset(words):
    X, Y = [], []
    for w in words:
        context = [0] * block_size
        for ch in w + ".":
            ix = stoi[ch]
            X.append(context)
            Y.append(ix)
            context = context[1:] + [ix]
    return torch.tensor(X), torch.tensor(Y)


order = rng.permutation(len(words))
n = int(0.8 * len(words))
Xtr, Ytr = build_dataset([words[i] for i in order[:n]])
Xval, Yval = build_dataset([words[i] for i in order[n:]])

n_embd, n_hidden = 8, 40


def randn(*shape):
    return torch.tensor(rng.standard_normal(shape), dtype=torch.float32)


C = randn(vocab_size, n_embd)
W1 = randn(n_embd * block_size, n_hidden) * (5 / 3) / (n_embd * block_size) ** 0.5
W2 = randn(n_hidden, vocab_size) * 0.1
b2 = torch.zeros(vocab_size)
bngain = torch.ones((1, n_hidden))
bnbias = torch.zeros((1, n_hidden))
bnmean_running = torch.zeros((1, n_hidden))
bnstd_running = torch.ones((1, n_hidden))

parameters = [C, W1, W2, b2, bngain, bnbias]
print("seed", seed, "parameters", sum(p.nelement() for p in parameters))
for p in parameters:
    p.requires_grad = True

losses = []
for i in range(20):
    ix = torch.tensor(rng.integers(0, Xtr.shape[0], (32,)))
    Xb, Yb = Xtr[ix], Ytr[ix]

    emb = C[Xb]
    embcat = emb.view(emb.shape[0], -1)
    hpreact = embcat @ W1
    bnmeani = hpreact.mean(0, keepdim=True)
    bnstdi = hpreact.std(0, keepdim=True)
    hpreact = bngain * (hpreact - bnmeani) / bnstdi + bnbias
    with torch.no_grad():
        bnmean_running = 0.9 * bnmean_running + 0.1 * bnmeani
        bnstd_running = 0.9 * bnstd_running + 0.1 * bnstdi
    h = torch.tanh(hpreact)
    logits = h @ W2 + b2
    loss = F.cross_entropy(logits, Yb)

    for p in parameters:
        p.grad = None
    loss.backward()

    lr = 0.5 if i < 15 else 0.1
    for p in parameters:
        p.data += -lr * p.grad
    losses.append(loss.item())


@torch.no_grad()
def split_loss(x, y):
    emb = C[x]
    hpreact = emb.view(emb.shape[0], -1) @ W1
    hpreact = bngain * (hpreact - bnmean_running) / bnstd_running + bnbias
    logits = torch.tanh(hpreact) @ W2 + b2
    return F.cross_entropy(logits, y).item()


print("train", split_loss(Xtr, Ytr), "val", split_loss(Xval, Yval))

result = []
for _ in range(5):
    out = []
    context = [0] * block_size
    while len(out) < 12:
        emb = C[torch.tensor([context])]
        hpreact = emb.view(1, -1) @ W1
        hpreact = bngain * (hpreact - bnmean_running) / bnstd_running + bnbias
        probs = F.softmax(torch.tanh(hpreact) @ W2 + b2, dim=1)
        p = probs[0].detach().numpy().astype(float)
        ix = rng.choice(vocab_size, p=p / p.sum())
        context = context[1:] + [ix]
        if ix == 0:
            break
        out.append(itos[ix])
    result.append("".join(out))
print(result)
