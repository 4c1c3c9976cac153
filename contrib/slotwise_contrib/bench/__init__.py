"""Benchmarks of the engine's own cost: what it spends around the model, and how long its commands take to answer."""
