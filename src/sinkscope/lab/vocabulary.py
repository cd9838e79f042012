"""A word-level tokenizer for the lab's texts. Every digit, punctuation mark and newline is a token.

A token includes the space before it, written ``▁``, so decoding returns the text, on ASCII. Words outside the
vocabulary become ``<|unk|>``; `sinkscope.models` refuses prompts that contain one.
"""

import functools
import random
import string
from typing import Any

from sinkscope.lab import problems

BOS, EOS, MASK, UNKNOWN = SPECIAL_TOKENS = ("<|bos|>", "<|eos|>", "<|mask|>", "<|unk|>")
SPACE = "▁"
_PIECES = rf"{SPACE}{{4}}|{SPACE}?[A-Za-z]+|{SPACE}?[0-9]|{SPACE}?#+|\n|{SPACE}?[^{SPACE}A-Za-z0-9\n]|{SPACE}"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}Q: {{ message['content'] }}\nA:"
    "{% else %} {{ message['content'] }}\n\n{% endif %}{% endfor %}"
)


@functools.cache
def build_tokenizer() -> Any:
    """Return the tokenizer as a `transformers.PreTrainedTokenizerFast`, which `AutoTokenizer` reads from a folder.

    It knows every token of the lab's texts and every printable ASCII character.
    """
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    letters = [one for one in string.printable if one.isprintable() and one != " "]
    of_problems = (*problems.NAMES, *problems.ITEMS, *problems.PLACES, *problems.DAYS)
    texts = [f"{word} {word}" for word in (*of_problems, *problems.FUNCTIONS, *problems.ARGUMENTS, *letters)]
    texts += [*problems.QUESTIONS.values()]
    texts += [f"{request} {body}" for request, body, _ in problems.CODE_TEMPLATES.values()]
    rng = random.Random(0)
    for make in (problems.make_problem, problems.make_code_task):
        texts += [render(make(rng)) for _ in range(2000)]
    split = pre_tokenizers.Split(tokenizers.Regex(_PIECES), "isolated")
    found = {"\n", SPACE, SPACE * 4}
    for text in texts:
        found.update(piece for piece, _ in split.pre_tokenize_str(text.replace(" ", SPACE)))
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *sorted(found)])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse()])
    fast = as_transformers(tokenizer, unk_token=UNKNOWN)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def as_transformers(tokenizer: Any, **more: Any) -> Any:
    """Return a tokenizer with the lab's special tokens as a `transformers.PreTrainedTokenizerFast`."""
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    begins = [(BOS, tokenizer.token_to_id(BOS))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=begins)
    special = {"bos_token": BOS, "eos_token": EOS, "pad_token": EOS, "mask_token": MASK, "padding_side": "left"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special, **more)


def render(problem: problems.Problem) -> str:
    """Return a problem with its worked answer, as in the shots of a prompt."""
    return f"{question_text(problem)} {problem.worked}"


def question_text(problem: problems.Problem) -> str:
    """Return a problem up to the beginning of its answer."""
    return f"Q: {problem.question}\nA:"
