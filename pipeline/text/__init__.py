"""Prompts: tokenizers, syntaxes, embeddings and the names of LoRAs."""
