"""Attention by blocks of keys with a running maximum; the scores are never kept."""
import torch

from lm.ops import kernels


class BlockAttention(torch.autograd.Function):
    """softmax(q k^T * scale + mask) v, `block` keys at a time."""

    @staticmethod
    def forward(ctx, q, k, v, mask, scale, block):
        peak = torch.full((*q.shape[:-1], 1), -1e30)
        total = torch.zeros_like(peak)
        out = torch.zeros(q.shape)
        for start in range(0, k.shape[-2], block):
            keys = slice(start, start + block)
            scores = kernels.matmul(q, k[..., keys, :].transpose(-1, -2)).float()
            scores.mul_(scale).masked_fill_(~mask[..., keys], -1e30)
            higher = torch.maximum(peak, scores.amax(-1, keepdim=True))
            weights = torch.exp(scores - higher) * mask[..., keys]
            shrink = torch.exp(peak - higher)
            total.mul_(shrink).add_(weights.sum(-1, keepdim=True))
            out.mul_(shrink)
            out += kernels.matmul(weights, v[..., keys, :].float())
            peak = higher
        out.div_(total)
        ctx.save_for_backward(q, k, v, mask, out, peak + torch.log(total))
        ctx.scale = scale
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx, grad):
        q, k, v, mask, out, lse = ctx.saved_tensors
        scores = kernels.matmul(q, k.transpose(-1, -2)) * ctx.scale
        probs = torch.exp(scores - lse) * mask
        dv = kernels.matmul(probs.transpose(-1, -2), grad)
        dprobs = kernels.matmul(grad, v.transpose(-1, -2))
        delta = (grad * out).sum(-1, keepdim=True)
        dscores = probs * (dprobs - delta)
        dq = kernels.matmul(dscores, k).mul_(ctx.scale)
        dk = kernels.matmul(dscores.transpose(-1, -2), q).mul_(ctx.scale)
        return dq, dk, dv, None, None, None


def block_attention(q, k, v, mask, scale, block):
    return BlockAttention.apply(q, k, v, mask, scale, block)
