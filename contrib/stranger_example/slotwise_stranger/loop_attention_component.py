"""What Slotwise may know of attention `loop` before it is chosen. Light: imports neither torch nor the implementation."""

from __future__ import annotations

from pydantic import Field

from slotwise.config.engine_config import ComponentOptions
from slotwise.interfaces.attention import HND, NHD, AttentionCapabilities
from slotwise.plugin.component import Component
from slotwise.plugin.hookspecs import hookimpl

CAPABILITIES = AttentionCapabilities(
    devices=("cpu", "cuda"),
    dtypes=("float32", "bfloat16", "float16"),
    kv_layouts=(NHD, HND),
)


class LoopAttentionOptions(ComponentOptions):
    """`[attention.options]` when `use = "loop"`."""

    softmax_temperature: float = Field(1.0, gt=0, description="Divides the scores; 1 is the model as trained, more looks wider.")


@hookimpl
def slotwise_component() -> Component:
    """The one record of this entry point."""
    return Component(
        slot="attention",
        name="loop",
        implementation="slotwise_stranger.loop_attention:LoopAttention",
        api=">=1.0,<2",
        summary="One plain torch softmax per request, for reading",
        capabilities=CAPABILITIES,
        options=LoopAttentionOptions,
    )
