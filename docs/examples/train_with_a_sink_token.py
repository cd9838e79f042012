"""Turn a causal model into a diffusion model with a sink token, train it on text, save it and load it."""

import torch
import transformers

import sinkscope
from sinkscope.lab.canvases import CanvasMix
from sinkscope.lab.texts import TextCanvases, read_texts
from sinkscope.lab.training import masked_diffusion_loss

tokenizer = transformers.AutoTokenizer.from_pretrained("my-model")
network = transformers.AutoModelForCausalLM.from_pretrained("my-model", dtype=torch.float32)
if tokenizer.mask_token is None:
    tokenizer.add_special_tokens({"mask_token": "<|mask|>"})
    network.resize_token_embeddings(len(tokenizer))
network.config.is_causal = False
network.config.mask_token_id = tokenizer.mask_token_id
network.config.sinkscope_family = "dream"  # each logit predicts the token to its right, as in the causal model
sinkscope.add_sink_token(network, "token", tokenizer=tokenizer)

mix = CanvasMix(tokens=2048, lengths=(64, 128), weights=(0.5, 0.5))
canvases = TextCanvases(read_texts("my-text.jsonl"), tokenizer, mix)
optimiser = torch.optim.AdamW(network.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
network.train()
for update in range(100):
    loss = masked_diffusion_loss(
        network,
        canvases.draw(seed=0, update=update),
        mask_id=tokenizer.mask_token_id,
        whole_canvas_share=0.0,
        generator=torch.Generator().manual_seed(update),
        shift=True,
    )
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimiser.step()
    optimiser.zero_grad()

network.save_pretrained("my-sink-model")
tokenizer.save_pretrained("my-sink-model")
print(sinkscope.load("my-sink-model").card.sink_token)
