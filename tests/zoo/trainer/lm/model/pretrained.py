"""A pretrained embedding table, kept as int8 with one scale per row."""
import torch


def _table(rows, columns, std):
    """Stands for a file: the table as it was published."""
    generator = torch.Generator().manual_seed(99)
    exact = torch.randn(rows, columns, generator=generator) * std
    scales = exact.abs().amax(dim=1, keepdim=True) / 127.0
    return torch.round(exact / scales).to(torch.int8), scales


@torch.no_grad()
def load_quantized(weight, std):
    """Dequantize the table into `weight`."""
    codes, scales = _table(*weight.shape, std)
    values = codes.float()
    values.mul_(scales)
    weight.copy_(values)
