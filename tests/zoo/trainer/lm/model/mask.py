"""Who may look at whom."""
import torch


def causal(length, window=0):
    """Lower triangle; with a window only the last `window` positions, the own one included."""
    index = torch.arange(length)
    distance = index[:, None] - index[None, :]
    allowed = distance >= 0
    if window:
        allowed = allowed & (distance < window)
    return allowed


def build_mask(doc_ids, window=0):
    """[batch, 1, query, key], True where attention is allowed."""
    length = doc_ids.shape[1]
    allowed = causal(length, window)
    real = doc_ids >= 0
    same = doc_ids[:, :, None] == doc_ids[:, None, :]
    allowed = allowed & same & real[:, None, :]
    # the row of a padded token would be empty and its softmax undefined
    allowed = allowed | torch.eye(length, dtype=torch.bool)
    return allowed[:, None]
