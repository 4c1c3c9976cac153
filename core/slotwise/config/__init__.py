"""One tree of settings, where each value came from, and the files, variables and flags it is read from."""
