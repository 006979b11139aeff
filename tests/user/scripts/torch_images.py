"""Scripts of images, as pytorch.org's tutorials and torch's examples have them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from training_scripts import images, job, script

import vgame


@script("torch", "Quickstart (FashionMNIST, three linear layers)")
def quickstart():
    class NeuralNetwork(nn.Module):
        def __init__(self):
            super().__init__()
            self.flatten = nn.Flatten()
            self.linear_relu_stack = nn.Sequential(
                nn.Linear(28 * 28, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)
            )

        def forward(self, x):
            return self.linear_relu_stack(self.flatten(x))

    model, loss_fn = NeuralNetwork(), nn.CrossEntropyLoss()
    data = images(16, 1, 28)
    loader = DataLoader(TensorDataset(data["x"], data["y"]), batch_size=8, shuffle=True)
    task = vgame.Task(model, lambda m, b: loss_fn(m(b[0]), b[1]), optim.SGD(model.parameters(), lr=1e-3), loader)
    return vgame.Job(task, epochs=1, interval=1, seed=7)


@script("torch", "Training a classifier (CIFAR-10 convnet)")
def cifar10():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.pool, self.conv2 = nn.Conv2d(3, 6, 5), nn.MaxPool2d(2, 2), nn.Conv2d(6, 16, 5)
            self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 5 * 5, 40), nn.Linear(40, 20), nn.Linear(20, 10)

        def forward(self, x):
            x = self.pool(F.relu(self.conv1(x)))
            x = torch.flatten(self.pool(F.relu(self.conv2(x))), 1)
            return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))

    net, criterion = Net(), nn.CrossEntropyLoss()
    optimizer = optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
    return job(net, lambda m, b: criterion(m(b["x"]), b["y"]), optimizer, images(8, 3, 32))


def backbone() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


@script("torch", "Transfer learning, the network as fixed feature extractor")
def fixed_features():
    features = backbone()
    for parameter in features.parameters():
        parameter.requires_grad = False
    model = nn.Sequential(features, nn.Linear(16, 2))
    optimizer = optim.SGD(model[1].parameters(), lr=0.001, momentum=0.9)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.1)
    loss = lambda m, b: F.cross_entropy(m(b["x"]), b["y"])
    return job(model, loss, optimizer, images(classes=2), schedulers=[scheduler])


@script("torch", "Transfer learning, fine-tuning with two learning rates")
def fine_tuning():
    model = nn.Sequential(backbone(), nn.Linear(16, 2))
    groups = [{"params": model[0].parameters(), "lr": 1e-4}, {"params": model[1].parameters()}]
    optimizer = optim.SGD(groups, lr=0.01, momentum=0.9)
    return job(model, lambda m, b: F.cross_entropy(m(b["x"]), b["y"]), optimizer, images(classes=2))


@script("torch", "examples/mnist (Adadelta, dropout, StepLR)")
def mnist():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, 1), nn.Conv2d(8, 16, 3, 1)
            self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
            self.fc1, self.fc2 = nn.Linear(16 * 6 * 6, 32), nn.Linear(32, 10)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
            x = F.relu(self.fc1(torch.flatten(self.dropout1(x), 1)))
            return F.log_softmax(self.fc2(self.dropout2(x)), dim=1)

    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    loss = lambda m, b: F.nll_loss(m(b["x"]), b["y"])
    return job(model, loss, optimizer, images(16, 1), schedulers=[scheduler])


@script("torch", "Spatial transformer networks")
def spatial_transformer():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.localization = nn.Sequential(nn.Conv2d(1, 4, 5), nn.MaxPool2d(2, 2), nn.ReLU(True))
            self.fc_loc = nn.Sequential(nn.Linear(4 * 6 * 6, 16), nn.ReLU(True), nn.Linear(16, 6))
            self.fc_loc[2].weight.data.zero_()
            self.fc_loc[2].bias.data.copy_(torch.tensor([1, 0, 0, 0, 1, 0], dtype=torch.float))
            self.classify = nn.Linear(256, 10)

        def forward(self, x):
            theta = self.fc_loc(self.localization(x).flatten(1)).view(-1, 2, 3)
            x = F.grid_sample(x, F.affine_grid(theta, x.size()))
            return F.log_softmax(self.classify(x.flatten(1)), dim=1)

    model = Net()
    return job(model, lambda m, b: F.nll_loss(m(b["x"]), b["y"]), optim.SGD(model.parameters(), lr=0.01), images(16, 1))


@script("torch", "examples/siamese_network (pairs, binary cross-entropy)")
def siamese():
    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.fc = (
                nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(784, 16)),
                nn.Linear(32, 1),
            )

        def forward(self, a, b):
            return torch.sigmoid(self.fc(torch.cat((self.net(a), self.net(b)), 1)))

    model, criterion = Siamese(), nn.BCELoss()
    data = {"a": torch.rand(12, 1, 16, 16), "b": torch.rand(12, 1, 16, 16), "same": (torch.arange(12) % 2).float()}
    loss = lambda m, batch: criterion(m(batch["a"], batch["b"]).squeeze(1), batch["same"])
    return job(model, loss, optim.Adadelta(model.parameters(), lr=1.0), data)


@script("torch", "examples/mnist_forward_forward (each layer its own loss)")
def forward_forward():
    class Layer(nn.Linear):
        def forward(self, x):
            direction = x / (x.norm(2, 1, keepdim=True) + 1e-4)
            return torch.relu(F.linear(direction, self.weight, self.bias))

    layers = nn.ModuleList([Layer(64, 32), Layer(32, 32)])

    def marked(x, y):
        return torch.cat([F.one_hot(y, 10).float() * x.amax(), x[:, 10:]], 1)

    def loss(model, batch):
        positive, negative, total = marked(batch["x"], batch["y"]), marked(batch["x"], batch["wrong"]), 0.0
        for layer in model:
            positive, negative = layer(positive.detach()), layer(negative.detach())
            good, bad = positive.pow(2).mean(1), negative.pow(2).mean(1)
            total = total + torch.log(1 + torch.exp(torch.cat([-good + 2.0, bad - 2.0]))).mean()
        return total

    y = torch.arange(16) % 10
    data = {"x": torch.rand(16, 64), "y": y, "wrong": (y + 1 + torch.arange(16) % 9) % 10}
    return job(layers, loss, optim.Adam(layers.parameters(), lr=0.02), data)


@script("torch", "Autoencoder (UvA tutorial 9)")
def autoencoder():
    encoder = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.GELU(), nn.Conv2d(8, 8, 3, 1, 1), nn.GELU(), nn.Flatten(), nn.Linear(512, 16)
    )
    decoder = nn.Sequential(
        nn.Linear(16, 512), nn.GELU(), nn.Unflatten(1, (8, 8, 8)),
        nn.ConvTranspose2d(8, 3, 3, output_padding=1, padding=1, stride=2), nn.Tanh(),
    )  # fmt: skip
    model = nn.Sequential(encoder, decoder)
    loss = lambda m, b: F.mse_loss(b["x"], m(b["x"]), reduction="none").sum(dim=[1, 2, 3]).mean(dim=[0])
    return job(model, loss, optim.Adam(model.parameters(), lr=1e-3), images())


@script("torch", "examples/vae (reparametrization)")
def vae():
    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc21, self.fc22 = nn.Linear(256, 32), nn.Linear(32, 8), nn.Linear(32, 8)
            self.fc3, self.fc4 = nn.Linear(8, 32), nn.Linear(32, 256)

        def forward(self, x):
            h = F.relu(self.fc1(x.view(-1, 256)))
            mu, logvar = self.fc21(h), self.fc22(h)
            z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
            return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar

    def loss(model, batch):
        recon, mu, logvar = model(batch["x"])
        bce = F.binary_cross_entropy(recon, batch["x"].view(-1, 256), reduction="sum")
        return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())

    model = VAE()
    return job(model, loss, optim.Adam(model.parameters(), lr=1e-3), images(16, 1))


@script("torch", "DCGAN (two networks that take turns)")
def dcgan():
    netG = nn.Sequential(
        nn.ConvTranspose2d(8, 8, 4, 1, 0, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
        nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False), nn.Tanh(),
    )  # fmt: skip
    netD = nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1, bias=False), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 4), nn.Sigmoid())
    model, criterion = nn.ModuleDict({"G": netG, "D": netD}), nn.BCELoss()

    def loss_d(model, batch):
        real, fake = model["D"](batch["x"]).view(-1), model["D"](model["G"](torch.randn(4, 8, 1, 1)).detach()).view(-1)
        return criterion(real, torch.ones_like(real)) + criterion(fake, torch.zeros_like(fake))

    def loss_g(model, batch):
        fake = model["D"](model["G"](torch.randn(4, 8, 1, 1))).view(-1)
        return criterion(fake, torch.ones_like(fake))

    optimizers = [optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999)) for net in (netD, netG)]
    return job(model, [loss_d, loss_g], optimizers, images(16, 3, 8))


@script("torch", "examples/super_resolution (pixel shuffle)")
def super_resolution():
    model = nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1), nn.PixelShuffle(2))
    data = {"small": torch.rand(8, 1, 8, 8), "large": torch.rand(8, 1, 16, 16)}
    return job(model, lambda m, b: F.mse_loss(m(b["small"]), b["large"]), optim.Adam(model.parameters(), lr=1e-3), data)


@script("torch", "Neural style transfer (the image is what is trained)")
def style():
    class Picture(nn.Module):
        def __init__(self):
            super().__init__()
            self.image, self.features = nn.Parameter(torch.rand(1, 3, 16, 16)), nn.Conv2d(3, 8, 3).requires_grad_(False)

    def gram(x):
        features = x.view(x.size(0) * x.size(1), -1)
        return torch.mm(features, features.t()).div(features.numel())

    def loss(model, batch):
        made, wanted = model.features(model.image.clamp(0, 1)), model.features(batch["style"])
        return 1e3 * F.mse_loss(gram(made), gram(wanted)) + F.mse_loss(made, model.features(batch["content"]))

    data = {"style": torch.rand(1, 3, 16, 16), "content": torch.rand(1, 3, 16, 16)}
    model = Picture()
    return job(model, loss, optim.Adam([model.image], lr=0.1), data, 1)


@script("torch", "Neural style transfer with LBFGS", refused="LBFGS")
def style_lbfgs():
    model = nn.Linear(4, 4)
    return job(model, lambda m, b: m(b["x"]).square().mean(), optim.LBFGS(model.parameters()), {"x": torch.rand(8, 4)})


@script("torch", "Adversarial example generation (FGSM), as adversarial training")
def fgsm():
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 16), nn.ReLU(), nn.Linear(16, 10))

    def loss(model, batch):
        x = batch["x"].clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), batch["y"]), x)
        perturbed = torch.clamp(x.detach() + 0.1 * gradient.sign(), 0, 1)
        return F.cross_entropy(model(perturbed), batch["y"])

    return job(model, loss, optim.SGD(model.parameters(), lr=0.1), images(16, 1))


@script("torch", "Knowledge distillation (teacher, temperature, cosine loss)")
def distillation():
    teacher = nn.Sequential(nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 10)).requires_grad_(False).eval()
    student = nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.ReLU(), nn.Linear(8, 10))
    model = nn.ModuleDict({"teacher": teacher, "student": student})

    def loss(model, batch):
        with torch.no_grad():
            soft = F.softmax(model["teacher"](batch["x"]) / 2, -1)
        logits = model["student"](batch["x"])
        distilled = torch.sum(soft * (soft.log() - F.log_softmax(logits / 2, -1))) / len(logits) * 4
        return 0.25 * distilled + 0.75 * F.cross_entropy(logits, batch["y"])

    return job(model, loss, optim.Adam(student.parameters(), lr=1e-3), images(16, 1))


@script("torch", "Denoising diffusion (noise prediction at random times)")
def diffusion():
    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.time, self.first, self.last = nn.Embedding(100, 8), nn.Conv2d(1, 8, 3, 1, 1), nn.Conv2d(8, 1, 3, 1, 1)
            self.register_buffer("alphas", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0))

        def forward(self, x, t):
            return self.last(F.silu(self.first(x) + self.time(t)[:, :, None, None]))

    def loss(model, batch):
        x = batch["x"] * 2 - 1
        t, noise = torch.randint(0, 100, (len(x),)), torch.randn_like(x)
        share = model.alphas[t][:, None, None, None]
        return F.mse_loss(model(share.sqrt() * x + (1 - share).sqrt() * noise, t), noise)

    model = Denoiser()
    return job(model, loss, optim.AdamW(model.parameters(), lr=1e-3), images(16, 1, 8), average=0.99)


@script("torch", "Automatic mixed precision recipe (autocast to bfloat16)")
def amp():
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 16), nn.ReLU(), nn.Linear(16, 10))

    def loss(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(model(batch["x"]), batch["y"])

    return job(model, loss, optim.SGD(model.parameters(), lr=0.1), images(16, 1))


@script("torch", "Automatic mixed precision recipe (float16 and GradScaler)", refused="float16")
def amp_float16():
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 10))

    def loss(model, batch):
        with torch.autocast("cuda", dtype=torch.float16):
            return F.cross_entropy(model(batch["x"]), batch["y"])

    return job(model, loss, optim.SGD(model.parameters(), lr=0.1), images(16, 1))


@script("torch", "Activation checkpointing")
def checkpointing():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Sequential(nn.Flatten(), nn.Linear(256, 16), nn.Tanh()), nn.Linear(16, 10)

        def forward(self, x):
            return self.last(checkpoint(self.first, x, use_reentrant=False))

    model = Net()
    loss = lambda m, b: F.cross_entropy(m(b["x"]), b["y"])
    return job(model, loss, optim.SGD(model.parameters(), lr=0.1), images(16, 1), accumulate=2, clip=1.0)


@script("torch", "What is torch.nn really? (a loop of one's own, without nn.Module in the loss)")
def what_is_nn():
    class Logistic(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights, self.bias = nn.Parameter(torch.randn(256, 10) / 16), nn.Parameter(torch.zeros(10))

    def loss(model, batch):
        scores = batch["x"].flatten(1) @ model.weights + model.bias
        scores = scores - scores.exp().sum(-1).log().unsqueeze(-1)
        return -scores[range(len(scores)), batch["y"]].mean()

    model = Logistic()
    return job(model, loss, optim.SGD(model.parameters(), lr=0.5), images(16, 1))
