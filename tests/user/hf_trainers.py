"""Small models and trainers of transformers, with batches in the data's order, and their comparison with a job."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import SequentialSampler

import vgame

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from vgame.hf import job_from  # noqa: E402


def model(dropout: float = 0.0):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=12, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, num_labels=2, max_position_embeddings=16,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def gpt():
    torch.manual_seed(0)
    sizes = {"vocab_size": 12, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **none))


def samples(count: int = 16) -> list[dict]:
    """Samples of different lengths."""
    return [{"input_ids": list(range(1, 3 + i % 5)), "labels": i % 2} for i in range(count)]


def padded(rows: list[dict]) -> dict[str, torch.Tensor]:
    """As DataCollatorWithPadding, without a tokenizer's files."""
    longest = max(len(r["input_ids"]) for r in rows)
    ids = [r["input_ids"] + [0] * (longest - len(r["input_ids"])) for r in rows]
    mask = [[1] * len(r["input_ids"]) + [0] * (longest - len(r["input_ids"])) for r in rows]
    labels = torch.tensor([r["labels"] for r in rows])
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), "labels": labels}


def causal(rows: list[dict]) -> dict[str, torch.Tensor]:
    batch = padded(rows)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return batch | {"labels": labels}


class InOrder(transformers.Trainer):
    def _get_train_sampler(self, dataset=None):
        return SequentialSampler(self.train_dataset)


def trainer(folder, made=None, collator=padded, kind=InOrder, callbacks=None, **options):
    defaults = {
        "per_device_train_batch_size": 4,
        "max_steps": 8,
        "learning_rate": 0.01,
        "lr_scheduler_type": "linear",
        "warmup_steps": 3,
        "weight_decay": 0.1,
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "max_grad_norm": 0.5,
    }
    args = transformers.TrainingArguments(str(folder), **(defaults | options))
    return kind(made or model(), args, train_dataset=samples(), data_collator=collator, callbacks=callbacks)


def compare(make, folder) -> None:
    """`make()` twice: trained by train(), and by its job."""
    theirs, mine = make(), make()
    theirs.train()
    log = [entry["loss"] for entry in theirs.state.log_history if "grad_norm" in entry]
    run = vgame.train(vgame.prepare(job_from(mine, interval=4), validate=0), folder)
    assert run.losses == pytest.approx(log, rel=2e-4, abs=1e-6)
    state = run.state_dict()
    for name, tensor in theirs.model.state_dict().items():
        assert torch.allclose(state[name].float(), tensor.float(), rtol=1e-3, atol=2e-5), name
