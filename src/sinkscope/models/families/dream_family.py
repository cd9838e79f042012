"""Dream, Dream-Coder and DiffuCoder: a Qwen2.5 that was trained on to diffuse; its logits predict the next token."""

from sinkscope.models.family import Family, PublishedShape
from sinkscope.models.layouts import PUBLISHED

CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

FAMILY = Family(
    "dream",
    causal=False,
    sampler="dream",
    model_types=("Dream",),
    source="DreamLM/Dream, generation_utils.py",
    layout=PUBLISHED["dream"],
    architectures=("DreamModel",),
    tokenizer_classes=("DreamTokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast"),
    shift=True,
    mask_text="<|mask|>",
    end_of_turn=151645,
    chat_template=CHATML,
    chat_tokens=("<|im_start|>", "<|im_end|>"),
    shapes=(
        PublishedShape(
            (
                "Dream-org/Dream-v0-Base-7B",
                "Dream-org/Dream-v0-Instruct-7B",
                "Dream-org/Dream-Coder-v0-Base-7B",
                "Dream-org/Dream-Coder-v0-Instruct-7B",
                "apple/DiffuCoder-7B-Base",
                "apple/DiffuCoder-7B-Instruct",
                "apple/DiffuCoder-7B-cpGRPO",
            ),
            7_615_616_512,
            28,
            3584,
            vocabulary=152064,
        ),
    ),
)
