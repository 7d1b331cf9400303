"""AUTOMATIC1111's API, under /sdapi/v1."""
