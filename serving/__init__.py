"""Serving of requests, from their submission to their ending. No model code is here."""
