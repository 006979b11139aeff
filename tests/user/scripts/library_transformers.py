"""Scripts of transformers: its models from small configurations, as its task guides train them."""

from __future__ import annotations

import copy
import tempfile

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from training_scripts import STEPS, images, job, script, tokens

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
BERT = SMALL | {"vocab_size": 40, "max_position_embeddings": 16}
GPT = {
    "vocab_size": 40,
    "n_positions": 16,
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION = SMALL | {"image_size": 16, "patch_size": 8}


def adamw(model: nn.Module, lr: float = 2e-5) -> optim.Optimizer:
    return optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=lr, weight_decay=0.01)


def gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT))


def masked_rows() -> dict[str, torch.Tensor]:
    """Tokens with padding of 0 behind different lengths, and its mask."""
    ids, length = tokens(16, 10), 5 + torch.arange(16)[:, None] % 6
    mask = (torch.arange(10) < length).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


@script("transformers", "Causal language modeling (GPT-2, linear warm-up)")
def causal():
    model = gpt2()
    optimizer = adamw(model)
    scheduler = transformers.get_linear_schedule_with_warmup(optimizer, 1, 10)
    loss = lambda m, b: m(input_ids=b["input_ids"], labels=b["input_ids"]).loss
    return job(model, loss, optimizer, {"input_ids": tokens()}, clip=1.0, schedulers=[scheduler])


@script("transformers", "Causal language modeling (LLaMA, rotary positions)")
def llama():
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**BERT, num_key_value_heads=1))
    loss = lambda m, b: m(input_ids=b["input_ids"], labels=b["input_ids"], use_cache=False).loss
    return job(model, loss, adamw(model), {"input_ids": tokens()})


@script("transformers", "Masked language modeling (BERT, vgame.augment.TokenMasking)")
def masked():
    from vgame.augment import TokenMasking

    model, masking = (
        transformers.BertForMaskedLM(transformers.BertConfig(**BERT)),
        TokenMasking(3, 40, special=(0, 1, 2)),
    )

    def loss(model, batch):
        ids, labels = masking(batch["input_ids"])
        return model(input_ids=ids, attention_mask=batch["attention_mask"], labels=labels).loss

    return job(model, loss, adamw(model), masked_rows())


@script("transformers", "Text classification (BERT)")
def classification():
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**BERT, num_labels=3))
    data = masked_rows() | {"labels": torch.arange(16) % 3}
    return job(model, lambda m, b: m(**b).loss, adamw(model), data)


@script("transformers", "Token classification (DistilBERT)")
def token_classification():
    config = transformers.DistilBertConfig(
        vocab_size=40, dim=16, n_layers=1, n_heads=2, hidden_dim=32, max_position_embeddings=16, num_labels=5
    )
    model, data = transformers.DistilBertForTokenClassification(config), masked_rows()
    labels = torch.where(data["attention_mask"] == 1, torch.randint(0, 5, (16, 10)), -100)
    return job(model, lambda m, b: m(**b).loss, adamw(model), data | {"labels": labels})


@script("transformers", "Question answering (BERT, start and end)")
def question_answering():
    model = transformers.BertForQuestionAnswering(transformers.BertConfig(**BERT))
    data = masked_rows() | {"start_positions": torch.arange(16) % 4, "end_positions": torch.arange(16) % 4 + 1}
    return job(model, lambda m, b: m(**b).loss, adamw(model), data)


@script("transformers", "Multiple choice (BERT)")
def multiple_choice():
    model = transformers.BertForMultipleChoice(transformers.BertConfig(**BERT))
    data = {"input_ids": torch.randint(3, 40, (16, 4, 10)), "labels": torch.arange(16) % 4}
    return job(model, lambda m, b: m(**b).loss, adamw(model), data)


@script("transformers", "Translation and summarization (T5, Adafactor)")
def t5():
    config = transformers.T5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config)
    loss = lambda m, b: m(input_ids=b["input_ids"], labels=b["labels"], use_cache=False).loss
    optimizer = optim.Adafactor(model.parameters(), lr=1e-3)
    return job(model, loss, optimizer, {"input_ids": tokens(), "labels": tokens(16, 6)})


@script("transformers", "Image classification (ViT)")
def vit():
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**VISION, num_labels=4))
    loss = lambda m, b: m(pixel_values=b["x"], labels=b["y"]).loss
    return job(model, loss, adamw(model, 5e-5), images(classes=4))


@script("transformers", "Contrastive pretraining (CLIP)")
def clip():
    config = transformers.CLIPConfig(
        text_config=BERT | {"eos_token_id": 2}, vision_config=VISION, projection_dim=8
    )  # fmt: skip
    model = transformers.CLIPModel(config)
    loss = lambda m, b: m(input_ids=b["t"], pixel_values=b["x"], return_loss=True).loss
    return job(model, loss, adamw(model), {"t": tokens(16, 10), "x": images()["x"]})


@script("transformers", "Knowledge distillation for language models (temperature, KL)")
def distillation():
    student, teacher = gpt2(), gpt2().requires_grad_(False)
    model = nn.ModuleDict({"student": student, "teacher": teacher.eval()})

    def loss(model, batch):
        ids = batch["input_ids"]
        with torch.no_grad():
            wanted = model["teacher"](input_ids=ids, use_cache=False).logits
        output = model["student"](input_ids=ids, labels=ids, use_cache=False)
        soft = F.kl_div(F.log_softmax(output.logits / 2, -1), F.softmax(wanted / 2, -1), reduction="batchmean") * 4
        return 0.5 * output.loss + 0.5 * soft

    return job(model, loss, adamw(student, 1e-3), {"input_ids": tokens()})


@script("transformers", "Direct preference optimization (TRL's loss, a frozen reference)")
def dpo():
    policy = gpt2()
    model = nn.ModuleDict({"policy": policy, "reference": copy.deepcopy(policy).requires_grad_(False).eval()})

    def log_prob(model, ids):
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].log_softmax(-1)
        return logits.gather(2, ids[:, 1:].unsqueeze(2)).squeeze(2).sum(1)

    def loss(model, batch):
        chosen, rejected = (
            log_prob(model["policy"], batch[k]) - log_prob(model["reference"], batch[k]).detach()
            for k in ("chosen", "rejected")
        )
        return -F.logsigmoid(0.1 * (chosen - rejected)).mean()

    return job(model, loss, adamw(policy, 1e-4), {"chosen": tokens(), "rejected": tokens()})


def trainer(**arguments):
    """A Trainer over rows of tokens."""
    options = {"max_steps": STEPS, "per_device_train_batch_size": 4, "report_to": [], "use_cpu": True, "seed": 7}
    arguments = transformers.TrainingArguments(tempfile.mkdtemp(), **(options | arguments))
    rows = [{"input_ids": row, "labels": row} for row in tokens()]
    return transformers.Trainer(gpt2(), arguments, train_dataset=rows)


@script("transformers", "Trainer (cosine schedule, label smoothing, accumulation)")
def with_trainer():
    from vgame.hf import job_from

    made = trainer(
        lr_scheduler_type="cosine", warmup_steps=1, gradient_accumulation_steps=2, label_smoothing_factor=0.1
    )
    return job_from(made, interval=1)


@script("transformers", "Trainer in float16", refused="fp16")
def trainer_float16():
    from vgame.hf import job_from

    return job_from(trainer(fp16=True, use_cpu=False), interval=1)
