"""Fused operations with a backward of their own."""
import torch

from lm.ops import kernels


class FusedRMSNorm(torch.autograd.Function):
    """y = x / rms(x) * weight, in fp32."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        wide = x.float()
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, inverse)
        return (wide * inverse * weight.float()).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, weight, inverse = ctx.saved_tensors
        grad = grad.float()
        normed = x.float() * inverse
        scaled = grad * weight.float()
        shared = (scaled * normed).mean(-1, keepdim=True)
        dx = (scaled - normed * shared) * inverse
        dweight = (grad * normed).reshape(-1, weight.numel()).sum(0)
        return dx.to(x.dtype), dweight.to(weight.dtype), None


class FusedLinear(torch.autograd.Function):
    """y = x @ weight.T (+ bias)"""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        out = kernels.linear(x, weight)
        if bias is not None:
            out.add_(bias)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        dx = kernels.matmul(grad, weight)
        flat = grad.reshape(-1, grad.shape[-1])
        dweight = kernels.matmul(flat.t(), x.reshape(-1, x.shape[-1]))
        dbias = flat.sum(0) if ctx.has_bias else None
        return dx, dweight, dbias


class FusedSwiGLU(torch.autograd.Function):
    """silu(gate) * up, where gate and up lie side by side."""

    @staticmethod
    def forward(ctx, both):
        gate, up = both.chunk(2, dim=-1)
        ctx.save_for_backward(gate, up)
        return gate * torch.sigmoid(gate) * up

    @staticmethod
    def backward(ctx, grad):
        gate, up = ctx.saved_tensors
        sigmoid = torch.sigmoid(gate)
        silu = gate * sigmoid
        both = torch.zeros(*grad.shape[:-1], 2 * grad.shape[-1], dtype=grad.dtype)
        dgate, dup = both.chunk(2, dim=-1)
        torch.mul(grad, silu, out=dup)
        dgate.copy_(grad * up * (sigmoid + silu * (1.0 - sigmoid)))
        return both


class FusedRotary(torch.autograd.Function):
    """Rotate the pairs of the last dimension; the backward rotates the other way."""

    @staticmethod
    def forward(ctx, x, cos, sin, rotate):
        ctx.save_for_backward(cos, sin)
        ctx.rotate = rotate
        return x * cos + rotate(x) * sin

    @staticmethod
    def backward(ctx, grad):
        cos, sin = ctx.saved_tensors
        return grad * cos - ctx.rotate(grad) * sin, None, None, None


def rms_norm(x, weight, eps):
    return FusedRMSNorm.apply(x, weight, eps)


def linear(x, weight, bias=None):
    return FusedLinear.apply(x, weight, bias)


def swiglu(both):
    return FusedSwiGLU.apply(both)


def rotary(x, cos, sin, rotate):
    return FusedRotary.apply(x, cos, sin, rotate)
