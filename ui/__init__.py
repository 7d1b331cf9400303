"""What the visitor sees: layout, wording, looks. No JAX and no model code here."""
