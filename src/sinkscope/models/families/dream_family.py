"""Dream, Dream-Coder and DiffuCoder: a Qwen2.5 that was trained on to diffuse; its logits predict the next token."""

from sinkscope.models.family import Family, PublishedShape
from sinkscope.models.layouts import (
    FULL_ATTENTION,
    IGNORED,
    NEVER,
    NUMBERS,
    SIZES,
    SLIDING,
    TIED,
    UNROTATED,
    WITH_SLIDING,
    Fixed,
    Layout,
)

CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHECKPOINTS = (
    "Dream-org/Dream-v0-Base-7B",
    "Dream-org/Dream-v0-Instruct-7B",
    "Dream-org/Dream-Coder-v0-Base-7B",
    "Dream-org/Dream-Coder-v0-Instruct-7B",
    "apple/DiffuCoder-7B-Base",
    "apple/DiffuCoder-7B-Instruct",
    "apple/DiffuCoder-7B-cpGRPO",
)

FAMILY = Family(
    "dream",
    causal=False,
    sampler="dream",
    model_types=("Dream",),
    source="DreamLM/Dream, generation_utils.py",
    layout=Layout(
        body="qwen2",
        sizes=SIZES,
        fallbacks={"num_key_value_heads": "num_attention_heads"},
        numbers=NUMBERS,
        flags=TIED,
        fixed={
            **UNROTATED,
            "attention_bias": Fixed((True,), True),  # its code has biases whatever the config says
            "use_mrope": Fixed((False,), False),
            **SLIDING,
            **NEVER,
        },
        repeated=FULL_ATTENTION,
        ignored=IGNORED | WITH_SLIDING,
    ),
    architectures=("DreamModel",),
    tokenizer_classes=("DreamTokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast"),
    shift=True,
    mask_text="<|mask|>",
    chat_template=CHATML,
    chat_tokens=("<|im_start|>", "<|im_end|>"),
    shapes=(PublishedShape(CHECKPOINTS, 7_615_616_512, 28, 3584, vocabulary=152064),),
)
