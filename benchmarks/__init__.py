"""Measurements, and their results: one file in results/ for each run."""
