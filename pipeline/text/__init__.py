"""Tokenizers of the text encoders."""
