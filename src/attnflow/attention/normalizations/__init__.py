"""How logits become the kernel of an average. One file each, the same three members in the same order."""
