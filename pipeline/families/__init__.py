"""The model families, each a record, and the reading of a checkpoint's configuration."""

from pipeline.families.reader import FAMILIES, FamilyReader, read_config

__all__ = ["FAMILIES", "FamilyReader", "read_config"]
