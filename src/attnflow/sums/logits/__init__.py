"""What turns tokens into rows whose scalar products are the logits."""
