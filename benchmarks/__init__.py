"""Measurements, and what they gave: one file in results/ for each run."""
