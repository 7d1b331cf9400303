"""The parts of the page, their events, and the life of a press."""
