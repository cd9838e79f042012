"""Tokenizer folders in the forms in which LLaDA, MMaDA, Dream and Llama publish theirs, for vocabularies of about 60
tokens.
"""

import json

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
TEXTS = [
    "he said hello",
    "Two  words\n\nand a line. He",
    "heHE? he.",
    "<|im_start|>user\nthe hen<|im_end|>\n<|mask|>",
    "",
]
"""What the ids of the published Dream tokenizer were computed for."""


def _special(text):
    return {"content": text, "special": True, **dict.fromkeys("lstrip normalized rstrip single_word".split(), False)}


def save_words(folder, added, tokenizer_class="PreTrainedTokenizerFast", template=None, **named):
    """tokenizer.json of one word a token, ``w0`` … ``w55``, and the added tokens behind them, by id."""
    words = {f"w{number}": number for number in range(56)}
    tokens = [{"id": number, **_special(text)} for number, text in added.items()]
    vocabulary = words | {text: number for number, text in added.items()}
    core = dict.fromkeys("truncation padding normalizer post_processor decoder".split())
    core |= {"version": "1.0", "added_tokens": tokens, "pre_tokenizer": {"type": "WhitespaceSplit"}}
    core |= {"model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"}}
    (folder / "tokenizer.json").write_text(json.dumps(core))
    settings = {"tokenizer_class": tokenizer_class, "model_max_length": 1000, "clean_up_tokenization_spaces": False}
    settings |= named
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


_LLADA_SPECIAL = "startoftext endoftext start_header_id end_header_id mdm_mask eot_id".split()
LLADA_ADDED = {number: f"<|{name}|>" for number, name in enumerate(_LLADA_SPECIAL, 56)}
LLADA_NAMED = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}


def save_llada_tokenizer(folder, added=LLADA_ADDED, **changes):
    """The mask token is there by its text only, as in the published folder."""
    return save_words(folder, added, **(LLADA_NAMED | changes))


def save_llama_tokenizer(folder):
    return save_words(
        folder, {56: "<|begin|>", 57: "<|end|>", 58: "<|eot|>"}, bos_token="<|begin|>", eos_token="<|eot|>"
    )


def save_dream_tokenizer(folder, added=None, **changes):
    """vocab.json and merges.txt, a class of its own, and remote code to build it with."""
    pieces = [*LETTERS, "Ġ", "Ċ", ".", "?", "he"]
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("#version: 0.2\nh e\n")
    added = added or {57: "<|endoftext|>", 58: "<|im_start|>", 59: "<|im_end|>", 60: "<|mask|>"}
    settings = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "added_tokens_decoder": {str(number): _special(text) for number, text in added.items()},
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": None,
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "unk_token": None,
        "errors": "replace",
        "model_max_length": 1000,
        "split_special_tokens": False,
        "clean_up_tokenization_spaces": False,
        **changes,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def save_sdar_tokenizer(folder):
    """vocab.json and merges.txt under the class name of Qwen2, with remote code to build it with; the mask has no entry
    of its own.
    """
    added = {57: "<|endoftext|>", 58: "<|im_start|>", 59: "<|im_end|>", 60: "<|MASK|>"}
    remote = {"AutoTokenizer": ["tokenization_qwen2.Qwen2Tokenizer", None]}
    return save_dream_tokenizer(folder, added, tokenizer_class="Qwen2Tokenizer", auto_map=remote, mask_token="<|MASK|>")


def save_llada_moe_tokenizer(folder):
    return save_words(
        folder, {57: "<|endoftext|>", 60: "<|mask|>"}, eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )


SAVE = {
    "llada2": save_llada_moe_tokenizer,
    "llada_moe": save_llada_moe_tokenizer,
    "sdar": save_sdar_tokenizer,
    "llada": save_llada_tokenizer,
    "mmada": save_llada_tokenizer,
    "dream": save_dream_tokenizer,
    "llama": save_llama_tokenizer,
}
