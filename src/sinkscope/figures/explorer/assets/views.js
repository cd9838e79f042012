// The views of one trace: its canvas, its heat map over the steps, and its map of layers and heads.
const STATISTICS = {
  moves: { tile: "moves", label: "moves of the main sink, over all steps", unit: "moves" },
  swaps: { tile: "swaps", label: "swaps of the main sink, over all steps", unit: "swaps" },
  steps: { tile: "steps-with", label: "steps with a main sink", unit: "steps" },
  drift: { tile: "drift", label: "drift of the main sink", unit: "positions a step", signed: true },
  strength: { tile: "strength", label: "main sink’s column in this step", unit: "queries’ worth", each: true },
  counts: { tile: "counts", label: "sinks in this step", unit: "sinks", each: true },
  shares: { tile: "shares", label: "share of attention on sinks in this step", unit: "of all attention", each: true },
};
const LETTERS = { idle: "i", broadcast: "b", carrier: "c", mixed: "m", unclear: "?" };
const headName = (layer, head) => (layer < 0 ? "mean over all layers and heads" : head < 0 ? `mean over the heads of layer ${layer}` : `layer ${layer} head ${head}`);
const quoted = (text) => `“${text}”`;

class TraceView {
  constructor(template, recording) {
    this.recording = recording;
    this.root = template.content.cloneNode(true).firstElementChild;
    this.root.querySelector(".label").textContent = recording.label;
    this.tokens = this.root.querySelector(".tokens");
    this.heat = new Drawing(this.root.querySelector(".heat"), "heat map of attention over steps and positions");
    this.heads = new Drawing(this.root.querySelector(".heads"), "map of layers and heads");
    this.statistic = this.root.querySelector(".statistic");
    for (const [name, { label }] of Object.entries(STATISTICS)) this.statistic.add(new Option(label, name));
    this.statistic.addEventListener("change", () => select({ statistic: this.statistic.value }));
    this.makeTokens();
    follow(this.heat, {
      over: (x, y) => { const at = this.heatPoint(x, y); return at && this.tellToken(...at); },
      choose: (x, y) => { const at = this.heatPoint(x, y); if (at) select({ step: at[0], token: at[1] }); },
    });
    follow(this.heads, {
      over: (x, y) => { const at = this.headPoint(x, y); return at && this.tellHead(...at); },
      choose: (x, y) => { const at = this.headPoint(x, y); if (at) select({ layer: at[0], head: at[1] }); },
    });
  }
  makeTokens() {
    this.spans = Array.from({ length: this.recording.positions }, (_, position) => {
      const span = document.createElement("span");
      span.dataset.position = position;
      span.id = `token-${this.recording.number}-${position}`;
      span.setAttribute("role", "option");
      span.dir = "ltr";
      return span;
    });
    this.breaks = new Map();
    this.states = [];
    this.tokens.replaceChildren(...this.spans);
    const positionOf = (event) => event.target.dataset?.position;
    this.tokens.addEventListener("click", (event) => { if (positionOf(event)) select({ token: Number(positionOf(event)) }); });
    this.tokens.addEventListener("pointermove", (event) => { if (positionOf(event)) showTip(event, this.tellToken(stepOf(this.recording), Number(positionOf(event)))); else hideTip(); });
    this.tokens.addEventListener("pointerleave", hideTip);
  }
  tellToken(step, position) {
    const { recording } = this, { layer, head } = selection, quantity = recording.quantity(quantityOf(recording));
    if (position >= recording.length(step)) return `step ${step}, position ${position}: no token yet`;
    const written = recording.writtenIn(step, position), masked = recording.isMasked(step, position);
    const state = position < recording.promptLength ? "prompt" : masked ? "masked" : "written before";
    const lines = [`${quoted(recording.text(recording.token(step, position)))} at position ${position}, step ${step}: ${state}`];
    lines.push(`${quantity.label}: ${told(recording.value(quantity.name, layer, head, step, position), quantity.unit)}`);
    const heads = recording.sinks(layer, head, step).get(position);
    if (head >= 0 && recording.main(step, layer, head) === position) lines.push(`main sink of ${headName(recording.clampLayer(layer), recording.clampHead(head))}`);
    else if (heads) lines.push(head >= 0 ? "a sink" : `a sink in ${counted(heads, "head")}`);
    const confidence = recording.confidence(step, position);
    if (written) lines.push(`written in this step: ${quoted(recording.text(written))}`);
    if (confidence !== null) lines.push(`confidence ${number(confidence, 5)}`);
    return lines.join("\n");
  }
  tellHead(layer, head) {
    const { recording } = this, lines = [`layer ${layer} head ${head}`], step = stepOf(recording), role = recording.role(layer, head);
    for (const [name, one] of Object.entries(STATISTICS)) {
      const value = this.statisticAt(name, layer, head, step);
      lines.push(`${one.label}: ${value === null || Number.isNaN(value) ? "none" : `${number(value, 7)} ${one.unit}`}`);
    }
    const main = recording.main(step, layer, head);
    if (main >= 0) lines.push(`main sink in step ${step}: ${quoted(recording.text(recording.token(step, main)))} at position ${main}`);
    if (role) lines.push(`role of its sink: ${role.role}`);
    return lines.join("\n");
  }
  statisticAt(name, layer, head, step) {
    const values = this.recording.tile("heads/" + STATISTICS[name].tile), { layers, heads } = this.recording;
    return values && values[(STATISTICS[name].each ? step * layers * heads : 0) + layer * heads + head];
  }

  // Canvas: one span a token; only what changed since the last drawing is touched.
  drawTokens(rows, shades) {
    const { recording } = this, step = stepOf(recording), { layer, head, token } = selection, table = heatRamp();
    const length = recording.length(step), main = recording.main(step, layer, head), sinks = recording.sinks(layer, head, step);
    let now = -1;
    for (let position = 0; position < this.spans.length; position++) {
      if (recording.writtenIn(step, position)) now = position;
      const span = this.spans[position], there = position < length, text = there ? recording.token(step, position) : 0;
      const masked = there && recording.isMasked(step, position), shade = rows && there ? shades[rows.codes[rows.start + step * rows.stride + position]] : 0;
      const kinds = [
        position < recording.promptLength && "prompt", masked && "masked", recording.writtenIn(step, position) && "now",
        position === main ? "main" : head >= 0 && sinks.has(position) && "sink", position === token && "chosen",
      ].filter(Boolean).join(" ");
      const state = `${there}|${text}|${shade}|${kinds}|${dark()}`;
      if (this.states[position] === state) continue;
      this.states[position] = state;
      span.hidden = !there;
      span.className = kinds;
      const label = recording.text(text);
      const bare = masked ? "·" : label.replaceAll("␣", "") || "␣";
      if (span.textContent !== bare) span.textContent = bare;
      this.breakAfter(position, label === "↵");
      span.style.background = shade ? cssOf(table, shade) : "";
      span.style.color = shade ? (isBright(table, shade) ? "#111" : "#fff") : "";
      span.setAttribute("aria-selected", position === token);
      if (position === token || position === main) span.setAttribute("aria-label", `${masked ? "masked" : label}, position ${position}${kinds.includes("main") ? ", main sink" : ""}`);
    }
    this.keepInSight(token >= 0 && token !== this.lastToken ? token : main >= 0 ? main : now);
    this.lastToken = token;
    this.tokens.setAttribute("aria-activedescendant", token >= 0 ? `token-${recording.number}-${token}` : "");
    const of = this.root.querySelector(".canvas-view .what");
    const left = Array.from({ length }, (_, position) => recording.isMasked(step, position)).filter(Boolean).length;
    of.textContent = `step ${step}: ${counted(length, "token")}, ${left} masked; shaded by ${recording.quantity(quantityOf(recording)).label}, ${headName(recording.clampLayer(layer), recording.clampHead(head))}`;
  }
  // Scrolls the canvas, never the page, to a token.
  keepInSight(position) {
    const span = this.spans[position], box = this.tokens;
    if (!span || box.matches(":hover")) return;
    const top = span.offsetTop, bottom = top + span.offsetHeight;
    if (top < box.scrollTop + 4 || bottom > box.scrollTop + box.clientHeight - 4) box.scrollTop = top - box.clientHeight / 2;
  }
  breakAfter(position, wanted) {
    const there = this.breaks.get(position);
    if (wanted && !there) { const line = document.createElement("br"); this.spans[position].after(line); this.breaks.set(position, line); }
    if (!wanted && there) { there.remove(); this.breaks.delete(position); }
  }

  // Heat map: positions across, steps down, as in the figures.
  get heatBox() { return { left: 42, top: 6, width: this.heat.width - 50, height: this.heat.height - 44 }; }
  heatPoint(x, y) {
    const box = this.heatBox, step = Math.floor(((y - box.top) / box.height) * this.recording.steps), position = Math.floor(((x - box.left) / box.width) * this.recording.positions);
    return step >= 0 && step < this.recording.steps && position >= 0 && position < this.recording.positions ? [step, position] : null;
  }
  drawHeat(rows, shades, top) {
    if (!this.heat.size()) return;
    const { recording } = this, { layer, head } = selection, box = this.heatBox, name = quantityOf(recording);
    this.root.querySelector(".heat-view .what").textContent = `${recording.quantity(name).label}, ${headName(recording.clampLayer(layer), recording.clampHead(head))}`;
    if (!rows) return;
    this.heat.paint(`${name}|${layer}|${head}|${selection.scale}|${loaded.has(recording.number + "/lengths")}`, (pen) => {
      paintShades(pen, box, recording.steps, recording.positions, (step, position) => (position < recording.length(step) ? shades[rows.codes[rows.start + step * rows.stride + position]] : -1), heatRamp(), this.heat.ratio);
      axes(pen, box, { x: [0, recording.positions], y: [0, recording.steps], xLabel: "position in the canvas", yLabel: "step", down: true });
      legendBar(this.root.querySelector(".heat-view .bar"), heatRamp(), selection.scale === "log" ? number(rows.table[1], 2) : "0", number(top, 3), recording.quantity(name).unit);
    });
    this.drawHeatMarks(box);
    const text = this.heat.place.getAttribute("aria-label");
    const label = `heat map: ${recording.quantity(name).label} by step and position, ${headName(layer, head)}; largest ${number(top, 3)}`;
    if (text !== label) this.heat.place.setAttribute("aria-label", label);
  }
  drawHeatMarks(box) {
    const { recording } = this, { layer, head, token } = selection, step = stepOf(recording), pen = this.heat.pen(this.heat.marks);
    const tall = box.height / recording.steps, wide = box.width / recording.positions;
    const x = (position) => box.left + (position + 0.5) * wide, y = (at) => box.top + (at + 0.5) * tall;
    pen.strokeStyle = colour("ink"); pen.setLineDash([4, 4]); pen.globalAlpha = 0.6;
    if (recording.promptLength) { const at = box.left + recording.promptLength * wide; pen.beginPath(); pen.moveTo(at, box.top); pen.lineTo(at, box.top + box.height); pen.stroke(); }
    pen.setLineDash([]); pen.globalAlpha = 1;
    this.drawCommits(pen, x, y);
    if (layer >= 0) {
      const mine = recording.clampHead(head), owners = head >= 0 ? [mine] : Array.from({ length: recording.heads }, (_, one) => one);
      pen.strokeStyle = colour("accent"); pen.fillStyle = colour("accent");
      for (const owner of owners) this.drawTrack(pen, owner, x, y, tall, head >= 0);
    }
    pen.strokeStyle = colour("swap"); pen.lineWidth = Math.max(1.5, Math.min(3, tall));
    pen.strokeRect(box.left - 1, box.top + step * tall - 0.5, box.width + 2, Math.max(2, tall + 1));
    if (token >= 0 && token < recording.positions) {
      pen.strokeStyle = colour("ink"); pen.lineWidth = 1; pen.setLineDash([2, 3]);
      pen.strokeRect(box.left + token * wide - 1, box.top, Math.max(2, wide + 2), box.height); pen.setLineDash([]);
    }
    const marks = this.root.querySelector(".heat-view .marks");
    const text = layer < 0 ? "small dots: tokens when they are written" : head >= 0 ? "thick line: main sink · ◆ move · ✕ swap · small dots: tokens when they are written" : "lines: main sinks of the layer’s heads · small dots: tokens when they are written";
    if (marks.textContent !== text) marks.textContent = text;
  }
  drawCommits(pen, x, y) {
    const { recording } = this, written = recording.has("written") && recording.tile("written");
    if (!written) return;
    const width = recording.width("written");
    pen.fillStyle = colour("soft");
    if (!this.commits) { this.commits = []; for (let at = 0; at < written.length; at++) if (written[at]) this.commits.push([Math.floor(at / width), at % width]); }
    for (const [step, position] of this.commits) if (position < recording.positions) { pen.beginPath(); pen.arc(x(position), y(step), 1.6, 0, 7); pen.fill(); }
  }
  drawTrack(pen, head, x, y, tall, alone) {
    const { recording } = this, layer = recording.clampLayer(selection.layer);
    pen.lineWidth = alone ? 2.5 : 1.2;
    pen.beginPath();
    for (let step = 0; step < recording.steps; step++) {
      const main = recording.main(step, layer, head);
      if (main < 0) continue;
      pen.moveTo(x(main), y(step) - tall / 2); pen.lineTo(x(main), y(step) + tall / 2);
    }
    pen.stroke();
    if (!alone) return;
    for (const [step, , , swap] of recording.changesOf(layer, head)) {
      const from = recording.main(step - 1, layer, head), to = recording.main(step, layer, head), at = y(step) - tall / 2;
      pen.lineWidth = 1.2; pen.setLineDash(swap ? [3, 3] : []);
      pen.beginPath(); pen.moveTo(x(from), at); pen.lineTo(x(to), at); pen.stroke(); pen.setLineDash([]);
      pen.lineWidth = 1.6;
      changeMark(pen, x(to), at, swap);
    }
  }

  // Layers and heads
  get headBox() { return { left: 42, top: 6, width: this.heads.width - 50, height: this.heads.height - 44 }; }
  headPoint(x, y) {
    const box = this.headBox, head = Math.floor(((x - box.left) / box.width) * this.recording.heads), layer = this.recording.layers - 1 - Math.floor(((y - box.top) / box.height) * this.recording.layers);
    return layer >= 0 && layer < this.recording.layers && head >= 0 && head < this.recording.heads ? [layer, head] : null;
  }
  drawHeads() {
    const { recording } = this, { layers, heads } = recording, about = STATISTICS[selection.statistic], step = stepOf(recording);
    if (this.statistic.value !== selection.statistic) this.statistic.value = selection.statistic;
    const values = recording.tile("heads/" + about.tile);
    if (!this.heads.size() || !values) return;
    const start = about.each ? step * layers * heads : 0, box = this.headBox;
    if (!this.tops?.has(about.tile)) (this.tops ??= new Map()).set(about.tile, values.reduce((most, one) => (Number.isNaN(one) ? most : Math.max(most, about.signed ? Math.abs(one) : one)), 0) || 1);
    const top = this.tops.get(about.tile), table = about.signed ? differenceRamp() : heatRamp();
    const shade = (layer, head) => { const value = values[start + layer * heads + head]; return Number.isNaN(value) ? -1 : Math.round(about.signed ? 127.5 + (127.5 * value) / top : (255 * value) / top); };
    this.heads.paint(`${about.tile}|${about.each ? step : ""}`, (pen) => {
      paintShades(pen, box, layers, heads, (row, head) => shade(layers - 1 - row, head), table, this.heads.ratio);
      axes(pen, box, { x: [0, heads], y: [0, layers], xLabel: "head", yLabel: "layer", cells: true });
      const wide = box.width / heads, tall = box.height / layers;
      if (Math.min(wide, tall) < 13) return;
      pen.textAlign = "center"; pen.textBaseline = "middle";
      for (let layer = 0; layer < layers; layer++)
        for (let head = 0; head < heads; head++) {
          const here = shade(layer, head), role = recording.role(layer, head), value = values[start + layer * heads + head];
          pen.fillStyle = here < 0 ? colour("soft") : isBright(table, here) ? "#111" : "#fff";
          const text = [here < 0 ? "–" : wide > 34 ? number(value, 3) : "", role ? (wide > 74 ? role.role : LETTERS[role.role] ?? role.role[0]) : ""].filter(Boolean).join(wide > 74 ? " " : "·");
          pen.fillText(text, box.left + (head + 0.5) * wide, box.top + (layers - layer - 0.5) * tall);
        }
    });
    const pen = this.heads.pen(this.heads.marks), layer = recording.clampLayer(selection.layer), head = recording.clampHead(selection.head);
    const wide = box.width / heads, tall = box.height / layers;
    if (layer >= 0) {
      pen.lineWidth = 3; pen.strokeStyle = colour("swap");
      if (head >= 0) pen.strokeRect(box.left + head * wide + 1, box.top + (layers - 1 - layer) * tall + 1, wide - 2, tall - 2);
      else pen.strokeRect(box.left + 1, box.top + (layers - 1 - layer) * tall + 1, box.width - 2, tall - 2);
    }
    legendBar(this.root.querySelector(".heads-view .bar"), table, about.signed ? number(-top, 3) : "0", number(top, 3), about.unit);
    this.root.querySelector(".heads-view .marks").textContent = recording.roles.length ? "roles: " + [...new Set(recording.roles.map((one) => one.role))].map((role) => `${LETTERS[role] ?? role[0]} ${role}`).join(", ") : "– no main sink";
    const value = layer >= 0 && head >= 0 ? values[start + layer * heads + head] : null;
    this.heads.place.setAttribute("aria-label", `map of layers and heads: ${about.label}; largest ${number(top, 3)} ${about.unit}${value === null ? "" : `; layer ${layer} head ${head}: ${number(value, 4)}`}`);
  }
  draw() {
    const { recording } = this, { layer, head } = selection, rows = recording.rows(quantityOf(recording), layer, head);
    const key = `${quantityOf(recording)}|${layer}|${head}|${selection.scale}|${Boolean(rows)}`;
    if (rows && this.shadesKey !== key) {
      let most = 1;
      for (let step = 0; step < recording.steps; step++)
        for (let at = rows.start + step * rows.stride, end = at + recording.positions; at < end; at++) if (rows.codes[at] > most) most = rows.codes[at];
      this.top = rows.table[most];
      this.shades = codeColours(rows.table, this.top, selection.scale === "log");
      this.shadesKey = key;
    }
    this.drawTokens(rows, this.shades ?? new Uint8Array(256));
    this.drawHeat(rows, this.shades, this.top);
    this.drawHeads();
  }
}

// A diamond for a move, a cross for a swap: told apart without colour.
function changeMark(pen, x, y, swap) {
  pen.beginPath();
  if (swap) { pen.moveTo(x - 4, y - 4); pen.lineTo(x + 4, y + 4); pen.moveTo(x + 4, y - 4); pen.lineTo(x - 4, y + 4); pen.stroke(); return; }
  pen.moveTo(x, y - 5); pen.lineTo(x + 5, y); pen.lineTo(x, y + 5); pen.lineTo(x - 5, y); pen.closePath(); pen.fill();
}
