"""Pretrain a tiny GPT with a multi-token-prediction head on a synthetic corpus.

Port of the baseline trainer to torch 2.13; arguments and defaults are unchanged.
"""

from functools import partial

import torch

from model.gpt_model import GPTModel
from data.batching import build_data_iterator
from data.dataset import GPTDataset, build_corpus
from training.arguments import parse_args, print_args
from training.loss import loss_func
from training.train import pretrain


def model_provider(args):
    """Build the model."""
    model = GPTModel(args)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f" > number of parameters: {num_parameters}")
    return model


def train_data_iterator_provider(args):
    """Build the endless iterator over training micro-batches."""
    corpus = build_corpus(args.vocab_size, args.num_documents, args.seed)
    dataset = GPTDataset(corpus, args.seq_length)
    print(f" > number of training samples: {len(dataset)}")
    return build_data_iterator(dataset, args)


def forward_step(data_iterator, model):
    """Run one micro-batch; return the per-token losses and the function that reduces them."""
    batch = next(data_iterator)
    output = model(
        tokens=batch["tokens"],
        position_ids=batch["position_ids"],
        labels=batch["labels"],
        loss_mask=batch["loss_mask"],
    )
    return output, partial(loss_func, batch["loss_mask"], model.mtp_loss_scaling_factor)


def main():
    """Set up one reproducible process and train."""
    args = parse_args()
    print_args(args)
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    pretrain(args, model_provider, train_data_iterator_provider, forward_step)
    print("training success")


if __name__ == "__main__":
    main()
