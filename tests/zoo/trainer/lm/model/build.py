"""Building the model and filling in its weights."""
import math

import torch
from torch import nn

from lm.model.gpt import GPT
from lm.model.pretrained import load_quantized

RESIDUAL_OUTPUTS = ("proj.weight", "w2.weight")


@torch.no_grad()
def initialize_weights(model, cfg):
    """In the order of the parameters, from the global generator."""
    residual_std = cfg.init_std / math.sqrt(2.0 * cfg.num_layers)
    for name, param in model.named_parameters():
        if name.endswith("norm.weight"):
            nn.init.ones_(param)
        elif name.endswith("bias") or name.endswith("lora_b"):
            nn.init.zeros_(param)
        elif name.endswith(RESIDUAL_OUTPUTS):
            nn.init.normal_(param, std=residual_std)
        else:
            nn.init.normal_(param, std=cfg.init_std)
    if cfg.head == "replica":
        model.head.copy_(model.embedding.weight)


def _on_meta(cfg):
    """Build without memory, then allocate; what was computed while building is lost."""
    with torch.device("meta"):
        model = GPT(cfg)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.zero_()
    for module in model.modules():
        if hasattr(module, "reset_buffers"):
            module.reset_buffers()
    return model


def freeze_base(model):
    """With adapters only they and the norms are trained."""
    for name, param in model.named_parameters():
        param.requires_grad_("lora_" in name or "norm" in name)


def build_model(cfg, args):
    """The model, its weights set, in the dtype of the run."""
    model = _on_meta(cfg) if args.meta_init else GPT(cfg)
    initialize_weights(model, cfg)
    if args.quantized_embedding:
        load_quantized(model.embedding.weight, cfg.init_std)
    if cfg.lora_rank:
        freeze_base(model)
    if args.bf16:
        model.bfloat16()
        model.rope.float()
        model.rope.reset_buffers()
    return model
