"""The networks, and the configuration that shapes them."""
