"""The bundled miniature: the pictures it learns from, its training and its judge."""
