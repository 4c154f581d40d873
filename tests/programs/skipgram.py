"""Words that stand in the same places get similar vectors: skip-gram with negative samples."""

from collections import Counter

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, Dataset

seed = 300
rng = np.random.default_rng(seed)

animals, foods = "cow dog cat hen".split(), "hay bread milk corn".split()
verbs, places = "eats likes wants".split(), "barn field yard".split()
corpus = [f"the {rng.choice(animals)} {rng.choice(verbs)} the {rng.choice(foods)} "
          f"in the {rng.choice(places)}".split() for _ in range(60)]

counts = Counter(word for sentence in corpus for word in sentence)
vocab = [word for word, _ in counts.most_common()]
word_to_ix = {word: i for i, word in enumerate(vocab)}
unigram = np.array([counts[w] for w in vocab]) ** 0.75
unigram /= unigram.sum()


class SkipGramData(Dataset):
    def __init__(self, corpus, window=2, n_negative=4):
        self.pairs = [(word_to_ix[s[i]], word_to_ix[s[j]]) for s in corpus for i in range(len(s))
                      for j in range(max(0, i - window), min(len(s), i + window + 1)) if i != j]
        self.n_negative = n_negative
        rng.shuffle(self.pairs)

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]

    def collate(self, batch):
        centers, contexts = zip(*batch)
        shape = (len(batch), self.n_negative)
        negatives = rng.choice(len(vocab), shape, p=unigram)
        return torch.LongTensor(centers), torch.LongTensor(contexts), torch.from_numpy(negatives)


class SkipGram(nn.Module):
    def __init__(self, vocab_size, embedding_dim):
        super().__init__()
        self.center = nn.Embedding(vocab_size, embedding_dim)
        self.context = nn.Embedding(vocab_size, embedding_dim)
        for table in (self.center, self.context):
            table.weight.data.copy_(torch.tensor(rng.uniform(-0.5, 0.5, table.weight.shape)))

    def forward(self, centers, contexts, negatives):
        v = self.center(centers)
        u = self.context(contexts)
        n = self.context(negatives)
        positive = F.logsigmoid((v * u).sum(dim=1))
        negative = F.logsigmoid(torch.bmm(n.neg(), v.unsqueeze(2)).squeeze(2)).sum(1)
        return -(positive + negative).mean()


data = SkipGramData(corpus)
loader = DataLoader(data, batch_size=64, collate_fn=data.collate, drop_last=True)
model = SkipGram(len(vocab), 10)
optimizer = optim.Adagrad(model.parameters(), lr=0.5)
print("seed", seed, "pairs", len(data), "words", len(vocab))

losses = []
for centers, contexts, negatives in loader:
    loss = model(centers, contexts, negatives)
    model.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if len(losses) == 20:
        break

vectors = model.center.weight.detach()
result = {}
for word in ["cow", "hay", "barn", "likes"]:
    v = vectors[word_to_ix[word]]
    similar = F.cosine_similarity(v.unsqueeze(0), vectors, dim=1)
    best = torch.argsort(similar, descending=True)[1:4]
    result[word] = [vocab[i] for i in best]
print(result)
