"""A synthetic corpus and its packing into fixed-length samples."""

import random

import torch
from torch.utils.data import Dataset

EOD = 0  # end of document
SUCCESSORS = 4  # how many tokens may follow one token


def _transition_table(vocab_size, rng):
    """Give every token a few likely successors, so that there is something to learn."""
    return [[rng.randrange(1, vocab_size) for _ in range(SUCCESSORS)] for _ in range(vocab_size)]


def _sample_document(table, length, rng):
    """Walk `length` tokens through the transition table and end with EOD."""
    token = rng.randrange(1, len(table))
    document = [token]
    for _ in range(length - 1):
        token = rng.choices(table[token], weights=(8, 4, 2, 1))[0]
        document.append(token)
    return document + [EOD]


def build_corpus(vocab_size, num_documents, seed):
    """Return the documents as lists of token ids.

    A private generator is used: the global one belongs to the weight initialisation.
    """
    rng = random.Random(seed)
    table = _transition_table(vocab_size, rng)
    return [_sample_document(table, rng.randint(8, 40), rng) for _ in range(num_documents)]


class GPTDataset(Dataset):
    """Documents packed one after the other and cut into samples of `seq_length + 1` tokens."""

    def __init__(self, documents, seq_length):
        self.seq_length = seq_length
        self.tokens = torch.tensor([token for document in documents for token in document], dtype=torch.int64)

    def __len__(self):
        return (self.tokens.numel() - 1) // self.seq_length

    def __getitem__(self, index):
        start = index * self.seq_length
        return {"text": self.tokens[start : start + self.seq_length + 1]}
