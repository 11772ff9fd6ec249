from lm.optim.adamw import AdamW, build_groups
from lm.optim.clip import clip_gradients
from lm.optim.ema import EMA
from lm.optim.schedule import WarmupCosine

__all__ = ["AdamW", "EMA", "WarmupCosine", "build_groups", "clip_gradients"]
