"""Code that depends on Gradio's internals."""
