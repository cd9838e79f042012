"""LLaDA: a bidirectional Llama whose config keys and tensors have names of their own."""

from sinkscope.models.family import Family, PublishedShape
from sinkscope.models.layouts import PUBLISHED

HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


def header_template(newlines: str) -> str:
    """Return Llama 3's chat template as LLaDA and MMaDA write it; they differ in the newlines after a header."""
    turn = (
        "<|start_header_id|>{{ message['role'] }}<|end_header_id|>"
        + newlines
        + "{{ message['content'] | trim }}<|eot_id|>"
    )
    opening = "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>" + newlines + "{% endif %}"
    return (
        "{% for message in messages %}{% if loop.first %}{{ bos_token }}{% endif %}" + turn + "{% endfor %}" + opening
    )


FAMILY = Family(
    "llada",
    causal=False,
    sampler="llada",
    model_types=("llada", "llama"),
    source="ML-GSAI/LLaDA, generate.py",
    layout=PUBLISHED["llada"],
    architectures=("LLaDAModelLM",),
    mask_text="<|mdm_mask|>",
    end_of_turn=126348,
    chat_template=header_template("\n\n"),
    chat_tokens=HEADERS,
    shapes=(
        PublishedShape(
            ("GSAI-ML/LLaDA-8B-Base", "GSAI-ML/LLaDA-8B-Instruct", "GSAI-ML/LLaDA-1.5"),
            8_015_581_184,
            32,
            4096,
            vocabulary=126464,
        ),
    ),
)
