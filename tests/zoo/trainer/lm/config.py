"""The model's shape: a JSON file, and what the command line puts over it."""
import json
from dataclasses import dataclass, field
from typing import Optional


@dataclass
class RopeConfig:
    """Rotary position embedding."""

    theta: float = 10000.0
    fraction: float = 1.0
    interleaved: bool = False
    scale: Optional[float] = None


@dataclass
class MoEConfig:
    """Router and experts."""

    num_experts: int = 0
    top_k: int = 2
    aux_loss_coeff: float = 0.0
    bias_update_rate: float = 0.0
    norm_topk_prob: bool = True
    first_layer: int = 0


@dataclass
class ModelConfig:
    """Everything a module needs to know when it is built."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    ffn_hidden_size: int
    activation: str = "gelu"
    norm_eps: float = 1e-6
    init_std: float = 0.02
    embedding_multiplier: float = 1.0
    skip_gain: float = 0.0
    window: int = 0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    attention_block: int = 0
    mtp_weight: float = 0.0
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    recompute: bool = False
    head: str = "tied"
    lora_rank: int = 0
    lora_alpha: float = 8.0
    rope: RopeConfig = field(default_factory=RopeConfig)
    moe: MoEConfig = field(default_factory=MoEConfig)

    @property
    def head_dim(self):
        return self.hidden_size // self.num_heads


def _read(path):
    with open(path, encoding="utf-8") as handle:
        return json.load(handle)


def _override(raw, args):
    """Words on the command line win over the file."""
    for name in ("mtp_weight", "hidden_dropout", "attention_dropout"):
        value = getattr(args, name)
        if value is not None:
            raw[name] = value
    if args.rope_scale is not None:
        raw["rope"]["scale"] = args.rope_scale
    return raw


def load_model_config(args):
    """The JSON of `--model-config` as a ModelConfig."""
    raw = _override(_read(args.model_config), args)
    rope = RopeConfig(**raw.pop("rope", {}))
    moe = MoEConfig(**raw.pop("moe", {}))
    block = args.attention_block if args.attention_backend == "block" else 0
    return ModelConfig(
        **raw,
        rope=rope,
        moe=moe,
        attention_block=block,
        recompute=args.recompute,
        head=args.head,
        lora_rank=args.lora_rank,
        lora_alpha=2.0 * args.lora_rank,
    )
