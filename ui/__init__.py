"""The page that visitors see: layout, texts and look. It contains no JAX and no model code."""
