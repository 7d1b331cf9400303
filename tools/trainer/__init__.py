"""Training of a miniature that draws hundreds of things."""
