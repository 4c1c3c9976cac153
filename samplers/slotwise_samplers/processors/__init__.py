"""The built-in logits processors, one file each; `row_ids` gathers the ids that several of them touch."""
