"""A language model of words: two layers of LSTM over a story, cut into columns that are read on."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

seed = 1111
rng = np.random.default_rng(seed)

story = """the farmer has a dog and the dog has a bone . the farmer has a cat and the cat has a
ball . the dog runs to the river and the cat runs to the house . the farmer calls the dog and the
dog comes home . the farmer calls the cat and the cat sleeps in the house . in the house the cat has
a ball and at the river the dog has a bone .""" * 3


class Dictionary(object):
    def __init__(self):
        self.word2idx = {}
        self.idx2word = []

    def add_word(self, word):
        if word not in self.word2idx:
            self.idx2word.append(word)
            self.word2idx[word] = len(self.idx2word) - 1
        return self.word2idx[word]

    def __len__(self):
        return len(self.idx2word)


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers, dropout=0.0):
        super(RNNModel, self).__init__()
        self.ntoken = ntoken
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        self.init_weights()
        self.nhid = nhid
        self.nlayers = nlayers

    def init_weights(self):
        for p in self.parameters():
            nn.init.zeros_(p)
            if p.dim() > 1:
                p.data += torch.from_numpy(rng.uniform(-1.0, 1.0, p.shape).astype(np.float32))

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        output = self.drop(output)
        decoded = self.decoder(output)
        decoded = decoded.view(-1, self.ntoken)
        return F.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (weight.new_zeros(self.nlayers, bsz, self.nhid),
                weight.new_zeros(self.nlayers, bsz, self.nhid))


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    data = data.narrow(0, 0, nbatch * bsz)
    return data.view(bsz, -1).t().contiguous()


def repackage_hidden(h):
    """Wraps hidden states in new Tensors, to detach them from their history."""
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def get_batch(source, i):
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i:i + seq_len], source[i + 1:i + 1 + seq_len].view(-1)


def evaluate(data_source):
    model.eval()
    total_loss = 0.0
    hidden = model.init_hidden(data_source.size(1))
    with torch.no_grad():
        for i in range(0, data_source.size(0) - 1, bptt):
            data, targets = get_batch(data_source, i)
            output, hidden = model(data, hidden)
            hidden = repackage_hidden(hidden)
            total_loss += len(data) * criterion(output, targets).item()
    return total_loss / (len(data_source) - 1)


def train():
    model.train()
    hidden = model.init_hidden(train_data.size(1))
    for i in range(0, train_data.size(0) - 1, bptt):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        losses.append(loss.item())


dictionary = Dictionary()
ids = torch.tensor([dictionary.add_word(word) for word in story.split()]).type(torch.int64)
ntokens = len(dictionary)
train_data = batchify(ids, 4)
val_data = batchify(ids[:80], 2)
bptt = 15
lr = 4.0
model = RNNModel(ntokens, 16, 24, 2)
criterion = nn.NLLLoss()

losses = []
best_val_loss = None
print("seed", seed, "batches of", tuple(train_data.shape), "words:", ntokens)
while len(losses) < 20:
    train()
    val_loss = evaluate(val_data)
    print("loss {:5.2f} | valid loss {:5.2f} | valid ppl {:8.2f}".format(
        losses[-1], val_loss, math.exp(val_loss)))
    if not best_val_loss or val_loss < best_val_loss:
        best_val_loss = val_loss
    else:
        lr /= 4.0

model.eval()
hidden = model.init_hidden(1)
input = torch.full((1, 1), dictionary.word2idx["the"], dtype=torch.long)
words = []
with torch.no_grad():
    for _ in range(15):
        output, hidden = model(input, hidden)
        word_weights = output.squeeze().div(0.7).exp().cpu().numpy().astype(np.float64)
        word_idx = rng.choice(ntokens, p=word_weights / word_weights.sum())
        input.fill_(int(word_idx))
        words.append(dictionary.idx2word[word_idx])
result = " ".join(words)
print(result)
