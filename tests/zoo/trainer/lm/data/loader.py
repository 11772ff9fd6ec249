"""From the arguments to an endless stream of micro-batches."""
from lm.data.collate import Collator
from lm.data.dataset import PackedDataset
from lm.data.sampler import ShuffledSampler
from lm.data.tokenizer import Tokenizer


def micro_batches(dataset, sampler, collate, size):
    """Epoch after epoch; what is left at the end of an epoch is dropped."""
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        waiting = []
        for index in sampler:
            waiting.append(dataset[index])
            if len(waiting) == size:
                yield collate(waiting)
                waiting = []
        epoch += 1


def build_iterator(args, seed_offset=0):
    """The training stream of this rank."""
    tokenizer = Tokenizer(args.tokenizer)
    dataset = PackedDataset(tokenizer, args.num_samples, args.seq_length, args.data_seed + seed_offset)
    sampler = ShuffledSampler(len(dataset), args.rank, args.world_size, args.seed)
    collate = Collator(tokenizer.pad_id, args.seq_length)
    return micro_batches(dataset, sampler, collate, args.micro_batch_size)
