"""Attention, matrix products and convolutions for each platform."""
