"""Modules as a user of torch writes them: three architectures of its tutorials, rewritten from their descriptions. Only
the factories at the end use vgame, and vgame does not use this file."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from vgame.tasks import digits
from vgame.tasks.task import Task


class SpatialTransformer(nn.Module):
    """A localisation network finds an affine map, the image is sampled through it, and a small convolutional network
    classifies it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 12, 3, padding=1)
        self.drop = nn.Dropout2d()
        self.fc1, self.fc2 = nn.Linear(12 * 2 * 2, 32), nn.Linear(32, 10)
        self.localization = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.MaxPool2d(2, stride=2), nn.ReLU(True), nn.Conv2d(4, 6, 2), nn.ReLU(True)
        )
        self.fc_loc = nn.Sequential(nn.Linear(6 * 2 * 2, 16), nn.ReLU(True), nn.Linear(16, 6))
        self.fc_loc[2].weight.data.zero_()
        self.fc_loc[2].bias.data.copy_(torch.tensor([1, 0, 0, 0, 1, 0], dtype=torch.float))

    def stn(self, x: torch.Tensor) -> torch.Tensor:
        theta = self.fc_loc(self.localization(x).view(-1, 24)).view(-1, 2, 3)
        return F.grid_sample(x, F.affine_grid(theta, x.size(), align_corners=False), align_corners=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(F.max_pool2d(self.conv1(self.stn(x)), 2))
        x = F.relu(F.max_pool2d(self.drop(self.conv2(x)), 2)).view(-1, 48)
        x = F.dropout(F.relu(self.fc1(x)), training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)


class PositionalEncoding(nn.Module):
    """Sines and cosines of the position, added to the embedding; sequence first."""

    def __init__(self, width: int, dropout: float = 0.1, longest: int = 100) -> None:
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(longest).unsqueeze(1)
        frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        pe = torch.zeros(longest, 1, width)
        pe[:, 0, 0::2], pe[:, 0, 1::2] = torch.sin(position * frequency), torch.cos(position * frequency)
        self.register_buffer("pe", pe)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.pe[: x.size(0)]
        return self.dropout(x)


class TransformerModel(nn.Module):
    """A language model of nn.TransformerEncoder layers with a square mask; tokens [T, B] -> [T, B, tokens]."""

    def __init__(self, tokens: int, width: int = 16, heads: int = 2, hidden: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.pos_encoder = PositionalEncoding(width)
        encoder_layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout=0.2)
        self.transformer_encoder = nn.TransformerEncoder(encoder_layer, layers)
        self.embedding, self.width, self.linear = nn.Embedding(tokens, width), width, nn.Linear(width, tokens)
        for p in (self.embedding.weight, self.linear.weight):
            p.data.uniform_(-0.1, 0.1)
        self.linear.bias.data.zero_()

    def forward(self, source: torch.Tensor) -> torch.Tensor:
        x = self.pos_encoder(self.embedding(source) * math.sqrt(self.width))
        mask = nn.Transformer.generate_square_subsequent_mask(len(source))
        return self.linear(self.transformer_encoder(x, mask))


class Translator(nn.Module):
    """Sequence to sequence: a GRU encoder, a GRU decoder that attends to the encoder's states (Bahdanau), the right
    words fed back."""

    def __init__(self, words: int, width: int = 16) -> None:
        super().__init__()
        self.source, self.encoder = nn.Embedding(words, width), nn.GRU(width, width, batch_first=True)
        self.target, self.decoder = nn.Embedding(words, width), nn.GRU(2 * width, width, batch_first=True)
        self.Wa, self.Ua, self.Va = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.out, self.dropout = nn.Linear(width, words), nn.Dropout(0.1)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        keys, hidden = self.encoder(self.dropout(self.source(source)))
        word, outputs = torch.zeros(source.size(0), 1, dtype=torch.long), []
        for i in range(target.size(1)):
            query = hidden.permute(1, 0, 2)
            scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys))).squeeze(2).unsqueeze(1)
            context = torch.bmm(F.softmax(scores, dim=-1), keys)
            output, hidden = self.decoder(torch.cat((self.dropout(self.target(word)), context), dim=2), hidden)
            outputs.append(self.out(output))
            word = target[:, i].unsqueeze(1)
        return F.log_softmax(torch.cat(outputs, dim=1), dim=-1)


# ---- factories, which a user adds ----


def spatial() -> Task:
    """Digits, negative log-likelihood, plain SGD."""
    torch.manual_seed(0)
    model = SpatialTransformer()
    pixels, labels = digits.images()
    loss = lambda m, b: F.nll_loss(m(b["image"]), b["label"])  # noqa: E731
    return Task(model, loss, torch.optim.SGD(model.parameters(), lr=1.0), {"image": pixels, "label": labels}, 16)


def transformer() -> Task:
    """A stream of tokens that follow a rule, cross-entropy, SGD with clipping."""
    torch.manual_seed(0)
    model, stream = TransformerModel(11), (torch.arange(600) ** 2 % 11)

    def loss(m: nn.Module, b: dict[str, torch.Tensor]) -> torch.Tensor:
        rows = b["tokens"].t()
        return F.cross_entropy(m(rows[:-1]).view(-1, 11), rows[1:].reshape(-1))

    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return Task(model, loss, optimizer, {"tokens": stream}, 4, window=9, stride=8, clip=0.5)


def translation() -> Task:
    """Sentences and the same sentences backwards, negative log-likelihood, Adam."""
    torch.manual_seed(0)
    model, sentences = Translator(12), torch.randint(1, 12, (200, 5))
    loss = lambda m, b: F.nll_loss(m(b["x"], b["y"]).flatten(0, 1), b["y"].flatten())  # noqa: E731
    return Task(model, loss, torch.optim.Adam(model.parameters(), lr=1.0), {"x": sentences, "y": sentences.flip(1)}, 8)
