"""The mesh, the compiled programs, and the cache that keeps them."""
