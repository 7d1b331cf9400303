"""The networks and their configuration."""
