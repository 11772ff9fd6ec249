"""Harmless edits: what makes two code bases differ without making them train differently.

Each pack touches several files. A case applies some packs to its test copy after its bug, so that
the two trees are never twins except for the bug. An edit is (file, old text, new text); an old text
of None makes a new file; `Word(...)` as the old text renames a local variable throughout the file.
"""


class Word(str):
    """An identifier, replaced wherever it stands as a whole word in the file."""


COMMENTS = [
    ("lm/model/attention.py", "from lm.ops.flash import block_attention\n",
     "from lm.ops.flash import block_attention\n\n# Shapes: x is [batch, length, hidden]; q, k and v are\n"
     "# [batch, heads, length, head_dim] from `_split` on.\n"),
    ("lm/ops/fused.py", "from lm.ops import kernels\n",
     "from lm.ops import kernels\n\n# The derivation of each backward is in the design notes.\n# Keep it in step with the forward.\n"),
    ("pretrain.py", "model.train()\nfor iteration",
     "# ---------------------------------------------------------------\n# the loop\n"
     "# ---------------------------------------------------------------\nmodel.train()\nfor iteration"),
    ("lm/data/collate.py", "IGNORE = -100\n", "# 与框架默认的忽略编号保持一致\n# 不参与损失计算\nIGNORE = -100\n"),
    ("lm/optim/adamw.py", '        """One update of every parameter."""\n',
     '        """One update of every parameter.\n\n        Called once per iteration, after clipping.\n        """\n'),
    ("lm/parallel/ddp.py", "class GradientBuffer:\n", "# One bucket is enough at this size.\nclass GradientBuffer:\n"),
    ("lm/model/moe.py", "class MoE(nn.Module):\n", "# The shared expert sees every token.\nclass MoE(nn.Module):\n"),
    ("lm/losses.py", "import torch\nimport torch.nn.functional as F\n",
     "import torch\nimport torch.nn.functional as F\n\n# nats, not bits\n"),
    ("lm/model/gpt.py", "class GPT(nn.Module):\n", "# The order of the members is the order of the parameters.\nclass GPT(nn.Module):\n"),
    ("lm/training.py", "def count_targets(", "# Called before the first forward of a step.\ndef count_targets("),
]

_ROTATE_HALF = '''def rotate_half(x):
    """(a, b) -> (-b, a) on the two halves."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


'''
_BUILD_OPTIMIZER = '''def build_optimizer(model, args):
    """AdamW over the parameter groups."""
    groups = build_groups(model, args)
    return AdamW(groups, betas=(args.adam_beta1, args.adam_beta2), eps=args.adam_eps)


'''
_MASKED_SUM = '''def masked_sum(losses, mask):
    return (losses * mask).sum()


'''
_GLOBAL_NORM = '''def global_norm(grads):
    """2-norm over all tensors."""
    squares = torch.stack([grad.square().sum() for grad in grads])
    return squares.sum().sqrt()


'''

MOVED = [
    ("lm/model/rope.py", _ROTATE_HALF, ""),
    ("lm/model/rope.py", "class Rope(nn.Module):", _ROTATE_HALF + "class Rope(nn.Module):"),
    ("lm/training.py", _BUILD_OPTIMIZER, ""),
    ("lm/training.py", "def setup(cfg, args):", _BUILD_OPTIMIZER + "def setup(cfg, args):"),
    ("lm/losses.py", _MASKED_SUM, ""),
    ("lm/losses.py", "def token_losses(", _MASKED_SUM + "def token_losses("),
    ("lm/optim/clip.py", _GLOBAL_NORM, ""),
    ("lm/optim/clip.py", "def gradients(", _GLOBAL_NORM + "def gradients("),
    ("pretrain.py", "cfg = load_model_config(args)\nprint_args(args)\n", "print_args(args)\n\ncfg = load_model_config(args)\n"),
]

RENAMED = [
    ("lm/model/attention.py", Word("context"), "attended"),
    ("lm/model/gpt.py", Word("masks"), "mask_pair"),
    ("lm/losses.py", Word("picked"), "label_logit"),
    ("lm/losses.py", Word("uniform"), "flat_loss"),
    ("lm/optim/clip.py", Word("found"), "selected"),
    ("lm/optim/adamw.py", Word("correction1"), "bias_correction1"),
    ("lm/optim/adamw.py", Word("correction2"), "bias_correction2"),
    ("lm/data/dataset.py", Word("prompt"), "shown"),
    ("pretrain.py", Word("window"), "micro_batches"),
    ("lm/model/moe.py", Word("picked"), "one_hot"),
    ("lm/parallel/ddp.py", Word("ordinary"), "bucketed"),
    ("lm/ops/flash.py", Word("higher"), "new_peak"),
    ("lm/model/block.py", Word("residual"), "shortcut"),
    ("lm/data/loader.py", Word("waiting"), "pending"),
    ("lm/model/mlp.py", Word("both"), "gate_up"),
]

MONITOR = [
    ("lm/model/block.py", "        hidden = self.attention(hidden, self.rope, cos, sin, mask)\n",
     "        hidden = self.attention(hidden, self.rope, cos, sin, mask)\n"
     "        self.attention_rms = hidden.detach().float().square().mean().sqrt()\n"),
    ("lm/model/mlp.py", "        both = self.w1(x)\n",
     "        both = self.w1(x)\n        self.peak = both.detach().abs().amax()\n"),
    ("lm/training.py", "    logits, second = model(**batch)\n",
     "    logits, second = model(**batch)\n    entropy = torch.distributions.Categorical(logits=logits.detach().float()).entropy()\n"
     "    model.last_entropy = entropy.mean().item()\n"),
    ("pretrain.py", "        lr, loss_scale = scheduler.lr, scaler.scale\n",
     "        params_norm = sum(p.detach().float().norm() ** 2 for p in model.parameters()) ** 0.5\n"
     "        lr, loss_scale = scheduler.lr, scaler.scale\n"),
    ("pretrain.py", "    if args.eval_interval and",
     "    if args.rank == 0:\n        print(f\" monitor: params {params_norm.item():.6E} entropy {model.last_entropy:.6E}\", flush=True)\n"
     "    if args.eval_interval and"),
]

REFACTORED = [
    ("lm/model/attention.py", "        k, v = self._expand(k), self._expand(v)\n", "        k, v = self._share(k, v)\n"),
    ("lm/model/attention.py", "    def _merge(self, x):\n",
     "    def _share(self, k, v):\n        return self._expand(k), self._expand(v)\n\n    def _merge(self, x):\n"),
    ("lm/optim/adamw.py", "    def set_lr(self, lr):\n        for group in self.groups:\n            group[\"lr\"] = lr\n",
     "    def set_lr(self, lr):\n        for group in self.groups:\n            self._set(group, lr)\n\n"
     "    @staticmethod\n    def _set(group, lr):\n        group.update(lr=lr)\n"),
    ("lm/parallel/ddp.py", "    @torch.no_grad()\n    def accumulate(self):\n",
     "    @staticmethod\n    def _take(param):\n        param.main_grad.add_(param.grad)\n        param.grad = None\n\n"
     "    @torch.no_grad()\n    def accumulate(self):\n"),
    ("lm/parallel/ddp.py", "                continue\n            param.main_grad.add_(param.grad)\n            param.grad = None\n",
     "                continue\n            self._take(param)\n"),
    ("lm/model/block.py", "        residual = hidden\n        hidden = self.post_norm(hidden)\n"
     "        hidden = self.mlp(hidden, real) if self.is_moe else self.mlp(hidden)\n        return residual + self._drop(hidden)\n",
     "        return self._feed_forward(hidden, real)\n\n    def _feed_forward(self, residual, real):\n"
     "        normed = self.post_norm(residual)\n        out = self.mlp(normed, real) if self.is_moe else self.mlp(normed)\n"
     "        return residual + self._drop(out)\n"),
    ("lm/model/gpt.py", "        masks = build_mask(doc_ids), build_mask(doc_ids, self.cfg.window)\n        real = doc_ids >= 0\n",
     "        masks, real = self._masks(doc_ids)\n"),
    ("lm/model/gpt.py", "    def _logits(self, hidden):\n",
     "    def _masks(self, doc_ids):\n        real = doc_ids >= 0\n        whole = build_mask(doc_ids)\n"
     "        return (whole, build_mask(doc_ids, self.cfg.window)), real\n\n    def _logits(self, hidden):\n"),
    ("lm/data/loader.py", "    dataset = PackedDataset(tokenizer, args.num_samples, args.seq_length, args.data_seed + seed_offset)\n",
     "    dataset = _dataset(tokenizer, args, args.data_seed + seed_offset)\n"),
    ("lm/data/loader.py", "def build_iterator(",
     "def _dataset(tokenizer, args, seed):\n    return PackedDataset(tokenizer, args.num_samples, args.seq_length, seed)\n\n\ndef build_iterator("),
]

SPELLED = [
    ("lm/model/attention.py", "        scores = scores.masked_fill(~mask, float(\"-inf\"))\n",
     "        closed = torch.full_like(scores, float(\"-inf\"))\n        scores = torch.where(mask, scores, closed)\n"),
    ("lm/ops/fused.py", "wide.square().mean(-1, keepdim=True)", "torch.mean(wide * wide, dim=-1, keepdim=True)"),
    ("lm/model/gpt.py", "        hidden = self.final_norm(hidden)\n        return self._logits(hidden), self._second(hidden)\n",
     "        last = self.final_norm(hidden)\n        return (\n            self._logits(last),\n            self._second(last),\n        )\n"),
    ("lm/optim/adamw.py", "        exp_avg.mul_(beta1).add_(grad, alpha=1.0 - beta1)\n",
     "        exp_avg.mul_(beta1)\n        exp_avg.add_(grad, alpha=1.0 - beta1)\n"),
    ("lm/data/collate.py", "        labels[~target] = IGNORE\n", "        labels = labels.masked_fill(~target, IGNORE)\n"),
    ("lm/model/moe.py", "picked = torch.zeros_like(probs).scatter_(-1, chosen, 1.0)",
     "picked = nn.functional.one_hot(chosen, count).sum(1).to(probs.dtype)"),
    ("lm/optim/clip.py", "    return squares.sum().sqrt()\n", "    return torch.sqrt(torch.sum(squares))\n"),
    ("lm/training.py", "    loss = total / targets * args.world_size\n", "    loss = total.div(targets).mul(args.world_size)\n"),
    ("lm/model/linear.py", "            out = out + fused.linear(low, self.lora_b) * self.lora_scale\n",
     "            update = fused.linear(low, self.lora_b)\n            out = out + update * self.lora_scale\n"),
]

EXTRA_MODULE = [
    ("lm/utils/sampling.py", None,
     '"""Greedy decoding, for a look at the model by hand."""\nimport torch\n\n\n@torch.no_grad()\ndef probe_noise(seed, size=4):\n'
     '    """Noise from a generator of its own."""\n    generator = torch.Generator().manual_seed(seed)\n'
     '    return torch.randn(size, size, generator=generator)\n\n\n@torch.no_grad()\ndef greedy(model, ids, steps):\n'
     '    """Append `steps` tokens."""\n    for _ in range(steps):\n        docs = torch.zeros_like(ids)\n'
     '        places = torch.arange(ids.shape[1]).expand_as(ids)\n'
     '        logits, _ = model(ids, places, docs)\n'
     '        ids = torch.cat((ids, logits[:, -1:].argmax(-1)), dim=1)\n    return ids\n'),
    ("lm/training.py", "from lm.parallel.ddp import GradientBuffer, broadcast_parameters, reduce_scalar\n",
     "from lm.parallel.ddp import GradientBuffer, broadcast_parameters, reduce_scalar\nfrom lm.utils.sampling import probe_noise\n"),
    ("lm/training.py", "    model = build_model(cfg, args)\n",
     "    fingerprint = probe_noise(args.seed).sum().item()\n    model = build_model(cfg, args)\n    model.fingerprint = fingerprint\n"),
]

# Applied in this order, whatever the order in a case: the texts above are those before renaming.
PACKS = {
    "comments": COMMENTS,
    "moved": MOVED,
    "monitor": MONITOR,
    "refactored": REFACTORED,
    "spelled": SPELLED,
    "extra": EXTRA_MODULE,
    "renamed": RENAMED,
}

_MATMUL = "    return torch.matmul(a, b)\n"
_LINEAR = "    return torch.matmul(x, weight.t())\n"

# Other kernels: the same products, rounded otherwise.
FP64 = [
    ("lm/ops/kernels.py", _MATMUL, "    return torch.matmul(a.double(), b.double()).to(a.dtype)\n"),
    ("lm/ops/kernels.py", _LINEAR, "    return torch.matmul(x.double(), weight.double().t()).to(x.dtype)\n"),
]
SPLIT_K = [
    ("lm/ops/kernels.py", _MATMUL,
     "    half = a.shape[-1] // 2\n    left = torch.matmul(a[..., :half], b[..., :half, :])\n"
     "    return left + torch.matmul(a[..., half:], b[..., half:, :])\n"),
    ("lm/ops/kernels.py", _LINEAR, "    return matmul(x, weight.t())\n"),
]
# The libraries' own slow paths: every operation of torch rounds a little differently, the code is the same.
OTHER_CPU = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
