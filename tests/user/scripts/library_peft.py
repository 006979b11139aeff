"""Scripts of peft: adapters on small models of transformers."""

from __future__ import annotations

import pytest
import torch
from library_transformers import BERT, adamw, gpt2, masked_rows, transformers
from training_scripts import job, script, tokens

peft = pytest.importorskip("peft")


def causal(config) -> object:
    """GPT-2 with an adapter, on its own tokens."""
    model = peft.get_peft_model(gpt2(), config)
    loss = lambda m, b: m(input_ids=b["t"], labels=b["t"], use_cache=False).loss
    return job(model, loss, adamw(model, 1e-3), {"t": tokens(16, 8)})


@script("peft", "LoRA (rank 4, dropout) on GPT-2")
def lora():
    return causal(peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=16, lora_dropout=0.05, fan_in_fan_out=True))


@script("peft", "LoRA on BERT's classifier, the head trained whole")
def lora_classification():
    base = transformers.BertForSequenceClassification(transformers.BertConfig(**BERT, num_labels=3))
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"]))
    data = masked_rows() | {"labels": torch.arange(16) % 3}
    return job(model, lambda m, b: m(**b).loss, adamw(model, 1e-3), data)


@script("peft", "DoRA on GPT-2")
def dora():
    return causal(peft.LoraConfig(task_type="CAUSAL_LM", r=4, use_dora=True, fan_in_fan_out=True))


@script("peft", "IA3 on GPT-2")
def ia3():
    return causal(peft.IA3Config(task_type="CAUSAL_LM", fan_in_fan_out=True))


@script("peft", "Prompt tuning on GPT-2")
def prompt_tuning():
    return causal(peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))


@script("peft", "Prefix tuning on GPT-2")
def prefix_tuning():
    return causal(peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
