"""Two generators: `local` draws in this process, `remote` sends requests to other instances."""
