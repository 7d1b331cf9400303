"""The HTTP APIs and the server."""
