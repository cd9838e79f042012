// The maps of layers and heads of one trace: the kinds of the main sinks, and one statistic.
const STATISTICS = {
  strength: { tile: "strength", label: "main sink’s column in this step", each: true },
  moves: { tile: "moves", label: "moves of the main sink, over all steps", unit: "moves" },
  swaps: { tile: "swaps", label: "swaps of the main sink, over all steps", unit: "swaps" },
  steps: { tile: "steps-with", label: "steps with a main sink", unit: "steps" },
  drift: { tile: "drift", label: "drift of the main sink", unit: "positions a step", signed: true },
  counts: { tile: "counts", label: "sinks in this step, over all queries", unit: "sinks", each: true },
  shares: { tile: "shares", label: "share of attention on sinks in this step, over all queries", unit: "of all attention", each: true },
};
const LETTERS = { idle: "i", broadcast: "b", carrier: "c", undecided: "?" };

// A map of layers and heads with layer 0 at the bottom; subclasses draw the cells.
class GridView {
  constructor(figure, recording) {
    this.figure = figure;
    this.recording = recording;
    this.drawing = new Drawing(figure.querySelector(".heads"), "map of layers and heads");
    follow(this.drawing, {
      at: (x, y) => {
        const cell = cellAt(this.drawing.inside, recording.layers, recording.heads, x, y);
        return cell && [recording.layers - 1 - cell[0], cell[1]];
      },
      tell: (layer, head) => this.tell(layer, head),
      choose: (layer, head) => select({ layer, head }),
      paint: (sheet, layer, head) => this.paintSteps(sheet, layer, head),
    });
  }
  tell(layer, head, names = Object.keys(STATISTICS)) {
    const { recording } = this,
      lines = [`layer ${layer} head ${head}`],
      step = stepOf(recording),
      role = recording.role(layer, head);
    const main = recording.main(step, layer, head);
    if (main >= 0) lines.push(`main sink in step ${step}: ${place(recording, step, main)} (${KINDS[recording.kindAt(step, main)]})`);
    for (const name of names) {
      const value = this.statisticAt(name, layer, head, step);
      lines.push(`${STATISTICS[name].label}: ${value === null ? "…" : Number.isNaN(value) ? "none" : `${number(value, 7)} ${unitOf(name, recording)}`}`);
    }
    if (role) lines.push(`verdict on its sink: ${role.need}, ${role.role}`);
    return lines.join("\n");
  }
  // The head's attention over steps (down) and positions (across), small; returns whether it could be painted.
  paintSteps(sheet, layer, head) {
    const { recording } = this,
      rows = recording.rows(recording.followed, layer, head),
      box = { left: 0, top: 0, width: sheet.width, height: sheet.height };
    if (!rows) return false;
    const shades = codeColours(rows.table, ...recording.range(recording.followed, layer, head), false),
      pen = sheet.getContext("2d");
    pen.clearRect(0, 0, sheet.width, sheet.height);
    const shade = (step, position) => shades[rows.codes[rows.start + step * rows.stride + position]];
    const there = (step, position) => (position < recording.length(step) ? shade(step, position) : -1);
    paintShades(pen, box, recording.steps, recording.positions, there, heatRamp(), 1);
    const tall = sheet.height / recording.steps;
    frameOnMap(pen, 0, stepOf(recording) * tall, sheet.width, Math.max(2, tall));
    return true;
  }
  statisticAt(name, layer, head, step) {
    const values = this.recording.tile("heads/" + STATISTICS[name].tile),
      { layers, heads } = this.recording;
    return values && values[(STATISTICS[name].each ? step * layers * heads : 0) + layer * heads + head];
  }
  // Paints all cells where `key` has changed, with words where there is room for them, and frames the chosen ones.
  paintCells(key, table, shade, words) {
    const { layers, heads } = this.recording,
      box = this.drawing.inside,
      wide = box.width / heads,
      tall = box.height / layers;
    this.drawing.paint(key, (pen) => {
      paintShades(pen, box, layers, heads, (row, head) => shade(layers - 1 - row, head), table, this.drawing.ratio);
      axes(pen, box, { x: [0, heads], y: [0, layers], xLabel: "head", yLabel: "layer", cells: true });
      if (Math.min(wide, tall) < 5) return;
      pen.fillStyle = colour("panel");
      for (let head = 1; head < heads; head++) pen.fillRect(box.left + head * wide - 0.5, box.top, 1, box.height);
      for (let layer = 1; layer < layers; layer++) pen.fillRect(box.left, box.top + layer * tall - 0.5, box.width, 1);
      if (Math.min(wide, tall) < 11) return;
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      for (let layer = 0; layer < layers; layer++)
        for (let head = 0; head < heads; head++) {
          const here = shade(layer, head),
            text = words(layer, head, wide);
          if (!text) continue;
          pen.fillStyle = here < 0 ? colour("soft") : inkOn(table, here);
          pen.fillText(text, box.left + (head + 0.5) * wide, box.top + (layers - layer - 0.5) * tall);
        }
    });
    const pen = this.drawing.pen(this.drawing.marks),
      layer = this.recording.clampLayer(selection.layer),
      head = this.recording.clampHead(selection.head);
    if (layer < 0) return;
    const top = box.top + (layers - 1 - layer) * tall + 1;
    if (head >= 0) frameOnMap(pen, box.left + head * wide + 1, top, wide - 2, tall - 2);
    else frameOnMap(pen, box.left + 1, top, box.width - 2, tall - 2);
  }
}
const unitOf = (name, recording) => STATISTICS[name].unit ?? recording.quantity(recording.followed).unit;

// What the main sink of each head is, and beside it the tokens that are main sinks.
class ModelView extends GridView {
  tell(layer, head) {
    return `${super.tell(layer, head, ["strength", "moves", "swaps"])}\nbelow: its attention, steps down, positions across`;
  }
  draw() {
    const { recording } = this,
      { layers, heads } = recording,
      step = stepOf(recording),
      rows = recording.mainSinks(step);
    if (!this.drawing.size() || !rows) return;
    const kinds = new Map([[-1, 0], ...rows.map(([position]) => [position, recording.kindAt(step, position)])]),
      main = recording.tile("main").subarray(step * layers * heads),
      kind = (layer, head) => kinds.get(main[layer * heads + head] - 1);
    const key = `${step}|${dark()}`;
    this.paintCells(key, kindRamp(), kind, (layer, head, wide) => {
      const value = this.statisticAt("strength", layer, head, step);
      return wide > 26 && !Number.isNaN(value) ? number(value, 2) : "";
    });
    if (this.told === key) return;
    this.told = key;
    const counts = KINDS.map(() => 0);
    for (const [position, count] of rows) counts[kinds.get(position)] += count;
    counts[0] = layers * heads - counts.reduce((sum, one) => sum + one, 0);
    this.figure.querySelector(".what").textContent = `by kind of token, step ${step}; strength: its column (${unitOf("strength", recording)})`;
    this.figure.querySelector(".marks").replaceChildren(
      ...KINDS.map((name, at) => {
        const item = document.createElement("span");
        item.append(swatch(at), ` ${name}: ${counted(counts[at], "head")}`);
        item.hidden = !counts[at];
        return item;
      }),
    );
    this.listTokens(rows, step);
    const [first] = rows;
    const most = first ? `${place(recording, step, first[0])} is it in ${first[1]} of ${counted(layers * heads, "head")}` : "no head has one";
    this.drawing.place.setAttribute("aria-label", `map of layers and heads: kinds of main sinks in step ${step}; ${most}`);
  }
  // The commonest ten; a click follows the token.
  listTokens(rows, step) {
    const { recording } = this,
      body = this.figure.querySelector("tbody");
    body.replaceChildren(
      ...rows.slice(0, 10).map(([position, heads, strength]) => {
        const line = document.createElement("tr"),
          button = document.createElement("button");
        button.type = "button";
        button.append(swatch(recording.kindAt(step, position)), ` ${recording.reading(step, position)}`);
        button.setAttribute("aria-label", `follow ${place(recording, step, position)}`);
        button.addEventListener("click", () => select({ token: position }));
        for (const cell of [button, position, KINDS[recording.kindAt(step, position)], heads, number(strength / heads, 3)])
          line.insertCell().append(cell);
        return line;
      }),
    );
    this.figure.querySelector(".others").textContent =
      rows.length > 10 ? `and ${counted(rows.length - 10, "other token")}` : rows.length ? "" : "No head has a sink in this step.";
  }
}
function swatch(kind) {
  const sign = document.createElement("i");
  sign.className = "swatch";
  sign.style.background = cssOf(kindRamp(), kind);
  return sign;
}

class HeadsView extends GridView {
  constructor(figure, recording) {
    super(figure, recording);
    this.statistic = figure.querySelector(".statistic");
    for (const [name, { label }] of Object.entries(STATISTICS)) this.statistic.add(new Option(label, name));
    this.statistic.addEventListener("change", () => select({ statistic: this.statistic.value }));
  }
  draw() {
    const { recording } = this,
      { layers, heads } = recording,
      about = STATISTICS[selection.statistic],
      step = stepOf(recording);
    if (this.statistic.value !== selection.statistic) this.statistic.value = selection.statistic;
    const values = recording.tile("heads/" + about.tile);
    if (!this.drawing.size() || !values) return;
    const start = about.each ? step * layers * heads : 0;
    const tops = shown().map((one) => one.largest("heads/" + about.tile) ?? 0); // one colour is one value in the traces side by side
    const top = Math.max(...tops) || 1,
      table = about.signed ? differenceRamp() : heatRamp();
    const shade = (layer, head) => {
      const value = values[start + layer * heads + head];
      return Number.isNaN(value) ? -1 : Math.round(about.signed ? 127.5 + (127.5 * value) / top : (255 * value) / top);
    };
    this.paintCells(`${about.tile}|${about.each ? step : ""}|${top}`, table, shade, (layer, head, wide) => {
      const role = recording.role(layer, head),
        value = values[start + layer * heads + head];
      return [
        Number.isNaN(value) ? "–" : wide > 34 ? number(value, 3) : "",
        role ? (wide > 74 ? role.role : (LETTERS[role.role] ?? role.role[0])) : "",
      ]
        .filter(Boolean)
        .join(wide > 74 ? " " : "·");
    });
    const { layer, head } = selection;
    legendBar(this.figure.querySelector(".bar"), table, about.signed ? number(-top, 3) : "0", number(top, 3), unitOf(selection.statistic, recording));
    this.figure.querySelector(".marks").textContent = recording.roles.length
      ? "roles: " + [...new Set(recording.roles.map((one) => one.role))].map((role) => `${LETTERS[role] ?? role[0]} ${role}`).join(", ")
      : about.signed || selection.statistic === "strength"
        ? "– no main sink"
        : "";
    const value = layer >= 0 && head >= 0 ? values[start + layer * heads + head] : null;
    this.drawing.place.setAttribute(
      "aria-label",
      `map of layers and heads: ${about.label}; largest ${number(recording.largest("heads/" + about.tile), 3)} ${unitOf(selection.statistic, recording)}${value === null ? "" : `; layer ${layer} head ${head}: ${number(value, 4)}`}`,
    );
  }
}
