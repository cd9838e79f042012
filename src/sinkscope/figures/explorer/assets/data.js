// The data of the page: what was embedded, or is fetched beside it, and how codes become numbers again.
const page = JSON.parse(document.getElementById("explorer").textContent);
const loaded = new Map(); // name of a tile → typed array
const underWay = new Set();
let whenLoaded = () => {};
let onProblem = () => {};

const TYPES = { u8: Uint8Array, u16: Uint16Array, i32: Int32Array, f32: Float32Array };

// The element that holds a tile. A large page is drawn while its end is still being read: then it waits for the end.
async function elementOf(name) {
  if (document.readyState === "loading" && !document.getElementById("tile:" + name)?.nextElementSibling)
    await new Promise((done) => addEventListener("DOMContentLoaded", done, { once: true }));
  return document.getElementById("tile:" + name);
}

async function bytesOf(name) {
  const element = await elementOf(name);
  if (element) {
    const text = element.textContent;
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const binary = atob(text);
    return Uint8Array.from(binary, (character) => character.charCodeAt(0));
  }
  const answer = await fetch(`data/${name.replaceAll("/", "-")}.bin`);
  if (!answer.ok) throw new Error(`data/${name} is not there (${answer.status})`);
  return new Uint8Array(await answer.arrayBuffer());
}

async function load(name) {
  const about = page.tiles[name];
  const stream = new Blob([await bytesOf(name)]).stream().pipeThrough(new DecompressionStream("deflate"));
  const values = new TYPES[about.type](await new Response(stream).arrayBuffer());
  if (about.delta) {
    const width = about.shape.slice(1).reduce((product, size) => product * size, 1);
    for (let at = width; at < values.length; at++) values[at] += values[at - width];
  }
  return values;
}

// Returns a tile, or null until it is there; the page is drawn again when it is.
function tile(name) {
  const found = loaded.get(name);
  if (found) return found;
  if (page.tiles[name] && !underWay.has(name)) {
    underWay.add(name);
    load(name).then(
      (values) => {
        loaded.set(name, values);
        whenLoaded();
      },
      (error) =>
        onProblem(
          location.protocol === "file:" && !document.getElementById("tile:" + name)
            ? "A browser reads the files of this folder only from a web server. Run “python -m http.server” in the folder and open the address it prints, or use “sinkscope explore --serve”."
            : `Part of the data could not be read: ${error.message}`,
        ),
    );
  }
  return null;
}

// The 256 values that codes stand for; see quantised.py.
function valuesOf([low, high]) {
  const table = new Float32Array(256);
  for (let code = 1; code < 256; code++) table[code] = low * (high / low) ** ((code - 1) / 254);
  return table;
}

class Recording {
  constructor(number) {
    this.number = number;
    Object.assign(this, page.traces[number]);
    this.byLayer = new Map();
    this.rolesByHead = new Map(this.roles.map((one) => [one.layer + "." + one.head, one]));
    this.tables = new Map();
    const moves = this.changes.filter((one) => !one[3]).length,
      movers = new Set(this.changes.map((one) => one[1] * this.heads + one[2])).size;
    this.movement = { moves, swaps: this.changes.length - moves, movers };
    this.hasMask = this.tokens.some(([, kind]) => kind === "mask");
    this.bytes = this.tokens.map(([label]) => /^␣*(<0x[0-9A-F]{2}>)+$/.test(label) && label.match(/[0-9A-F]{2}(?=>)/g).map((one) => parseInt(one, 16)));
    this.hasBytes = this.bytes.some(Boolean);
  }
  tile(name) {
    return tile(this.number + "/" + name);
  }
  has(name) {
    return page.tiles[this.number + "/" + name] !== undefined;
  }
  quantity(name) {
    return this.quantities.find((one) => one.name === name) ?? this.quantities[0];
  }
  clampLayer(layer) {
    return Math.min(layer, this.layers - 1);
  }
  clampHead(head) {
    return Math.min(head, this.heads - 1);
  }
  table(scale) {
    const key = scale.join();
    if (!this.tables.has(key)) this.tables.set(key, valuesOf(scale));
    return this.tables.get(key);
  }
  // Codes of a quantity for a layer and head (−1: the mean): the code of step and position is codes[start + step * stride + position].
  rows(name, layer, head) {
    const quantity = this.quantity(name),
      positions = this.positions;
    layer = this.clampLayer(layer);
    head = this.clampHead(head);
    if (layer < 0) {
      const codes = this.tile(quantity.name + "/all");
      return codes && { codes, start: 0, stride: positions, table: this.table(quantity.all), error: quantity.error };
    }
    if (head < 0 || quantity.heads === 1) {
      const codes = this.tile(quantity.name + "/mean");
      return (
        codes && {
          codes,
          start: layer * positions,
          stride: this.layers * positions,
          table: this.table(quantity.mean),
          error: quantity.error,
        }
      );
    }
    const mine = Math.floor((head * quantity.heads) / this.heads);
    if (!this.has(quantity.name + "/" + layer)) return this.sparseRows(quantity, layer, mine);
    const codes = this.tile(quantity.name + "/" + layer);
    return (
      codes && {
        codes,
        start: mine * positions,
        stride: quantity.heads * positions,
        table: this.table(quantity.layers[layer]),
        error: quantity.error,
      }
    );
  }
  // The smallest value that a code can stand for, and the largest of all steps; null where the quantity is not loaded.
  range(name, layer, head) {
    const rows = this.rows(name, layer, head);
    if (!rows) return null;
    const key = `${name}|${layer}|${head}`;
    this.ranges ??= new Map();
    if (!this.ranges.has(key)) {
      let most = 1;
      for (let step = 0; step < this.steps; step++)
        for (let at = rows.start + step * rows.stride, end = at + this.positions; at < end; at++)
          if (rows.codes[at] > most) most = rows.codes[at];
      this.ranges.set(key, [rows.table[1], rows.table[most]]);
    }
    return this.ranges.get(key);
  }
  // The largest value, without its sign, of a table of layers and heads; null where it is not loaded.
  largest(name) {
    const values = this.tile(name);
    if (!values) return null;
    this.tops ??= new Map();
    if (!this.tops.has(name)) this.tops.set(name, values.reduce((most, one) => (Number.isNaN(one) ? most : Math.max(most, Math.abs(one))), 0));
    return this.tops.get(name);
  }
  // A page that is too large for every head keeps the strongest columns of each: the others are shown as nothing.
  sparseRows(quantity, layer, head) {
    const key = `${quantity.name}|${layer}|${head}`;
    if (this.sparse?.key === key) return this.sparse;
    const keys = this.tile("strongest-keys/" + layer),
      sizes = this.tile("strongest/" + layer);
    if (quantity.name !== this.followed || !keys || !sizes) return null;
    const count = sizes.length / (this.steps * this.heads),
      scale = quantity.layers[layer],
      table = this.table(scale);
    const codes = new Uint8Array(this.steps * this.positions),
      unit = 254 / Math.log(scale[1] / scale[0]);
    for (let step = 0; step < this.steps; step++)
      for (let rank = 0; rank < count; rank++) {
        const at = (step * this.heads + head) * count + rank;
        if (sizes[at] > 0)
          codes[step * this.positions + keys[at]] = Math.max(0, Math.min(255, Math.round(Math.log(sizes[at] / scale[0]) * unit) + 1));
      }
    this.sparse = { key, codes, start: 0, stride: this.positions, table, error: quantity.error, sparse: true };
    return this.sparse;
  }
  // The exact size of a column where it was stored: the strongest of each step and head.
  exact(name, layer, head, step, position) {
    if (name !== this.followed || layer < 0 || head < 0) return null;
    const keys = this.tile("strongest-keys/" + this.clampLayer(layer)),
      sizes = this.tile("strongest/" + this.clampLayer(layer));
    if (!keys || !sizes) return null;
    const count = sizes.length / (this.steps * this.heads),
      start = (step * this.heads + this.clampHead(head)) * count;
    for (let rank = 0; rank < count; rank++) if (keys[start + rank] === position) return sizes[start + rank];
    return null;
  }
  value(name, layer, head, step, position) {
    const rows = this.rows(name, layer, head);
    if (!rows || step >= this.steps || position >= this.length(step)) return null;
    const exact = this.exact(this.quantity(name).name, layer, head, step, position);
    if (exact !== null) return { value: exact, exact: true };
    const code = rows.codes[rows.start + step * rows.stride + position];
    const below = code === 0 ? rows.table[1] : 0,
      gaps = this.quantity(name).gaps;
    return { value: rows.table[code], exact: false, error: rows.error, below, gaps, sparse: rows.sparse };
  }
  length(step) {
    return this.tile("lengths")?.[step] ?? this.positions;
  }
  width(name) {
    return page.tiles[this.number + "/" + name].shape[1];
  }
  token(step, position) {
    const tokens = this.tile("tokens");
    return tokens && position < this.width("tokens") ? tokens[step * this.width("tokens") + position] : 0;
  }
  text(number) {
    return this.tokens[number]?.[0] ?? "";
  }
  // How the token of a place reads; one of several that are the bytes of one character, as this character and a number.
  reading(step, position, number = this.token(step, position)) {
    return (this.hasBytes && this.characters(step).get(position)) || this.text(number);
  }
  characters(step) {
    if (this.inBytes?.step === step) return this.inBytes.found;
    const found = new Map();
    for (let first = 0; first < this.length(step); first++) {
      const lead = this.bytes[this.token(step, first)]?.[0] ?? 0,
        size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 0,
        bytes = [];
      let end = first;
      while (bytes.length < size && this.bytes[this.token(step, end)]) bytes.push(...this.bytes[this.token(step, end++)]);
      const character = new TextDecoder().decode(Uint8Array.from(bytes));
      if (size && bytes.length === size && !character.includes("\ufffd"))
        for (let place = first; place < end; place++) found.set(place, character + "₁₂₃₄"[place - first]);
    }
    if (this.tile("tokens")) this.inBytes = { step, found };
    return found;
  }
  // Which of KINDS the token of a place is, as a number; position −1 is none.
  kindAt(step, position) {
    if (position <= 0) return position + 1;
    const kind = KINDS.indexOf(this.tokens[this.token(step, position)]?.[1]);
    return kind < 0 ? KINDS.length - 1 : kind;
  }
  // The positions of the main sinks of a step, the commonest first: [position, heads, sum of strengths]; null until they are there.
  mainSinks(step) {
    const main = this.tile("main"),
      strength = this.tile("heads/strength"),
      size = this.layers * this.heads;
    if (!main || !strength || !this.tile("tokens")) return null;
    if (this.sinksOfStep?.step !== step) {
      const found = new Map();
      for (let at = step * size; at < (step + 1) * size; at++) {
        if (!main[at]) continue;
        const row = found.get(main[at]) ?? [main[at] - 1, 0, 0];
        row[1] += 1;
        row[2] += strength[at];
        found.set(main[at], row);
      }
      this.sinksOfStep = { step, rows: [...found.values()].sort((one, other) => other[1] - one[1]) };
    }
    return this.sinksOfStep.rows;
  }
  // The head whose main sink is the strongest of a step.
  strongestHead(step) {
    const size = this.layers * this.heads,
      strength = this.tile("heads/strength")?.subarray(step * size, (step + 1) * size);
    if (!strength) return null;
    const best = strength.reduce((best, one, at) => (one > (strength[best] || 0) ? at : best), 0);
    return { layer: Math.floor(best / this.heads), head: best % this.heads };
  }
  isMasked(step, position) {
    const masked = this.tile("masked");
    return Boolean(masked && masked[step * this.width("masked") + position]);
  }
  writtenIn(step, position) {
    const written = this.has("written") && this.tile("written");
    return written && position < this.width("written") ? written[step * this.width("written") + position] : 0;
  }
  confidence(step, position) {
    const codes = this.has("confidence") && this.tile("confidence");
    const code = codes && position < this.width("confidence") ? codes[step * this.width("confidence") + position] : 65535;
    const [lowest, highest] = this.confidenceRange;
    return code === 65535 ? null : lowest + (code / 65534) * (highest - lowest);
  }
  main(step, layer, head) {
    const main = this.tile("main");
    return main && layer >= 0 && head >= 0
      ? main[(step * this.layers + this.clampLayer(layer)) * this.heads + this.clampHead(head)] - 1
      : -1;
  }
  changesOf(layer, head) {
    if (!this.changesByHead) {
      this.changesByHead = new Map();
      for (const one of this.changes) {
        const key = one[1] + "." + one[2];
        if (!this.changesByHead.has(key)) this.changesByHead.set(key, []);
        this.changesByHead.get(key).push(one);
      }
    }
    return this.changesByHead.get(this.clampLayer(layer) + "." + this.clampHead(head)) ?? [];
  }
  // Step and position of every token that is written.
  commits() {
    const written = this.has("written") && this.tile("written");
    if (!written) return [];
    if (!this.found) {
      this.found = [];
      const width = this.width("written");
      for (let at = 0; at < written.length; at++) if (written[at]) this.found.push([Math.floor(at / width), at % width]);
    }
    return this.found;
  }
  role(layer, head) {
    return this.rolesByHead.get(layer + "." + head);
  }
  // How many heads of the selection have a sink at each position: {position: heads}.
  sinks(layer, head, step) {
    const found = new Map();
    if (layer < 0) {
      const counts = this.tile("sink-heads"),
        width = this.width("sink-heads");
      if (counts)
        for (let position = 0; position < width; position++) {
          const count = counts[step * width + position];
          if (count) found.set(position, count);
        }
      return found;
    }
    layer = this.clampLayer(layer);
    if (!this.byLayer.has(layer)) {
      const rows = this.tile("sinks/" + layer);
      if (!rows) return found;
      const steps = Array.from({ length: this.steps }, () => []);
      for (let at = 0; at < rows.length; at += 3) steps[rows[at + 2]].push([rows[at], rows[at + 1]]);
      this.byLayer.set(layer, steps);
    }
    for (const [owner, position] of this.byLayer.get(layer)[step])
      if (head < 0 || owner === this.clampHead(head)) found.set(position, (found.get(position) ?? 0) + 1);
    return found;
  }
}
