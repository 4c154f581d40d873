"""A GRU reads a number in words, a second one with attention writes it in digits."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim

seed = 24
rng = np.random.default_rng(seed)
SOS_token, EOS_token = 0, 1
MAX_LENGTH = 4

ones = "one two three four five six seven eight nine".split()
tens = "twenty thirty forty fifty sixty seventy eighty ninety".split()


class Lang:
    def __init__(self, name):
        self.name = name
        self.word2index = {}
        self.index2word = {0: "SOS", 1: "EOS"}
        self.n_words = 2

    def addSentence(self, sentence):
        for word in sentence:
            if word not in self.word2index:
                self.word2index[word] = self.n_words
                self.index2word[self.n_words] = word
                self.n_words += 1


class EncoderRNN(nn.Module):
    def __init__(self, input_size, hidden_size, dropout_p=0.0):
        super(EncoderRNN, self).__init__()
        self.hidden_size = hidden_size
        self.embedding = nn.Embedding(input_size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, input):
        embedded = self.dropout(self.embedding(input))
        output, hidden = self.gru(embedded)
        return output, hidden


class BahdanauAttention(nn.Module):
    def __init__(self, hidden_size):
        super(BahdanauAttention, self).__init__()
        self.Wa = nn.Linear(hidden_size, hidden_size)
        self.Ua = nn.Linear(hidden_size, hidden_size)
        self.Va = nn.Linear(hidden_size, 1, bias=False)

    def forward(self, query, keys):
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys)))
        scores = scores.squeeze(2).unsqueeze(1)
        weights = F.softmax(scores, dim=-1)
        context = torch.bmm(weights, keys)
        return context, weights


class AttnDecoderRNN(nn.Module):
    def __init__(self, hidden_size, output_size, dropout_p=0.0):
        super(AttnDecoderRNN, self).__init__()
        self.embedding = nn.Embedding(output_size, hidden_size)
        self.attention = BahdanauAttention(hidden_size)
        self.gru = nn.GRU(2 * hidden_size, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, output_size)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, encoder_outputs, encoder_hidden, target_tensor=None):
        batch_size = encoder_outputs.size(0)
        decoder_input = torch.empty(batch_size, 1, dtype=torch.long).fill_(SOS_token)
        decoder_hidden = encoder_hidden
        decoder_outputs, attentions = [], []
        for i in range(MAX_LENGTH):
            decoder_output, decoder_hidden, attn_weights = self.forward_step(
                decoder_input, decoder_hidden, encoder_outputs)
            decoder_outputs.append(decoder_output)
            attentions.append(attn_weights)
            if target_tensor is not None:
                decoder_input = target_tensor[:, i].unsqueeze(1)
            else:
                _, topi = decoder_output.topk(1)
                decoder_input = topi.squeeze(-1).detach()
        decoder_outputs = torch.cat(decoder_outputs, dim=1)
        decoder_outputs = F.log_softmax(decoder_outputs, dim=-1)
        attentions = torch.cat(attentions, dim=1)
        return decoder_outputs, decoder_hidden, attentions

    def forward_step(self, input, hidden, encoder_outputs):
        embedded = self.dropout(self.embedding(input))
        query = hidden.permute(1, 0, 2)
        context, attn_weights = self.attention(query, encoder_outputs)
        input_gru = torch.cat((embedded, context), dim=2)
        output, hidden = self.gru(input_gru, hidden)
        return self.out(output), hidden, attn_weights


def indexes(lang, sentence):
    found = [lang.word2index[word] for word in sentence] + [EOS_token]
    return found + [EOS_token] * (MAX_LENGTH - len(found))


pairs = [((t, o), (str(i + 2), str(j + 1))) for i, t in enumerate(tens) for j, o in enumerate(ones)]
input_lang, output_lang = Lang("words"), Lang("digits")
for words, digits in pairs:
    input_lang.addSentence(words)
    output_lang.addSentence(digits)
inputs = torch.tensor([indexes(input_lang, words) for words, _ in pairs])
targets = torch.tensor([indexes(output_lang, digits) for _, digits in pairs])

encoder = EncoderRNN(input_lang.n_words, 32)
decoder = AttnDecoderRNN(32, output_lang.n_words)
for module in (encoder, decoder):
    for p in module.parameters():
        with torch.no_grad():
            p.copy_(torch.tensor(rng.uniform(-0.3, 0.3, p.size())))
encoder_optimizer = optim.Adam(encoder.parameters(), lr=0.02)
decoder_optimizer = optim.Adam(decoder.parameters(), lr=0.02)
criterion = nn.NLLLoss()

losses = []
order = rng.permutation(len(pairs))
for _ in range(20):
    rows = torch.as_tensor(rng.choice(order[:60], 24, replace=False))
    input_tensor, target_tensor = inputs[rows], targets[rows]
    encoder_optimizer.zero_grad()
    decoder_optimizer.zero_grad()
    encoder_outputs, encoder_hidden = encoder(input_tensor)
    decoder_outputs, _, _ = decoder(encoder_outputs, encoder_hidden, target_tensor)
    loss = criterion(decoder_outputs.view(-1, decoder_outputs.size(-1)), target_tensor.view(-1))
    loss.backward()
    encoder_optimizer.step()
    decoder_optimizer.step()
    losses.append(loss.item())
print("seed", seed, "first loss", losses[0], "last loss", losses[-1])


def evaluate(encoder, decoder, row):
    with torch.no_grad():
        encoder_outputs, encoder_hidden = encoder(inputs[row:row + 1])
        decoder_outputs, _, attentions = decoder(encoder_outputs, encoder_hidden)
        _, topi = decoder_outputs.topk(1)
        decoded_words = []
        for idx in topi.squeeze():
            if idx.item() == EOS_token:
                decoded_words.append("<EOS>")
                break
            decoded_words.append(output_lang.index2word[idx.item()])
    return decoded_words, attentions[0, :2].argmax(-1).tolist()


result = []
for row in order[60:66]:
    said, looked_at = evaluate(encoder, decoder, int(row))
    result.append((" ".join(said), looked_at))
    print(*pairs[row][0], "->", *result[-1])
