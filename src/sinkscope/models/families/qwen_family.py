"""Qwens that were trained on to diffuse: Dream, Dream-Coder and DiffuCoder, whose logits predict the next token; and
SDAR, which writes block by block, each block by diffusion behind the finished ones.
"""

from dataclasses import replace

from sinkscope.models.family import Family, PublishedShape
from sinkscope.models.layouts import NUMBERS, SIZES, STOCK, TIED, UNROTATED, Fixed

QWEN2, QWEN3 = STOCK["qwen2"], STOCK["qwen3"]
CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DREAM_7B = (
    "Dream-org/Dream-v0-Base-7B",
    "Dream-org/Dream-v0-Instruct-7B",
    "Dream-org/Dream-Coder-v0-Base-7B",
    "Dream-org/Dream-Coder-v0-Instruct-7B",
    "apple/DiffuCoder-7B-Base",
    "apple/DiffuCoder-7B-Instruct",
    "apple/DiffuCoder-7B-cpGRPO",
)
BYTE_PAIRS = ("Qwen2Tokenizer", "Qwen2TokenizerFast")

DREAM = Family(
    "dream",
    causal=False,
    sampler="dream",
    model_types=("Dream",),
    source="DreamLM/Dream, generation_utils.py",
    layout=replace(
        QWEN2,
        sizes=SIZES,
        optional=frozenset(),
        numbers=NUMBERS,
        passed=frozenset(),
        fixed={
            **QWEN2.fixed,
            **UNROTATED,
            "attention_bias": Fixed((True,), True),  # its code has biases whatever the config says
            "use_mrope": Fixed((False,), False),
        },
    ),
    architectures=("DreamModel",),
    tokenizer_classes=("DreamTokenizer", *BYTE_PAIRS),
    shift=True,
    mask_text="<|mask|>",
    chat_template=CHATML,
    chat_tokens=("<|im_start|>", "<|im_end|>"),
    shapes=(PublishedShape(DREAM_7B, 7_615_616_512, 28, 3584, vocabulary=152064),),
)
SDAR = Family(
    "sdar",
    causal=False,
    sampler="sdar",
    model_types=("sdar",),
    source="JetAstra/SDAR, generate.py",
    architectures=("SDARForCausalLM",),
    network="sinkscope.models.networks:BlockCausalQwen3",
    tokenizer_classes=BYTE_PAIRS,
    layout=replace(
        QWEN3,
        numbers=NUMBERS,
        passed=frozenset(),
        fixed={**QWEN3.fixed, **UNROTATED, "attention_bias": Fixed((False,), False)},
        optional=frozenset(),
        flags=TIED,
        # The hub's config.json names neither. All published chat models have blocks of 4; the mask is checked against
        # the tokenizer.
        absent={"block_size": 4, "mask_token_id": 151669},
        # Of training, and of the way the weights were converted.
        ignored=QWEN3.ignored
        | {"debug", "ep_size", "fuse_cross_entropy", "micro_forward", "skip_checkpoint", "use_deepep"},
    ),
    mask_text="<|MASK|>",
    end_of_turn=151645,
    shapes=(
        PublishedShape(("JetLM/SDAR-4B-Chat",), 4_411_424_256, 36, 2560, vocabulary=151936),
        PublishedShape(("JetLM/SDAR-8B-Chat",), 8_190_735_360, 36, 4096, vocabulary=151936),
    ),
)
