"""Reading of LoRAs and other adapters, and the changes that they make to a model's tensors."""
