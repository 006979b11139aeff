"""Scripts of torchrl: its losses on recorded transitions, a TensorDict made of the batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim
from training_scripts import job, script

pytest.importorskip("tensordict")
pytest.importorskip("torchrl")

from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torchrl.data import OneHot
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, QValueActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss, DQNLoss


def transitions(action: torch.Tensor) -> dict[str, torch.Tensor]:
    count = len(action)
    return {
        "observation": torch.randn(count, 4), "action": action, "next": torch.randn(count, 4),
        "reward": torch.rand(count, 1), "done": (torch.arange(count) % 5 == 0)[:, None],
    }  # fmt: skip


def recorded(batch) -> TensorDict:
    following = {
        "observation": batch["next"],
        "reward": batch["reward"],
        "done": batch["done"],
        "terminated": batch["done"],
    }
    rest = {k: v for k, v in batch.items() if k not in ("next", "reward", "done")}
    return TensorDict(rest | {"next": TensorDict(following, [len(batch["next"])])}, [len(batch["next"])])


def mlp(inputs: int, outputs: int) -> nn.Module:
    return MLP(in_features=inputs, out_features=outputs, num_cells=[16])


def one_hot(count: int = 16) -> torch.Tensor:
    return nn.functional.one_hot(torch.arange(count) % 2, 2)


def job_of(module: nn.Module, data: dict[str, torch.Tensor], names: tuple[str, ...]) -> object:
    def loss(model, batch):
        found = model["loss"](recorded(batch))
        return sum(found[name] for name in names)

    model = nn.ModuleDict({"loss": module})  # a LossModule hides some of its parameters
    trained = [p for p in model.parameters() if p.requires_grad]
    return job(model, loss, optim.Adam(trained, lr=3e-4), data, 8, clip=1.0)


def actor() -> nn.Module:
    return ProbabilisticActor(
        TensorDictModule(mlp(4, 2), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"], distribution_class=OneHotCategorical, return_log_prob=True,
    )  # fmt: skip


def critic() -> nn.Module:
    return ValueOperator(mlp(4, 1), in_keys=["observation"])


def ppo_data() -> dict[str, torch.Tensor]:
    return transitions(one_hot()) | {
        "advantage": torch.randn(16, 1), "value_target": torch.randn(16, 1), "action_log_prob": -torch.rand(16),
    }  # fmt: skip


@script("torchrl", "PPO with clipping (ClipPPOLoss), advantages computed before")
def ppo():
    module = ClipPPOLoss(actor(), critic(), entropy_bonus=False, functional=False)
    return job_of(module, ppo_data(), ("loss_objective", "loss_critic"))


@script(
    "torchrl", "PPO with an entropy bonus (it looks whether the entropy is finite)", refused="branches on the values"
)
def ppo_entropy():
    module = ClipPPOLoss(actor(), critic(), entropy_bonus=True, functional=False)
    return job_of(module, ppo_data(), ("loss_objective", "loss_critic", "loss_entropy"))


@script("torchrl", "DQN by DQNLoss (parameters in a TensorDict beside the module)", refused="share memory")
def dqn_loss():
    module = DQNLoss(QValueActor(mlp(4, 2), in_keys=["observation"], spec=OneHot(2)), action_space="one-hot")
    module.make_value_estimator(gamma=0.99)
    return job_of(module, transitions(one_hot()), ("loss",))


@script("torchrl", "DQN with torchrl's actor, the loss written out")
def dqn():
    model = QValueActor(mlp(4, 2), in_keys=["observation"], spec=OneHot(2))

    def loss(model, batch):
        with torch.no_grad():
            following = model(recorded(batch)["next"].exclude("reward"))["chosen_action_value"]
            wanted = batch["reward"] + 0.99 * following * ~batch["done"]
        values = model(recorded(batch).exclude("next", "action"))["action_value"]
        return nn.functional.smooth_l1_loss((values * batch["action"]).sum(1, keepdim=True), wanted)

    return job(model, loss, optim.Adam(model.parameters(), lr=3e-4), transitions(one_hot()), 8)


@script("torchrl", "SAC with torchrl's policy, the loss written out")
def sac():
    policy = ProbabilisticActor(
        TensorDictModule(
            nn.Sequential(mlp(4, 2), NormalParamExtractor()), in_keys=["observation"], out_keys=["loc", "scale"]
        ),
        in_keys=["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True,
        default_interaction_type="random",
    )  # fmt: skip
    model = nn.ModuleDict({"policy": policy, "first": mlp(5, 1), "second": mlp(5, 1)})

    def worth(model, observation, action):
        pair = torch.cat([observation, action], -1)
        return model["first"](pair), model["second"](pair)

    def policy_loss(model, batch):
        acted = model["policy"](TensorDict({"observation": batch["observation"]}, [len(batch["done"])]))
        least = torch.minimum(*worth(model, batch["observation"], acted["action"]))
        return (0.2 * acted["action_log_prob"].unsqueeze(1) - least).mean()

    def critic_loss(model, batch):
        with torch.no_grad():
            acted = model["policy"](TensorDict({"observation": batch["next"]}, [len(batch["done"])]))
            least = torch.minimum(*worth(model, batch["next"], acted["action"]))
            soft = least - 0.2 * acted["action_log_prob"].unsqueeze(1)
            wanted = batch["reward"] + 0.99 * soft * ~batch["done"]
        return sum((q - wanted).square().mean() for q in worth(model, batch["observation"], batch["action"]))

    critics = [*model["first"].parameters(), *model["second"].parameters()]
    optimizers = [optim.Adam(policy.parameters(), lr=3e-4), optim.Adam(critics, lr=3e-4)]
    return job(model, [policy_loss, critic_loss], optimizers, transitions(torch.rand(16, 1) * 1.8 - 0.9), 8)
