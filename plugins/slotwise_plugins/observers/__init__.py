"""Built-in components of the `observer` slot."""
