"""What Slotwise may know of scheduler `shortest_prompt_first` before it is chosen."""

from __future__ import annotations

from pydantic import Field

from slotwise.config.engine_config import ComponentOptions
from slotwise.plugin.component import Component
from slotwise.plugin.hookspecs import hookimpl


class ShortestPromptOptions(ComponentOptions):
    """`[scheduler.options]` when `use = "shortest_prompt_first"`."""

    bucket_tokens: int = Field(
        1, ge=1, description="Prompts whose lengths fall into one bucket of this size are served in order of arrival."
    )


@hookimpl
def slotwise_component() -> Component:
    """The one record of this entry point."""
    return Component(
        slot="scheduler",
        name="shortest_prompt_first",
        implementation="slotwise_stranger.shortest_prompt:ShortestPromptScheduler",
        api=">=1.0,<2",
        summary="Shorter prompts start first; the longest is preempted",
        options=ShortestPromptOptions,
    )
