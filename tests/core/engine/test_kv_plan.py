"""Groups of layers that share block tables and memory."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from slotwise.engine.kv_plan import num_blocks_for, plan_kv_groups
from slotwise.interfaces.attention import FULL, SLIDING_WINDOW, AttentionLayer


def layers(kinds: str) -> list[AttentionLayer]:
    return [
        AttentionLayer(
            name=f"layer.{index}",
            index=index,
            num_heads=4,
            num_kv_heads=2,
            head_dim=8,
            scale=1.0,
            kind=FULL if kind == "f" else SLIDING_WINDOW,
            sliding_window=None if kind == "f" else 6,
        )
        for index, kind in enumerate(kinds)
    ]


def test_equal_layers_form_one_group() -> None:
    plan = plan_kv_groups(layers("ffff"), block_size=16, kv_dtype="float32")
    assert [group.layer_names for group in plan.groups] == [("layer.0", "layer.1", "layer.2", "layer.3")]
    assert plan.groups[0].bytes_per_block == 2 * 16 * 2 * 8 * 4
    assert plan.bytes_per_block == 4 * plan.groups[0].bytes_per_block


def test_alternating_layers_form_two_groups_that_share_memory() -> None:
    plan = plan_kv_groups(layers("sfsf"), block_size=16, kv_dtype="float32")
    assert [(group.kind, group.layer_names) for group in plan.groups] == [
        (SLIDING_WINDOW, ("layer.0", "layer.2")),
        (FULL, ("layer.1", "layer.3")),
    ]
    assert plan.memory_of_layer == {"layer.0": 0, "layer.1": 0, "layer.2": 1, "layer.3": 1}


def test_five_to_one_layers_form_groups_of_the_smaller_kind() -> None:
    plan = plan_kv_groups(layers("sssssfsssssf"), block_size=4, kv_dtype="float32")
    assert [len(group.layer_names) for group in plan.groups] == [2, 2, 2, 2, 2, 2]
    assert len(plan.bytes_of_memory) == 2


@given(st.text(alphabet="fs", min_size=1, max_size=30))
def test_layers_of_one_group_never_share_memory_and_all_are_placed(kinds: str) -> None:
    plan = plan_kv_groups(layers(kinds), block_size=4, kv_dtype="float32")
    assert sorted(name for group in plan.groups for name in group.layer_names) == sorted(layer.name for layer in layers(kinds))
    for group in plan.groups:
        memories = [plan.memory_of_layer[name] for name in group.layer_names]
        assert len(set(memories)) == len(memories)


def test_a_layer_that_shares_kv_uses_its_targets_memory_and_no_group() -> None:
    own = layers("ff")
    shared = AttentionLayer(name="layer.2", index=2, num_heads=4, num_kv_heads=2, head_dim=8, scale=1.0, kv_sharing_target="layer.1")
    plan = plan_kv_groups([*own, shared], block_size=4, kv_dtype="float32")
    assert plan.memory_of_layer["layer.2"] == plan.memory_of_layer["layer.1"]
    assert plan.group_of_layer()["layer.2"] == plan.group_of_layer()["layer.1"]
    assert "layer.2" not in plan.groups[0].layer_names


def test_latent_layers_store_one_row_per_token_and_share_no_group_with_others() -> None:
    latent = AttentionLayer(name="mla", index=2, num_heads=4, num_kv_heads=1, head_dim=576, scale=1.0, latent_value_dim=512)
    plan = plan_kv_groups([*layers("ff"), latent], block_size=16, kv_dtype="bfloat16")
    assert [group.layer_names for group in plan.groups] == [("layer.0",), ("layer.1",), ("mla",)]
    assert plan.groups[2].bytes_per_block == 16 * 576 * 2
    assert plan.memory_of_layer["mla"] != plan.memory_of_layer["layer.0"]


def test_one_byte_storage_takes_a_quarter_of_float32() -> None:
    wide, narrow = (plan_kv_groups(layers("ff"), block_size=16, kv_dtype=dtype) for dtype in ("float32", "int8"))
    assert wide.bytes_per_block == 4 * narrow.bytes_per_block


def test_encoder_layers_own_no_kv() -> None:
    plan = plan_kv_groups([replace(layer, attention_type="encoder_only") for layer in layers("ff")], block_size=16, kv_dtype="float32")
    assert (plan.groups, plan.memory_of_layer, plan.bytes_per_block) == ((), {}, 0)
    encoder = replace(layers("ffff")[3], attention_type="encoder")
    plan = plan_kv_groups([*layers("fff"), encoder], block_size=16, kv_dtype="float32")
    assert [group.layer_names for group in plan.groups] == [("layer.0", "layer.1", "layer.2")]


def test_cross_attention_has_a_block_table_of_its_own() -> None:
    cross = [replace(layer, name=f"cross.{layer.index}", attention_type="cross") for layer in layers("ff")]
    plan = plan_kv_groups([*layers("ff"), *cross], block_size=16, kv_dtype="float32")
    assert [group.layer_names for group in plan.groups] == [("layer.0", "layer.1"), ("cross.0", "cross.1")]


def test_pool_is_no_larger_than_full_load_and_never_empty() -> None:
    plan = plan_kv_groups(layers("ff"), block_size=16, kv_dtype="float32")
    assert num_blocks_for(plan, memory_bytes=1 << 40, max_num_seqs=4, max_model_len=100) == 4 * 7
    assert num_blocks_for(plan, memory_bytes=plan.bytes_per_block * 11, max_num_seqs=64, max_model_len=4096) == 10
    assert num_blocks_for(plan, memory_bytes=0, max_num_seqs=64, max_model_len=4096) == 1
