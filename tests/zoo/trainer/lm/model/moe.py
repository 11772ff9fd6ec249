"""Mixture of experts with top-k routing (indented with tabs)."""
import torch
import torch.distributed as dist
from torch import nn

from lm.model.linear import Linear
from lm.model.mlp import MLP
from lm.ops import kernels


class AuxLossScaler(torch.autograd.Function):
	"""Passes `hidden` through and lets the auxiliary loss into the backward."""

	scale = 1.0

	@staticmethod
	def forward(ctx, hidden, aux):
		ctx.aux_shape = aux.shape
		return hidden.view_as(hidden)

	@staticmethod
	def backward(ctx, grad):
		aux_grad = torch.full(ctx.aux_shape, AuxLossScaler.scale)
		return grad, aux_grad


class Router(nn.Module):
	"""Chooses experts; a bias that no gradient touches evens out their load."""

	def __init__(self, cfg):
		super().__init__()
		self.moe = cfg.moe
		self.weight = nn.Parameter(torch.empty(cfg.moe.num_experts, cfg.hidden_size))
		self.register_buffer("expert_bias", torch.zeros(cfg.moe.num_experts))
		self.register_buffer("tokens_per_expert", torch.zeros(cfg.moe.num_experts), persistent=False)

	def reset_buffers(self):
		self.expert_bias.zero_()
		self.tokens_per_expert.zero_()

	def forward(self, flat, real):
		logits = kernels.linear(flat.float(), self.weight.float())
		probs = kernels.softmax(logits)
		_, chosen = torch.topk(probs.detach() + self.expert_bias, self.moe.top_k, dim=-1)
		weights = probs.gather(-1, chosen)
		if self.moe.norm_topk_prob:
			weights = weights / weights.sum(-1, keepdim=True)
		aux = self._balance(probs, chosen, real)
		return chosen, weights, aux

	def _balance(self, probs, chosen, real):
		"""num_experts * sum(load * mean probability), over real tokens of all ranks."""
		count = self.moe.num_experts
		picked = torch.zeros_like(probs).scatter_(-1, chosen, 1.0)
		local = (picked * real[:, None]).sum(0)
		load = local.clone()
		tokens = real.sum()
		if dist.is_initialized():
			dist.all_reduce(load)
		if self.training:
			self.tokens_per_expert += load
		share = local / (tokens * self.moe.top_k)
		mean = (probs * real[:, None]).sum(0) / tokens
		return self.moe.aux_loss_coeff * count * (share * mean).sum()

	@torch.no_grad()
	def update_bias(self):
		"""Once per step: overloaded experts lose, idle ones gain."""
		error = self.tokens_per_expert.mean() - self.tokens_per_expert
		self.expert_bias.add_(torch.sign(error), alpha=self.moe.bias_update_rate)
		self.tokens_per_expert.zero_()


class MoE(nn.Module):
	"""Routed experts and one that sees every token."""

	def __init__(self, cfg):
		super().__init__()
		self.router = Router(cfg)
		self.experts = nn.ModuleList(MLP(cfg) for _ in range(cfg.moe.num_experts))
		self.shared = MLP(cfg)
		self.gate = Linear(cfg.hidden_size, 1)
		self.last_aux = None

	def forward(self, x, real):
		flat = x.reshape(-1, x.shape[-1])
		chosen, weights, aux = self.router(flat, real.reshape(-1).to(flat.dtype))
		self.last_aux = aux.detach()
		out = self._dispatch(flat, chosen, weights)
		out = out + torch.sigmoid(self.gate(flat)) * self.shared(flat)
		return AuxLossScaler.apply(out, aux).view_as(x)

	def _dispatch(self, flat, chosen, weights):
		out = torch.zeros_like(flat)
		for number, expert in enumerate(self.experts):
			rows, slot = torch.where(chosen == number)
			if not rows.numel(): continue
			part = expert(flat[rows]); factor = weights[rows, slot, None]
			out.index_add_(0, rows, (part * factor).to(out.dtype))
		return out
