"""Reading of LoRAs and other adapters, and the changes that they make to a model's tensors."""

from pipeline.adapters.adapter import Adapter, Change, Inventory
from pipeline.adapters.reader import read_adapter

__all__ = ["Adapter", "Change", "Inventory", "read_adapter"]
