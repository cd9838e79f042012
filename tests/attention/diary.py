"""A subscriber that records every event, and small networks for it."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sinkscope.attention import Watcher

TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
SIZES = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 16}
SMALL = {**SIZES, **TOKENS}


def tiny_llama(**more):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**SMALL, "num_key_value_heads": 1, **more})).eval()


class Diary(Watcher):
    """Records every event."""

    def __init__(self, *groups):
        self.groups = groups or ("all",)
        self.events, self.starts, self.steps, self.results = [], [], [], []
        self.columns, self.names, self.calls = [], [], []

    def begin_generation(self, start):
        self.events.append("begin_generation")
        self.starts.append(start)

    def begin_step(self, context):
        self.events.append("begin_step")
        self.steps.append(context)

    def watch(self, call, columns):
        self.events.append(f"watch {call.index}")
        self.names.append(call.name)
        self.columns.append(columns)
        self.calls.append(call)

    def end_step(self, result):
        self.events.append("end_step")
        self.results.append(result)

    def end_generation(self, failed):
        self.events.append("failed" if failed else "end_generation")


def step_events(layers):
    return ["begin_step", *(f"watch {layer}" for layer in range(layers)), "end_step"]


def forward(network, ids, **arguments):
    with torch.no_grad():
        return network(ids, **arguments).logits


IDS = torch.randint(5, 50, (2, 7), generator=torch.Generator().manual_seed(0))
