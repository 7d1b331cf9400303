"""Where checkpoints come from, and how their tensors become parameters."""
