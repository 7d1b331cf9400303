"""The two generators: one draws here, one sends requests to other instances."""
