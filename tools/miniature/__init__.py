"""The bundled miniature: its training pictures, its training and its judge."""
