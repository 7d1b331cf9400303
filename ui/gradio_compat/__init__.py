"""Everything that leans on Gradio's internals."""
