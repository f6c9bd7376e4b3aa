"""PyTorch, the peer: a network as PyTorch runs it, and how fast. Importing a module needs torch."""
