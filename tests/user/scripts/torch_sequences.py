"""Scripts of text and sequences, as pytorch.org's tutorials and torch's examples have them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn, optim
from training_scripts import job, script, tokens


@script("torch", "NLP from scratch: classifying names with a character RNN")
def names():
    class CharRNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.h2o, self.softmax = nn.RNN(30, 16), nn.Linear(16, 4), nn.LogSoftmax(dim=1)

        def forward(self, line):
            _, hidden = self.rnn(line)
            return self.softmax(self.h2o(hidden[0]))

    model, criterion = CharRNN(), nn.NLLLoss()
    loss = lambda m, b: criterion(m(F.one_hot(b["line"], 30).float().transpose(0, 1)), b["y"])
    data = {"line": tokens(16, 7, 30), "y": torch.arange(16) % 4}
    return job(model, loss, optim.SGD(model.parameters(), lr=0.15), data, clip=3.0)


@script("torch", "NLP from scratch: generating names with a character RNN")
def generating():
    class RNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.i2h, self.i2o, self.o2o = nn.Linear(46, 16), nn.Linear(46, 30), nn.Linear(46, 30)
            self.dropout = nn.Dropout(0.1)

        def forward(self, letter, hidden):
            combined = torch.cat((letter, hidden), 1)
            hidden = self.i2h(combined)
            output = self.dropout(self.o2o(torch.cat((hidden, self.i2o(combined)), 1)))
            return F.log_softmax(output, dim=1), hidden

    def loss(model, batch):
        hidden, total = torch.zeros(len(batch["line"]), 16), 0.0
        for i in range(batch["line"].size(1) - 1):
            output, hidden = model(F.one_hot(batch["line"][:, i], 30).float(), hidden)
            total = total + F.nll_loss(output, batch["line"][:, i + 1])
        return total / i

    model = RNN()
    return job(model, loss, optim.SGD(model.parameters(), lr=5e-4), {"line": tokens(16, 6, 30)})


@script("torch", "NLP from scratch: translation with sequence to sequence and attention")
def seq2seq():
    class BahdanauAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.Wa, self.Ua, self.Va = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 1)

        def forward(self, query, keys):
            scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys))).squeeze(2).unsqueeze(1)
            return torch.bmm(F.softmax(scores, dim=-1), keys)

    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.source, self.target, self.dropout = nn.Embedding(40, 16), nn.Embedding(40, 16), nn.Dropout(0.1)
            self.encoder, self.decoder = nn.GRU(16, 16, batch_first=True), nn.GRU(32, 16, batch_first=True)
            self.attention, self.out = BahdanauAttention(), nn.Linear(16, 40)

        def forward(self, source, target):
            keys, hidden = self.encoder(self.dropout(self.source(source)))
            last, outputs = torch.zeros(len(source), 1, dtype=torch.long), []
            for i in range(target.size(1)):
                context = self.attention(hidden.permute(1, 0, 2), keys)
                output, hidden = self.decoder(torch.cat((self.target(last), context), dim=2), hidden)
                outputs.append(self.out(output))
                last = target[:, i].unsqueeze(1)  # teacher forcing
            return F.log_softmax(torch.cat(outputs, dim=1), dim=-1)

    model = Translator()
    loss = lambda m, b: F.nll_loss(m(b["s"], b["t"]).view(-1, 40), b["t"].view(-1))
    return job(model, loss, optim.Adam(model.parameters(), lr=1e-3), {"s": tokens(16, 5), "t": tokens(16, 4)})


@script("torch", "Language modeling with nn.Transformer")
def transformer_lm():
    class TransformerModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Embedding(40, 16), nn.Linear(16, 40)
            self.transformer = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.2), 2)
            position, div = torch.arange(12).unsqueeze(1), torch.exp(torch.arange(0, 16, 2) * (-math.log(1e4) / 16))
            pe = torch.zeros(12, 1, 16)
            pe[:, 0, 0::2], pe[:, 0, 1::2] = torch.sin(position * div), torch.cos(position * div)
            self.register_buffer("pe", pe)

        def forward(self, src):
            src = self.encoder(src) * math.sqrt(16) + self.pe[: src.size(0)]
            mask = nn.Transformer.generate_square_subsequent_mask(len(src))
            return self.decoder(self.transformer(src, mask))

    model, criterion = TransformerModel(), nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=5.0)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1.0, gamma=0.95)
    loss = lambda m, b: criterion(m(b["t"][:, :-1].t()).view(-1, 40), b["t"][:, 1:].t().reshape(-1))
    return job(model, loss, optimizer, {"t": tokens()}, clip=0.5, schedulers=[scheduler])


@script("torch", "Translation with nn.Transformer and padding masks")
def transformer_translation():
    class Seq2SeqTransformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.src, self.tgt, self.generator = nn.Embedding(40, 16), nn.Embedding(40, 16), nn.Linear(16, 40)
            self.transformer = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)

        def forward(self, src, tgt):
            causal = nn.Transformer.generate_square_subsequent_mask(tgt.size(1))
            out = self.transformer(
                self.src(src), self.tgt(tgt), tgt_mask=causal, src_key_padding_mask=src == 0,
                tgt_key_padding_mask=(tgt == 0).float() * -1e9, memory_key_padding_mask=src == 0,
            )  # fmt: skip
            return self.generator(out)

    model = Seq2SeqTransformer()
    source, target = tokens(16, 8), tokens(16, 7)
    source[::2, 5:], target[1::2, 5:] = 0, 0

    def loss(model, batch):
        logits = model(batch["s"], batch["t"][:, :-1])
        return F.cross_entropy(logits.reshape(-1, 40), batch["t"][:, 1:].reshape(-1), ignore_index=0)

    optimizer = optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    return job(model, loss, optimizer, {"s": source, "t": target})


@script("torch", "examples/word_language_model (LSTM that carries its state, truncated backpropagation)")
def word_language_model():
    class Carried(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.rnn, self.decoder = (
                nn.Embedding(40, 16),
                nn.LSTM(16, 16, batch_first=True),
                nn.Linear(16, 40),
            )
            self.register_buffer("h", torch.zeros(1, 4, 16))
            self.register_buffer("c", torch.zeros(1, 4, 16))

        def forward(self, x):
            output, (h, c) = self.rnn(self.encoder(x), (self.h, self.c))
            self.h, self.c = h.detach(), c.detach()
            return self.decoder(output)

    model = Carried()
    loss = lambda m, b: F.cross_entropy(m(b["data"]).flatten(0, 1), b["target"].flatten())
    text = torch.randint(0, 40, (201,))
    data = {"data": text[:-1], "target": text[1:]}
    return job(model, loss, optim.SGD(model.parameters(), lr=1.0), data, clip=0.25, window=8, stride=8, order="streams")


@script("torch", "Word embeddings: an n-gram language model")
def n_gram():
    class NGramLanguageModeler(nn.Module):
        def __init__(self):
            super().__init__()
            self.embeddings, self.linear1, self.linear2 = nn.Embedding(40, 10), nn.Linear(20, 32), nn.Linear(32, 40)

        def forward(self, inputs):
            out = F.relu(self.linear1(self.embeddings(inputs).view(len(inputs), -1)))
            return F.log_softmax(self.linear2(out), dim=1)

    model, loss_function = NGramLanguageModeler(), nn.NLLLoss()
    loss = lambda m, b: loss_function(m(b["t"][:, :2]), b["t"][:, 2])
    return job(model, loss, optim.SGD(model.parameters(), lr=0.001), {"t": tokens(16, 3)})


@script("torch", "Word embeddings: skip-grams with negative samples")
def skip_gram():
    class SkipGram(nn.Module):
        def __init__(self):
            super().__init__()
            self.centre, self.context = nn.Embedding(40, 8), nn.Embedding(40, 8)

    def loss(model, batch):
        centre, context = model.centre(batch["t"][:, 0]), model.context(batch["t"][:, 1])
        others = model.context(torch.randint(0, 40, (len(centre), 5)))
        negative = torch.bmm(others, centre.unsqueeze(2)).squeeze(2)
        return -(F.logsigmoid((centre * context).sum(1)) + F.logsigmoid(-negative).sum(1)).mean()

    model = SkipGram()
    return job(model, loss, optim.Adagrad(model.parameters(), lr=0.1), {"t": tokens(16, 2)})


@script("torch", "Word embeddings with sparse gradients (SparseAdam)", refused="[Ss]parse")
def sparse_embeddings():
    model = nn.Embedding(40, 8, sparse=True)
    loss = lambda m, b: m(b["t"]).square().mean()
    return job(model, loss, optim.SparseAdam(model.parameters(), lr=0.1), {"t": tokens(16, 2)})


@script("torch", "Sequence models: an LSTM tagger of words")
def tagger():
    class LSTMTagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.lstm, self.tags = nn.Embedding(40, 8), nn.LSTM(8, 8, bidirectional=True), nn.Linear(16, 3)

        def forward(self, sentence):
            out, _ = self.lstm(self.words(sentence).transpose(0, 1))
            return F.log_softmax(self.tags(out), dim=-1)

    model = LSTMTagger()
    loss = lambda m, b: F.nll_loss(m(b["t"]).flatten(0, 1), b["tag"].t().flatten())
    data = {"t": tokens(16, 6), "tag": torch.randint(0, 3, (16, 6))}
    return job(model, loss, optim.SGD(model.parameters(), lr=0.1), data)


@script("torch", "Advanced: a BiLSTM's conditional random field (forward algorithm)")
def crf():
    class CRF(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.lstm, self.tags = nn.Embedding(40, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 3)
            self.transitions = nn.Parameter(torch.randn(3, 3))

        def forward(self, sentence, tags):
            scores = self.tags(self.lstm(self.words(sentence))[0])
            alpha, gold = scores[:, 0], scores[:, 0].gather(1, tags[:, :1]).squeeze(1)
            for i in range(1, scores.size(1)):
                alpha = torch.logsumexp(alpha.unsqueeze(2) + self.transitions + scores[:, i].unsqueeze(1), dim=1)
                gold = (
                    gold
                    + self.transitions[tags[:, i - 1], tags[:, i]]
                    + scores[:, i].gather(1, tags[:, i : i + 1])[:, 0]
                )
            return (torch.logsumexp(alpha, 1) - gold).mean()

    model = CRF()
    optimizer = optim.SGD(model.parameters(), lr=0.01, weight_decay=1e-4)
    data = {"t": tokens(16, 5), "tag": torch.randint(0, 3, (16, 5))}
    return job(model, lambda m, b: m(b["t"], b["tag"]), optimizer, data)


@script("torch", "Text classification with nn.EmbeddingBag")
def embedding_bag():
    model = nn.Sequential(nn.EmbeddingBag(40, 16), nn.Linear(16, 4))
    optimizer = optim.SGD(model.parameters(), lr=5.0)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    loss = lambda m, b: F.cross_entropy(m(b["t"]), b["y"])
    data = {"t": tokens(), "y": torch.arange(16) % 4}
    return job(model, loss, optimizer, data, clip=0.1, schedulers=[scheduler])


@script("torch", "examples/time_sequence_prediction (LSTM cells; Adam in place of LBFGS)")
def time_sequence():
    class Sequence(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm1, self.lstm2, self.linear = nn.LSTMCell(1, 12), nn.LSTMCell(12, 12), nn.Linear(12, 1)

        def forward(self, x):
            h1, c1, h2, c2 = (torch.zeros(x.size(0), 12) for _ in range(4))
            outputs = []
            for input_t in x.split(1, dim=1):
                h1, c1 = self.lstm1(input_t, (h1, c1))
                h2, c2 = self.lstm2(h1, (h2, c2))
                outputs.append(self.linear(h2))
            return torch.cat(outputs, dim=1)

    model = Sequence()
    data = {"x": torch.sin(torch.arange(16)[:, None] + torch.arange(9) / 2.0)}
    loss = lambda m, b: F.mse_loss(m(b["x"][:, :-1]), b["x"][:, 1:])
    return job(model, loss, optim.Adam(model.parameters(), lr=0.01), data)
