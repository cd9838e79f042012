import random

import pytest
import transformers

from sinkscope.lab.code_tasks import held_out_code_tasks, make_code_task
from sinkscope.lab.vocabulary import BOS, EOS, MASK, UNKNOWN, build_tokenizer, question_text, render
from sinkscope.lab.word_problems import held_out_problems, make_problem


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="module")
def texts():
    rng = random.Random(123)
    drawn = [make(rng) for _ in range(400) for make in (make_problem, make_code_task)]
    return [render(task) for task in (*drawn, *held_out_problems()[:200], *held_out_code_tasks())]


def pieces(tokenizer, text):
    return tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False).input_ids)


def test_what_is_rendered_comes_back_letter_by_letter(tokenizer, texts):
    for text in texts:
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
    packed = "\n\n".join(texts[:20])
    assert tokenizer.decode(tokenizer(packed, add_special_tokens=False).input_ids) == packed


def test_no_lab_text_holds_an_unknown_word(tokenizer, texts):
    for text in texts:
        assert tokenizer.unk_token_id not in tokenizer(text).input_ids


def test_digits_stand_apart(tokenizer):
    assert pieces(tokenizer, "12 + 340") == ["1", "2", "▁+", "▁3", "4", "0"]


def test_newline_and_punctuation_are_tokens(tokenizer):
    assert pieces(tokenizer, "Q: How many? Tom, 7.\n\n#### 7") == [
        "Q",
        ":",
        "▁How",
        "▁many",
        "?",
        "▁Tom",
        ",",
        "▁7",
        ".",
        "\n",
        "\n",
        "####",
        "▁7",
    ]
    assert pieces(tokenizer, "f(x):\n    return x") == ["f", "(", "x", ")", ":", "\n", "▁▁▁▁", "return", "▁x"]


def test_spaces_survive_in_any_number(tokenizer):
    for count in range(1, 10):
        text = "Tom" + " " * count + "Anna"
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


def test_special_tokens(tokenizer):
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.mask_token, tokenizer.unk_token) == (
        BOS,
        EOS,
        MASK,
        UNKNOWN,
    )
    ids = [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.mask_token_id, tokenizer.unk_token_id]
    assert len(set(ids)) == 4
    assert tokenizer("Tom").input_ids == [tokenizer.bos_token_id, tokenizer.convert_tokens_to_ids("Tom")]
    assert (
        tokenizer.decode([tokenizer.convert_tokens_to_ids("Tom"), tokenizer.eos_token_id], skip_special_tokens=True)
        == "Tom"
    )


def test_unknown_words_become_unk(tokenizer):
    ids = tokenizer("Tom has 7 xylophones", add_special_tokens=False).input_ids
    assert [token == tokenizer.unk_token_id for token in ids] == [False, False, False, True]
    assert tokenizer("é", add_special_tokens=False).input_ids == [tokenizer.unk_token_id]


def test_auto_tokenizer_reads_it_from_a_folder(tokenizer, texts, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    for text in texts[::40]:
        assert loaded(text).input_ids == tokenizer(text).input_ids
        assert loaded.decode(loaded(text).input_ids, skip_special_tokens=True) == text
    assert (loaded.mask_token_id, loaded.eos_token_id, loaded.unk_token_id) == (
        tokenizer.mask_token_id,
        tokenizer.eos_token_id,
        tokenizer.unk_token_id,
    )
    batch = loaded(["Tom", "Tom has 7"], padding=True)
    assert batch.attention_mask == [[0, 0, 1, 1], [1, 1, 1, 1]]
    assert loaded.chat_template == tokenizer.chat_template


def test_the_chat_template_is_the_few_shot_prompt(tokenizer):
    """A conversation reads exactly as packed problems do, so a chat model meets what it was trained on."""
    first, second = (make_problem(random.Random(seed)) for seed in (1, 2))
    messages = [
        {"role": "user", "content": first.question},
        {"role": "assistant", "content": first.worked},
        {"role": "user", "content": second.question},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == f"{BOS}{render(first)}\n\n{question_text(second)}"
