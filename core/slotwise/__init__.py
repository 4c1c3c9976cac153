"""Slotwise: a modular LLM inference engine."""
