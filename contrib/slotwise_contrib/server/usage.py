"""Token counts of one HTTP request: prompts count once, whatever `n`; every generated token counts once."""

from __future__ import annotations

from typing import Any

from slotwise.engine.outputs import RequestOutput


class UsageCounter:
    """Fed with every output of every prompt, each output's token ids being new ones. Counts never decrease."""

    def __init__(self) -> None:
        self._prompt_tokens: dict[int, int] = {}
        self._cached_tokens: dict[int, int] = {}
        self._completion_tokens = 0

    def add(self, prompt_index: int, output: RequestOutput) -> None:
        self._prompt_tokens[prompt_index] = len(output.prompt_token_ids)
        self._cached_tokens[prompt_index] = max(output.num_cached_tokens, self._cached_tokens.get(prompt_index, 0))
        self._completion_tokens += sum(len(completion.token_ids) for completion in output.outputs)

    def record(self) -> dict[str, Any]:
        """The `usage` object."""
        prompt_tokens = sum(self._prompt_tokens.values())
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "total_tokens": prompt_tokens + self._completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached_tokens.values())},
        }
