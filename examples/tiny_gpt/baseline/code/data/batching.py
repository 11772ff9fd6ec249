"""Random sampler and micro-batches with labels, loss mask and position ids."""

import torch

from data.dataset import EOD


class PretrainingRandomSampler:
    """Endless lists of sample indices, shuffled anew in every epoch."""

    def __init__(self, total_samples, micro_batch_size, seed):
        if total_samples < micro_batch_size:
            raise ValueError(f"{total_samples} samples do not fill a micro-batch of {micro_batch_size}")
        self.total_samples = total_samples
        self.micro_batch_size = micro_batch_size
        self.seed = seed

    def __iter__(self):
        epoch = 0
        while True:
            generator = torch.Generator().manual_seed(self.seed + epoch)
            order = torch.randperm(self.total_samples, generator=generator).tolist()
            # an incomplete last micro-batch is dropped
            for start in range(0, self.total_samples - self.micro_batch_size + 1, self.micro_batch_size):
                yield order[start : start + self.micro_batch_size]
            epoch += 1


def _position_ids_of(tokens, reset_position_ids):
    """Positions along each row; they start again after EOD if asked for."""
    positions = torch.arange(tokens.size(1), dtype=torch.int64).unsqueeze(0).repeat(tokens.size(0), 1)
    if not reset_position_ids:
        return positions
    for row in range(tokens.size(0)):
        for end in (tokens[row] == EOD).nonzero().flatten().tolist():
            positions[row, end + 1 :] -= positions[row, end].item() + 1
    return positions


def get_ltor_masks_and_position_ids(tokens, eod_mask_loss, reset_position_ids):
    """Return the loss mask and the position ids of left-to-right language modelling."""
    loss_mask = torch.ones(tokens.size(), dtype=torch.float32)
    if eod_mask_loss:
        # the token after EOD opens an unrelated document and cannot be predicted
        loss_mask[tokens == EOD] = 0.0
    return loss_mask, _position_ids_of(tokens, reset_position_ids)


def collate(samples, args):
    """Turn samples into one micro-batch."""
    text = torch.stack([sample["text"] for sample in samples])
    tokens = text[:, :-1].contiguous()
    labels = text[:, 1:].contiguous()
    loss_mask, position_ids = get_ltor_masks_and_position_ids(tokens, args.eod_mask_loss, args.reset_position_ids)
    return {"tokens": tokens, "labels": labels, "loss_mask": loss_mask, "position_ids": position_ids}


def build_data_iterator(dataset, args):
    """Yield micro-batches without end."""
    sampler = PretrainingRandomSampler(len(dataset), args.micro_batch_size, args.seed)
    for indices in sampler:
        yield collate([dataset[index] for index in indices], args)
