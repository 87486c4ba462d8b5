"""Trainer of transformers: transformers_client.py BACKEND, under torchrun. A small Llama that is made here; nothing is downloaded."""
import sys
import tempfile

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import common


def texts():
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(32, (common.SAMPLES, 12), generator=generator)
    return [{"input_ids": row, "labels": row} for row in tokens]


def main(backend):
    dist.init_process_group(backend)  # on CPUs the Trainer would take Gloo, whatever `ddp_backend` says
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2))
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(output_dir=folder, use_cpu=True, per_device_train_batch_size=4, num_train_epochs=2,
                                     per_device_eval_batch_size=5, eval_strategy="epoch", save_strategy="epoch", logging_steps=2, report_to=[],
                                     disable_tqdm=True, learning_rate=1e-2)
        trainer = Trainer(model=model, args=settings, train_dataset=texts(), eval_dataset=texts()[:23])
        trainer.train()
        measured = trainer.evaluate()
        losses = [entry[key] for entry in trainer.state.log_history for key in ("loss", "eval_loss", "grad_norm") if key in entry]
        guesses = trainer.predict(texts()[:7]).predictions
    common.report(trainer.args.process_index, backend=dist.get_backend(), losses=losses, eval_loss=measured["eval_loss"],
                  predicted=[list(guesses.shape), float(guesses.sum())], weights=common.weights(model))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
