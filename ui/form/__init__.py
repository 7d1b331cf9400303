"""The fields of the page, requests of them, and their values in links and pictures."""
