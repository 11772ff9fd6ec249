"""Which sample comes when, and on which rank."""
import torch
from torch.utils.data import Sampler


class ShuffledSampler(Sampler):
    """One permutation per epoch, the same on all ranks; each rank takes its share."""

    def __init__(self, length, rank, world_size, seed):
        self.length = length
        self.rank, self.world_size = rank, world_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch):
        """The epoch is part of the seed."""
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator()
        generator.manual_seed(self.seed + 100 * self.epoch)
        order = torch.randperm(self.length, generator=generator).tolist()
        usable = self.length - self.length % self.world_size
        yield from order[self.rank:usable:self.world_size]

    def __len__(self):
        return self.length // self.world_size
