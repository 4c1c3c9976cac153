from __future__ import annotations

import pytest

from slotwise.engine.chat_template import apply_chat_template, render_chat_template
from slotwise.errors import InvalidRequestError

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
WITH_BOS = "{{ bos_token }}" + PLAIN
MESSAGES = [{"role": "user", "content": "Hello 漢字"}]


@pytest.mark.parametrize(("template", "num_bos"), [(WITH_BOS, 1), (PLAIN, 0)])
def test_only_the_template_writes_bos(byte_level_with_bos, template, num_bos):
    tokenizer = byte_level_with_bos
    token_ids = apply_chat_template(tokenizer, MESSAGES, chat_template=template)
    assert token_ids.count(tokenizer.bos_token_id) == num_bos
    expected = tokenizer.apply_chat_template(MESSAGES, chat_template=template, add_generation_prompt=True, return_dict=False)
    assert token_ids == expected


def test_text_parts_are_joined(byte_level):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render_chat_template(byte_level, [{"role": "user", "content": parts}], chat_template=PLAIN) == "[user]ab[assistant]"


def test_the_last_message_can_be_left_open(byte_level):
    messages = [*MESSAGES, {"role": "assistant", "content": "Hel"}]
    text = render_chat_template(byte_level, messages, chat_template=PLAIN, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("[assistant]Hel")


def test_template_variables_are_passed_on(byte_level):
    text = render_chat_template(byte_level, MESSAGES, chat_template="{{ mood }}", template_kwargs={"mood": "fine"})
    assert text == "fine"


def test_a_tokenizer_without_template_says_how_to_set_one(byte_level):
    with pytest.raises(InvalidRequestError, match=r"model\.chat_template"):
        apply_chat_template(byte_level, MESSAGES)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "Hello",
        {"role": "user", "content": "a"},
        ["Hello"],
        [{"content": "a"}],
        [{"role": "", "content": "a"}],
        [{"role": "user"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": ["a"]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
        [{"role": "user", "content": None}],
    ],
)
def test_malformed_messages_are_refused(byte_level, messages):
    with pytest.raises(InvalidRequestError) as caught:
        apply_chat_template(byte_level, messages, chat_template=PLAIN)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("template", ["{{ raise_exception('roles must alternate') }}", "{% for", "{{ messages[3].role.x }}"])
def test_what_a_template_refuses_is_an_invalid_request(byte_level, template):
    with pytest.raises(InvalidRequestError, match="chat template"):
        apply_chat_template(byte_level, MESSAGES, chat_template=template)


def test_chat_without_a_tokenizer_is_refused():
    with pytest.raises(InvalidRequestError, match="tokenizer"):
        apply_chat_template(None, MESSAGES)


def test_lone_surrogates_are_refused(byte_level):
    byte_level.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    with pytest.raises(InvalidRequestError, match="surrogate"):
        apply_chat_template(byte_level, [{"role": "user", "content": "\ud800"}])
