"""Record a network of your own, plainly and with its first token hidden."""

import torch
from torch import nn
from torch.nn import functional as F

import sinkscope
from sinkscope.attention import Hider, foreign, subscribed


class Attention(nn.Module):
    """Calls torch's attention, as most code does."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.inner, self.outer = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        query, key, value = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.outer(F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))


class Network(nn.Module):
    """Three layers that write from left to right."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 24)
        self.layers = nn.ModuleList(Attention(24, heads=4) for _ in range(3))

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x)
        return x @ self.embed.weight.T


class HideFirst(Hider):
    """Hides the first token from all queries."""

    def hide(self, call):
        return (torch.arange(call.keys) == 0)[None, None]


network = Network().eval()
ids = torch.randint(0, 50, (1, 17))
with torch.no_grad(), foreign(network, causal=True):
    with sinkscope.recording(network, out="plain.trace"):
        network(ids)
    with subscribed(network, HideFirst()), sinkscope.recording(network, out="hidden.trace"):
        network(ids)

trace = sinkscope.open_trace("plain.trace")
print(trace.layers)  # ('layers.0', 'layers.1', 'layers.2')
print(trace.column_sums[0, 2].shape)  # (4, 17): head, key
