"""Drawing of many prompts from a file into a folder, which goes on after an interruption."""
