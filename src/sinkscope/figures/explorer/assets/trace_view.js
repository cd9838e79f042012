// The views of one trace: its canvas and its heat map over the steps; the map of layers and heads is in heads_view.js.
const headName = (layer, head) =>
  layer < 0 ? "mean over all layers and heads" : head < 0 ? `mean over the heads of layer ${layer}` : `layer ${layer} head ${head}`;
const quoted = (text) => `“${text}”`;

// The smallest and the largest value of a quantity in the traces side by side, so that one colour is one value in all of them.
function rangeOf(name, layer, head) {
  const same = shown().filter((one) => one.quantity(name).name === name);
  const ranges = same.map((one) => one.range(name, layer, head)).filter(Boolean);
  return [Math.min(...ranges.map(([low]) => low)), Math.max(...ranges.map(([, top]) => top))];
}

class TraceView {
  constructor(template, recording) {
    this.recording = recording;
    this.root = template.content.cloneNode(true).firstElementChild;
    this.root.querySelector(".label").textContent = recording.label;
    this.tokens = this.root.querySelector(".tokens");
    this.heat = new Drawing(this.root.querySelector(".heat"), "heat map of attention over steps and positions");
    this.grids = [new ModelView(this.root.querySelector(".model-view"), recording), new HeadsView(this.root.querySelector(".heads-view"), recording)];
    this.root.querySelector(".only-masks").hidden = !recording.hasMask;
    this.makeTokens();
    follow(this.heat, {
      at: (x, y) => cellAt(this.heat.inside, recording.steps, recording.positions, x, y),
      tell: (step, position) => this.tellToken(step, position),
      choose: (step, token) => select({ step, token }),
    });
  }
  makeTokens() {
    const { recording } = this;
    this.spans = Array.from(
      { length: Math.max(recording.positions, recording.has("written") ? recording.width("written") : 0) },
      (_, position) => {
        const span = document.createElement("span");
        span.dataset.position = position;
        span.id = `token-${this.recording.number}-${position}`;
        span.setAttribute("role", "option");
        span.dir = "ltr";
        return span;
      },
    );
    this.breaks = new Map();
    this.states = [];
    this.tokens.replaceChildren(...this.spans);
    const positionOf = (event) => event.target.dataset?.position;
    this.tokens.addEventListener("click", (event) => {
      if (positionOf(event)) select({ token: Number(positionOf(event)) });
    });
    this.tokens.addEventListener("pointermove", (event) => {
      if (positionOf(event)) showTip(event, () => this.tellToken(stepOf(this.recording), Number(positionOf(event))));
      else hideTip();
    });
    this.tokens.addEventListener("pointerleave", hideTip);
  }
  tellToken(step, position) {
    const { recording } = this,
      { layer, head } = selection,
      quantity = recording.quantity(quantityOf(recording));
    if (position >= recording.length(step)) return `step ${step}, position ${position}: no token yet`;
    const written = recording.writtenIn(step, position),
      masked = recording.isMasked(step, position);
    const state = position < recording.promptLength ? "prompt" : masked ? "masked" : "written before";
    const lines = [`${place(recording, step, position)}, step ${step}: ${state}`];
    lines.push(`${quantity.label}: ${told(recording.value(quantity.name, layer, head, step, position), quantity.unit)}`);
    const heads = recording.sinks(layer, head, step).get(position);
    if (head >= 0 && recording.main(step, layer, head) === position)
      lines.push(`main sink of ${headName(recording.clampLayer(layer), recording.clampHead(head))}`);
    else if (heads) lines.push(head >= 0 ? "a sink" : `a sink in ${counted(heads, "head")}`);
    const confidence = recording.confidence(step, position);
    if (written) lines.push(`written in this step: ${quoted(recording.text(written))}`);
    if (confidence !== null) lines.push(`confidence ${number(confidence, 5)}`);
    return lines.join("\n");
  }

  // Canvas: one span a token; only what changed since the last drawing is touched.
  drawTokens(rows, shades) {
    const { recording } = this,
      step = stepOf(recording),
      { layer, head, token } = selection,
      table = heatRamp();
    const length = recording.length(step),
      main = recording.main(step, layer, head),
      sinks = recording.sinks(layer, head, step);
    let now = -1;
    for (let position = 0; position < this.spans.length; position++) {
      const span = this.spans[position],
        written = recording.writtenIn(step, position),
        inside = position < length,
        there = inside || written > 0;
      const text = written || (inside ? recording.token(step, position) : 0);
      if (written) now = position;
      const masked = !written && inside && recording.isMasked(step, position),
        shade = rows && inside ? shades[rows.codes[rows.start + step * rows.stride + position]] & 0xf8 : 0;
      const kinds = [
        position < recording.promptLength && "prompt",
        masked && "masked",
        written && "now",
        position === main ? "main" : head >= 0 && sinks.has(position) && "sink",
        position === token && "chosen",
      ]
        .filter(Boolean)
        .join(" ");
      const label = written || !inside ? recording.text(text) : recording.reading(step, position, text);
      const state = `${there}|${label}|${shade}|${kinds}|${dark()}`;
      if (this.states[position] === state) continue;
      this.states[position] = state;
      span.hidden = !there;
      span.className = kinds;
      const bare = masked ? "·" : label.replaceAll("␣", "") || "␣";
      if (span.textContent !== bare) span.textContent = bare;
      this.breakAfter(position, label === "↵");
      span.style.background = shade ? cssOf(table, shade) : "";
      span.style.color = shade ? inkOn(table, shade) : "";
      span.setAttribute("aria-selected", position === token);
      if (position === token || position === main)
        span.setAttribute("aria-label", `${masked ? "masked" : label}, position ${position}${kinds.includes("main") ? ", main sink" : ""}`);
    }
    this.keepInSight(token >= 0 && token !== this.lastToken ? token : main >= 0 ? main : now);
    this.lastToken = token;
    this.tokens.setAttribute("aria-activedescendant", token >= 0 ? `token-${recording.number}-${token}` : "");
    const of = this.root.querySelector(".canvas-view .what");
    const left = Array.from({ length }, (_, position) => recording.isMasked(step, position)).filter(Boolean).length;
    of.textContent = `step ${step}: ${counted(length, "token")}${recording.hasMask ? ", " : "; "}${recording.hasMask ? `${left} masked; ` : ""}shaded by ${recording.quantity(quantityOf(recording)).label}, ${headName(recording.clampLayer(layer), recording.clampHead(head))}`;
  }
  // Scrolls the canvas, never the page, to a token.
  keepInSight(position) {
    if (position === this.inSight) return;
    this.inSight = position;
    const span = this.spans[position],
      box = this.tokens;
    if (!span || box.matches(":hover")) return;
    const top = span.offsetTop,
      bottom = top + span.offsetHeight;
    if (top < box.scrollTop + 4 || bottom > box.scrollTop + box.clientHeight - 4) box.scrollTop = top - box.clientHeight / 2;
  }
  breakAfter(position, wanted) {
    const there = this.breaks.get(position);
    if (wanted && !there) {
      const line = document.createElement("br");
      this.spans[position].after(line);
      this.breaks.set(position, line);
    }
    if (!wanted && there) {
      there.remove();
      this.breaks.delete(position);
    }
  }

  // Heat map: positions across, steps down, as in the figures.
  drawHeat(rows, shades, [low, top]) {
    if (!this.heat.size()) return;
    const { recording } = this,
      { layer, head } = selection,
      box = this.heat.inside,
      name = quantityOf(recording);
    this.root.querySelector(".heat-view .what").textContent =
      `${recording.quantity(name).label}, ${headName(recording.clampLayer(layer), recording.clampHead(head))}`;
    if (!rows) return;
    this.heat.paint(`${name}|${layer}|${head}|${selection.scale}|${loaded.size}|${low}|${top}`, (pen) => {
      paintShades(
        pen,
        box,
        recording.steps,
        recording.positions,
        (step, position) => (position < recording.length(step) ? shades[rows.codes[rows.start + step * rows.stride + position]] : -1),
        heatRamp(),
        this.heat.ratio,
      );
      axes(pen, box, {
        x: [0, recording.positions],
        y: [0, recording.steps],
        xLabel: "position in the canvas",
        yLabel: "step",
        down: true,
      });
      legendBar(
        this.root.querySelector(".heat-view .bar"),
        heatRamp(),
        selection.scale === "log" ? number(low, 2) : "0",
        number(top, 3),
        recording.quantity(name).unit,
      );
      this.drawHeatTrack(box);
    });
    this.drawHeatMarks(box);
    const text = this.heat.place.getAttribute("aria-label");
    const label = `heat map: ${recording.quantity(name).label} by step and position, ${headName(layer, head)}; largest ${number(recording.range(name, layer, head)[1], 3)}`;
    if (text !== label) this.heat.place.setAttribute("aria-label", label);
  }
  // What lies over the heat map in all steps: the end of the prompt, commits and main sinks.
  drawHeatTrack(box) {
    const { recording } = this,
      { layer, head } = selection,
      pen = this.heat.pen(this.heat.track);
    const tall = box.height / recording.steps,
      wide = box.width / recording.positions;
    const x = (position) => box.left + (position + 0.5) * wide,
      y = (at) => box.top + (at + 0.5) * tall;
    if (recording.promptLength) {
      const at = box.left + recording.promptLength * wide;
      pen.beginPath();
      pen.moveTo(at, box.top);
      pen.lineTo(at, box.top + box.height);
      strokeOnMap(pen, 1, [4, 4]);
    }
    this.drawCommits(pen, x, y);
    if (layer >= 0) {
      const mine = recording.clampHead(head),
        owners = head >= 0 ? [mine] : Array.from({ length: recording.heads }, (_, one) => one);
      for (const owner of owners) this.drawTrack(pen, owner, x, y, tall, head >= 0);
    }
    this.root.querySelector(".heat-view .marks").textContent =
      layer < 0
        ? "small dots: tokens when they are written"
        : head >= 0
          ? "thick line: main sink · ◆ move · ✕ swap · small dots: tokens when they are written"
          : "lines: main sinks of the layer’s heads · small dots: tokens when they are written";
  }
  // The chosen step and token.
  drawHeatMarks(box) {
    const { recording } = this,
      { token } = selection,
      step = stepOf(recording),
      pen = this.heat.pen(this.heat.marks);
    const tall = box.height / recording.steps,
      wide = box.width / recording.positions;
    frameOnMap(pen, box.left - 1, box.top + step * tall - 0.5, box.width + 2, Math.max(2, tall + 1));
    if (token < 0 || token >= recording.positions) return;
    pen.beginPath();
    pen.rect(box.left + token * wide - 1, box.top, Math.max(2, wide + 2), box.height);
    strokeOnMap(pen, 1, [2, 3]);
  }
  drawCommits(pen, x, y) {
    pen.fillStyle = colour("mark");
    pen.strokeStyle = colour("casing");
    for (const [step, position] of this.recording.commits()) {
      if (position >= this.recording.positions) continue;
      pen.beginPath();
      pen.arc(x(position), y(step), 1.6, 0, 7);
      pen.stroke();
      pen.fill();
    }
  }
  drawTrack(pen, head, x, y, tall, alone) {
    const { recording } = this,
      layer = recording.clampLayer(selection.layer);
    pen.beginPath();
    for (let step = 0; step < recording.steps; step++) {
      const main = recording.main(step, layer, head);
      if (main < 0) continue;
      pen.moveTo(x(main), y(step) - tall / 2);
      pen.lineTo(x(main), y(step) + tall / 2);
    }
    strokeOnMap(pen, alone ? 2 : 1.2);
    if (!alone) return;
    for (const [step, , , swap] of recording.changesOf(layer, head)) {
      const from = recording.main(step - 1, layer, head),
        to = recording.main(step, layer, head),
        at = y(step) - tall / 2;
      pen.beginPath();
      pen.moveTo(x(from), at);
      pen.lineTo(x(to), at);
      strokeOnMap(pen, 1.2, swap ? [3, 3] : []);
      changeMark(pen, x(to), at, swap, true);
    }
  }

  draw() {
    const { recording } = this,
      { layer, head } = selection,
      rows = recording.rows(quantityOf(recording), layer, head);
    const range = rangeOf(quantityOf(recording), layer, head);
    const key = `${quantityOf(recording)}|${layer}|${head}|${selection.scale}|${Boolean(rows)}|${range}`;
    if (rows && this.shadesKey !== key) {
      this.shades = codeColours(rows.table, ...range, selection.scale === "log");
      this.shadesKey = key;
    }
    this.drawTokens(rows, this.shades ?? new Uint8Array(256));
    this.drawHeat(rows, this.shades, range);
    for (const one of this.grids) one.draw();
  }
}

// A diamond for a move, a cross for a swap: told apart without colour.
function changeMark(pen, x, y, swap, onMap = false) {
  const stroke = () => (onMap ? strokeOnMap(pen, 1.6) : pen.stroke());
  pen.beginPath();
  if (swap) {
    pen.moveTo(x - 4, y - 4);
    pen.lineTo(x + 4, y + 4);
    pen.moveTo(x + 4, y - 4);
    pen.lineTo(x - 4, y + 4);
    stroke();
    return;
  }
  pen.moveTo(x, y - 5);
  pen.lineTo(x + 5, y);
  pen.lineTo(x, y + 5);
  pen.lineTo(x - 5, y);
  pen.closePath();
  if (onMap) stroke();
  pen.fillStyle = pen.strokeStyle;
  pen.fill();
}
