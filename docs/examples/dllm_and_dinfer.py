"""Record the samplers of dllm and dInfer, which have no callbacks."""

import torch
from dinfer import BlockIteratorFactory, BlockWiseDiffusionLLM, ThresholdParallelDecoder
from dllm.core.samplers import MDLMSampler

import sinkscope

model, prompt = sinkscope.load("GSAI-ML/LLaDA-8B-Instruct"), "What is the capital of France?"
sampler = MDLMSampler(model.network, model.tokenizer)  # dllm
with sinkscope.recording(model, out="dllm.trace"), sinkscope.following(model, sampler="dllm") as steps:
    steps.committed(sampler.sample([model.encode(prompt)], max_new_tokens=64, steps=64, block_size=16))


class Told(ThresholdParallelDecoder):
    """Says what dInfer wrote, whose loop keeps its canvas to itself."""

    def decode(self, logits, start, end, x, *threshold):
        super().decode(logits, start, end, x, *threshold)
        steps.committed(x.data)


decoder = Told(0.0, threshold=0.9, mask_id=model.card.mask_id, eos_id=model.card.eos_id)
sampler = BlockWiseDiffusionLLM(model.network, decoder, BlockIteratorFactory())
with sinkscope.recording(model, out="dinfer.trace"), sinkscope.following(model, sampler="dInfer") as steps:
    sampler.generate(torch.tensor([model.encode(prompt)]), gen_length=64, block_length=16)
