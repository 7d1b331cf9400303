"""The life of a request, from what is asked to how it ends. No model code here."""
