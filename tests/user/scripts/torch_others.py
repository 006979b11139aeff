"""Scripts of reinforcement learning, graphs, physics and functional torch, as pytorch.org's pages have them.
Reinforcement learning trains on recorded episodes."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.utils import parametrizations, prune
from training_scripts import job, script


def transitions(count: int = 32) -> dict[str, torch.Tensor]:
    return {
        "state": torch.randn(count, 4), "action": torch.arange(count) % 2, "reward": torch.rand(count),
        "next": torch.randn(count, 4), "done": (torch.arange(count) % 5 == 0).float(),
    }  # fmt: skip


def policy(outputs: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, outputs))


@script("torch", "Reinforcement learning (DQN): Huber loss, target network, soft update")
def dqn():
    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.policy_net = policy()
            self.target_net = copy.deepcopy(self.policy_net).requires_grad_(False)
            for name, p in list(self.target_net.named_parameters()):  # a step changes them: buffers
                *path, last = name.split(".")
                owner = self.target_net.get_submodule(".".join(path))
                delattr(owner, last)
                owner.register_buffer(last, p.detach().clone())

        def soft_update(self):
            with torch.no_grad():
                for t, p in zip(self.target_net.buffers(), self.policy_net.parameters(), strict=True):
                    t.mul_(1 - 0.005).add_(p.detach(), alpha=0.005)

    def loss(model, batch):
        values = model.policy_net(batch["state"]).gather(1, batch["action"].unsqueeze(1))
        with torch.no_grad():
            following = model.target_net(batch["next"]).max(1).values * (1 - batch["done"])
        expected = following * 0.99 + batch["reward"]
        model.soft_update()
        return nn.SmoothL1Loss()(values, expected.unsqueeze(1))

    agent = Agent()
    optimizer = optim.AdamW(agent.policy_net.parameters(), lr=1e-4, amsgrad=True)
    return job(agent, loss, optimizer, transitions(), 8, clip_value=100.0)


@script("torch", "examples/reinforcement_learning: REINFORCE on recorded episodes")
def reinforce():
    model = policy()

    def loss(model, batch):
        returns, total = [], torch.zeros(())
        for r in batch["reward"].flip(0).unbind():
            total = r + 0.99 * total
            returns.insert(0, total)
        returns = torch.stack(returns)
        returns = (returns - returns.mean()) / (returns.std() + 1e-8)
        log_prob = torch.distributions.Categorical(logits=model(batch["state"])).log_prob(batch["action"])
        return -(log_prob * returns).sum()

    return job(model, loss, optim.Adam(model.parameters(), lr=1e-2), transitions(), 8, order="sequential")


@script("torch", "examples/reinforcement_learning: actor-critic on recorded episodes")
def actor_critic():
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.affine1, self.action_head, self.value_head = nn.Linear(4, 16), nn.Linear(16, 2), nn.Linear(16, 1)

        def forward(self, x):
            x = F.relu(self.affine1(x))
            return F.softmax(self.action_head(x), dim=-1), self.value_head(x)

    def loss(model, batch):
        probabilities, value = model(batch["state"])
        advantage = batch["reward"] - value.squeeze(1).detach()
        log_prob = torch.distributions.Categorical(probabilities).log_prob(batch["action"])
        return (-log_prob * advantage).sum() + F.smooth_l1_loss(value.squeeze(1), batch["reward"], reduction="sum")

    model = Policy()
    return job(model, loss, optim.Adam(model.parameters(), lr=3e-2), transitions(), 8)


@script("torch", "examples/gcn (graph convolution, dense adjacency)")
def gcn():
    class GCN(nn.Module):
        def __init__(self, adjacency):
            super().__init__()
            self.first, self.second = nn.Linear(6, 8, bias=False), nn.Linear(8, 3, bias=False)
            degree = adjacency.sum(1).rsqrt()
            self.register_buffer("adjacency", degree[:, None] * adjacency * degree)

        def forward(self, x):
            x = F.dropout(F.relu(self.adjacency @ self.first(x)), 0.5, self.training)
            return F.log_softmax(self.adjacency @ self.second(x), dim=1)

    edges = (torch.rand(12, 12) < 0.3).float()
    model = GCN(((edges + edges.t()) > 0).float().fill_diagonal_(1))
    data = {"x": torch.randn(1, 12, 6), "y": (torch.arange(12) % 3)[None], "known": (torch.arange(12) < 6)[None]}

    def loss(model, batch):
        each = F.nll_loss(model(batch["x"][0]), batch["y"][0], reduction="none")
        return (each * batch["known"][0]).sum() / batch["known"][0].sum()

    return job(model, loss, optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4), data, 1)


@script("torch", "examples/gat (graph attention)")
def gat():
    class GAT(nn.Module):
        def __init__(self, adjacency):
            super().__init__()
            self.W, self.a, self.out = nn.Linear(6, 8, bias=False), nn.Linear(16, 1, bias=False), nn.Linear(8, 3)
            self.register_buffer("adjacency", adjacency)

        def forward(self, x):
            h = self.W(x)
            left, right = h @ self.a.weight[0, :8], h @ self.a.weight[0, 8:]
            e = F.leaky_relu(left[:, None] + right, 0.2).masked_fill(~self.adjacency, float("-inf"))
            return self.out(F.elu(torch.softmax(e, dim=1) @ h))

    model = GAT(torch.rand(12, 12) < 0.3 + torch.eye(12))
    data = {"x": torch.randn(1, 12, 6), "y": (torch.arange(12) % 3)[None]}
    loss = lambda m, b: F.cross_entropy(m(b["x"][0]), b["y"][0])
    return job(model, loss, optim.Adam(model.parameters(), lr=5e-3), data, 1)


@script("torch", "A physics-informed network (derivatives by torch.autograd.grad)")
def physics():
    net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss(model, batch):
        t = batch["t"].clone().requires_grad_(True)
        u = model(t)
        (du,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        (ddu,) = torch.autograd.grad(du.sum(), t, create_graph=True)
        residual = ddu + 4 * du + 400 * u
        return 1e-4 * residual.square().mean() + (model(torch.zeros(1, 1)) - 1).square().mean()

    return job(net, loss, optim.Adam(net.parameters(), lr=1e-3), {"t": torch.rand(32, 1)}, 8)


@script("torch", "A physics-informed network (torch.func.hessian)", refused=r"write torch\.func\.jacrev\(jacrev")
def physics_hessian():
    return laplace(torch.func.hessian)


@script("torch", "A physics-informed network (Hessians by torch.func.jacrev, twice)")
def physics_func():
    return laplace(lambda u: torch.func.jacrev(torch.func.jacrev(u)))


def laplace(hessian):
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss(model, batch):
        parameters = dict(model.named_parameters())
        u = lambda point: functional_call(model, parameters, (point,)).squeeze()
        found = vmap(lambda p: hessian(u)(p).diagonal().sum())(batch["p"])
        return (found - torch.sin(math.pi * batch["p"]).prod(1)).square().mean()

    return job(net, loss, optim.Adam(net.parameters(), lr=1e-3), {"p": torch.rand(16, 2)})


@script("torch", "PyTorch with examples: a polynomial by a custom autograd function")
def custom_function():
    class LegendrePolynomial3(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return 0.5 * (5 * x**3 - 3 * x)

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return grad_output * 1.5 * (5 * x**2 - 1)

    class Polynomial(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Parameter(torch.tensor(v)) for v in (0.0, -1.0, 0.0, 0.3))

        def forward(self, x):
            return self.a + self.b * LegendrePolynomial3.apply(self.c + self.d * x)

    model, x = Polynomial(), torch.linspace(-math.pi, math.pi, 40)
    loss = lambda m, b: (m(b["x"]) - b["y"]).pow(2).sum()
    return job(model, loss, optim.RMSprop(model.parameters(), lr=1e-3), {"x": x, "y": torch.sin(x)}, 20)


@script("torch", "PyTorch with examples: dynamic net (Python's random decides the depth)", refused="Python's random")
def dynamic_net():
    import random

    model = nn.Linear(4, 4)

    def loss(model, batch):
        x = batch["x"]
        for _ in range(random.randint(1, 3)):
            x = model(x).clamp(min=0)
        return x.square().mean()

    return job(model, loss, optim.SGD(model.parameters(), lr=0.1), {"x": torch.rand(8, 4)})


@script("torch", "Model ensembling with torch.func (vmap over stacked parameters)")
def ensembling():
    class Ensemble(nn.Module):
        def __init__(self):
            super().__init__()
            stacked, _ = stack_module_state([policy() for _ in range(3)])
            self.stacked = nn.ParameterDict({n.replace(".", "_"): nn.Parameter(p.detach()) for n, p in stacked.items()})

        def forward(self, x):
            def one(p):
                return F.linear(F.relu(F.linear(x, p["0_weight"], p["0_bias"])), p["2_weight"], p["2_bias"])

            return vmap(one)(dict(self.stacked))

    model = Ensemble()
    loss = lambda m, b: sum(F.cross_entropy(logits, b["action"]) for logits in m(b["state"]))
    return job(model, loss, optim.SGD(model.parameters(), lr=0.1), transitions(), 8)


@script("torch", "MAML (torch.func.grad in the inner loop)")
def maml():
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss(model, batch):
        parameters = dict(model.named_parameters())
        error = lambda p, x, y: F.mse_loss(functional_call(model, p, (x,)), y)
        gradients = grad(error)(parameters, batch["x1"], batch["y1"])
        adapted = {n: p - 0.1 * gradients[n] for n, p in parameters.items()}
        return error(adapted, batch["x2"], batch["y2"])

    data = {name: torch.randn(16, 1) for name in ("x1", "y1", "x2", "y2")}
    return job(model, loss, optim.Adam(model.parameters(), lr=1e-3), data)


@script("torch", "Per-sample gradients (vmap of grad), clipped: differential privacy")
def per_sample():
    model = nn.Linear(4, 2)

    def loss(model, batch):
        parameters = {n: p.detach() for n, p in model.named_parameters()}
        one = lambda p, x, y: F.cross_entropy(functional_call(model, p, (x[None],)), y[None])
        gradients = vmap(grad(one), (None, 0, 0))(parameters, batch["state"], batch["action"])
        norms = sum(g.flatten(1).square().sum(1) for g in gradients.values()).sqrt()
        scale = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        noisy = {n: torch.tensordot(scale, g, 1) + torch.randn_like(g[0]) for n, g in gradients.items()}
        return sum((p * noisy[n]).sum() for n, p in model.named_parameters())  # its gradient is the noisy one

    return job(model, loss, optim.SGD(model.parameters(), lr=0.1), transitions(), 8)


@script("torch", "Parametrizations (weight norm, spectral norm by hand)")
def parametrized():
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 2))
    loss = lambda m, b: F.cross_entropy(m(b["state"]), b["action"])
    return job(model, loss, optim.SGD(model.parameters(), lr=0.1), transitions())


@script("torch", "Pruning (masks that stay while the rest is trained)")
def pruned():
    model = policy()
    prune.l1_unstructured(model[0], name="weight", amount=0.3)
    loss = lambda m, b: F.cross_entropy(m(b["state"]), b["action"])
    return job(model, loss, optim.SGD(model.parameters(), lr=0.1), transitions())


@script("torch", "A normalizing flow (affine coupling, RealNVP)")
def real_nvp():
    class Coupling(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.shift = (nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)) for _ in range(2))

        def forward(self, x):
            a, b = x.chunk(2, 1)
            s = torch.tanh(self.scale(a))
            return torch.cat([b * s.exp() + self.shift(a), a], 1), s.sum(1)

    layers = nn.ModuleList(Coupling() for _ in range(3))

    def loss(model, batch):
        z, determinant = batch["state"], 0.0
        for layer in model:
            z, each = layer(z)
            determinant = determinant + each
        prior = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(1)
        return -(prior + determinant).mean()

    return job(layers, loss, optim.Adam(layers.parameters(), lr=1e-3), transitions(), 8)


@script("torch", "A mixture density network (torch.distributions)")
def mixture():
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 9))

    def loss(model, batch):
        weights, means, scales = model(batch["state"]).chunk(3, -1)
        components = torch.distributions.Normal(means, scales.exp())
        mixed = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=weights), components)
        return -mixed.log_prob(batch["reward"]).mean()

    return job(model, loss, optim.Adam(model.parameters(), lr=1e-3), transitions(), 8)


@script("torch", "Learning rate found by ReduceLROnPlateau", refused="ReduceLROnPlateau")
def plateau():
    model = policy()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    loss = lambda m, b: F.cross_entropy(m(b["state"]), b["action"])
    return job(model, loss, optimizer, transitions(), schedulers=[scheduler])


@script("torch", "Stochastic weight averaging (AveragedModel, SWALR)")
def swa():
    model = policy()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    scheduler = optim.swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
    loss = lambda m, b: F.cross_entropy(m(b["state"]), b["action"])
    return job(model, loss, optimizer, transitions(), schedulers=[scheduler], average="equal")
