"""Styles, examples and small pictures of them for each kind of model."""
