"""Save and load the state of a run; the file lives in memory."""
import io

import torch


def save(optimizer, scheduler):
    """Bytes that `load` understands."""
    buffer = io.BytesIO()
    state = {
        "optimizer": optimizer.state_dict(),
        "scheduler": {"num_steps": scheduler.num_steps},
    }
    torch.save(state, buffer)
    return buffer.getvalue()


def load(data, optimizer, scheduler):
    """Put a saved state back."""
    state = torch.load(io.BytesIO(data))
    optimizer.load_state_dict(state["optimizer"])
    scheduler.num_steps = state["scheduler"]["num_steps"]
    scheduler.apply()
