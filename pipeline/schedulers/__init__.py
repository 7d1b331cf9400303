"""Noise schedules and the coefficients of their methods."""
