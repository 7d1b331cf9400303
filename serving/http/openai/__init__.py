"""The OpenAI API: pictures from a prompt, and the list of models."""
