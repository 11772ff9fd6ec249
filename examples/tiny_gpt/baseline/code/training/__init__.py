"""Arguments, loss, optimizer and training loop."""
