"""Finding checkpoints, and loading their tensors as parameters."""
