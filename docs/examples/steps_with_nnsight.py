"""nnsight at diffusion steps: the layer from which each written token is the network's first choice."""

import torch
from nnsight import NNsight

import sinkscope

model = sinkscope.load("lab-diffusion")
network = model.network
steps, rows = [], []


class Sampling(torch.nn.Module):
    """A whole generation as one call of a module, which nnsight can trace; each call of the network in it is a step."""

    def __init__(self):
        super().__init__()
        self.network = network

    def forward(self, prompt):
        return sinkscope.generate(model, prompt, length=16, steps=16, block=16, on_step=steps.append)


prompt = "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:"
sampling = NNsight(Sampling())
with torch.no_grad(), sampling.trace(prompt) as tracer:
    residuals = list().save()
    for _ in tracer.iter[:16]:
        residuals.append(
            torch.stack([layer.output[0] for layer in sampling.network.model.layers])
        )  # [layer, position, hidden]
for step, residual in zip(steps, residuals, strict=True):
    at = step.written[0] >= 0
    with torch.no_grad():
        first = network.lm_head(network.model.norm(residual[:, at])).argmax(-1) == step.written[0, at]
    layers = first.flip(0).cumprod(0).sum(0)  # how many of the last layers agree with what was written
    rows.extend(
        zip([step.number] * int(at.sum()), step.written[0, at].tolist(), (len(residual) - layers).tolist(), strict=True)
    )
print("step  wrote         from layer")
for number, token, layer in rows:
    print(f"{number:4}  {model.tokenizer.convert_ids_to_tokens(token)!r:12}  {layer:10}")
