"""Reads an explorer page as its script does, so that tests can compare every number with the trace."""

import base64
import json
import re
import zlib

import numpy as np

from sinkscope.figures.explorer.recorded_views import CODES, TYPES, Tiles


def decode(scale, codes):
    """The value of each code, 0 for code 0."""
    low, high = scale
    values = low * (high / low) ** ((np.arange(CODES + 1) - 1) / (CODES - 1))
    values[0] = 0
    return values.astype(np.float32)[codes]


def read_tile(tiles, name):
    """An array as the page reads it."""
    about = tiles.index[name]
    values = np.frombuffer(zlib.decompress(tiles.content[name]), TYPES[about["type"]]).reshape(about["shape"])
    return np.cumsum(values, axis=0, dtype=values.dtype) if about["delta"] else values


class ReadPage:
    """The document and the tiles that a page holds."""

    def __init__(self, html):
        self.html = html
        self.document = json.loads(
            re.search(r'<script type="application/json" id="explorer">(.*?)</script>', html, re.DOTALL)[1]
        )
        blocks = re.findall(r'<script type="text/plain" id="tile:([^"]+)">([^<]*)</script>', html)
        self.tiles = Tiles(self.document["tiles"], {name: base64.b64decode(text) for name, text in blocks})
        self.traces = self.document["traces"]

    def tile(self, number, name):
        return read_tile(self.tiles, f"{number}/{name}")

    def quantity(self, number, name):
        return next(one for one in self.traces[number]["quantities"] if one["name"] == name)

    def layer(self, number, name, layer):
        """Values [step, head, position] of one layer, as the page shows them."""
        return decode(self.quantity(number, name)["layers"][layer], self.tile(number, f"{name}/{layer}"))

    def confidence(self, number):
        codes = self.tile(number, "confidence")
        lowest, highest = self.traces[number]["confidenceRange"]
        return np.where(codes == 65535, np.nan, lowest + codes / 65534 * (highest - lowest))
