"""Other engines beside this one, each in an interpreter of its own. The adapters import nothing of Slotwise but `protocol`, by its path."""
