"""The two generators: `local` draws in this process, `remote` sends requests to instances."""
