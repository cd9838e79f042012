// The map of layers and heads of one trace.
const STATISTICS = {
  moves: { tile: "moves", label: "moves of the main sink, over all steps", unit: "moves" },
  swaps: { tile: "swaps", label: "swaps of the main sink, over all steps", unit: "swaps" },
  steps: { tile: "steps-with", label: "steps with a main sink", unit: "steps" },
  drift: { tile: "drift", label: "drift of the main sink", unit: "positions a step", signed: true },
  strength: { tile: "strength", label: "main sink’s column in this step", unit: "queries’ worth", each: true },
  counts: { tile: "counts", label: "sinks in this step, over all queries", unit: "sinks", each: true },
  shares: { tile: "shares", label: "share of attention on sinks in this step, over all queries", unit: "of all attention", each: true },
};
const LETTERS = { idle: "i", broadcast: "b", carrier: "c", undecided: "?" };

class HeadsView {
  constructor(root, recording) {
    this.root = root;
    this.recording = recording;
    this.drawing = new Drawing(this.root.querySelector(".heads"), "map of layers and heads");
    this.statistic = this.root.querySelector(".statistic");
    for (const [name, { label }] of Object.entries(STATISTICS)) this.statistic.add(new Option(label, name));
    this.statistic.addEventListener("change", () => select({ statistic: this.statistic.value }));
    follow(this.drawing, {
      at: (x, y) => {
        const cell = cellAt(this.drawing.inside, recording.layers, recording.heads, x, y);
        return cell && [recording.layers - 1 - cell[0], cell[1]];
      },
      tell: (layer, head) => this.tell(layer, head),
      choose: (layer, head) => select({ layer, head }),
    });
  }
  tell(layer, head) {
    const { recording } = this,
      lines = [`layer ${layer} head ${head}`],
      step = stepOf(recording),
      role = recording.role(layer, head);
    for (const [name, one] of Object.entries(STATISTICS)) {
      const value = this.statisticAt(name, layer, head, step);
      lines.push(`${one.label}: ${value === null || Number.isNaN(value) ? "none" : `${number(value, 7)} ${one.unit}`}`);
    }
    const main = recording.main(step, layer, head);
    if (main >= 0) lines.push(`main sink in step ${step}: ${quoted(recording.text(recording.token(step, main)))} at position ${main}`);
    if (role) lines.push(`verdict on its sink: ${role.need}, ${role.role}`);
    return lines.join("\n");
  }
  statisticAt(name, layer, head, step) {
    const values = this.recording.tile("heads/" + STATISTICS[name].tile),
      { layers, heads } = this.recording;
    return values && values[(STATISTICS[name].each ? step * layers * heads : 0) + layer * heads + head];
  }

  draw() {
    const { recording } = this,
      { layers, heads } = recording,
      about = STATISTICS[selection.statistic],
      step = stepOf(recording);
    if (this.statistic.value !== selection.statistic) this.statistic.value = selection.statistic;
    const values = recording.tile("heads/" + about.tile);
    if (!this.drawing.size() || !values) return;
    const start = about.each ? step * layers * heads : 0,
      box = this.drawing.inside;
    const tops = shown().map((one) => one.largest("heads/" + about.tile) ?? 0); // one colour is one value in the traces side by side
    const top = Math.max(...tops) || 1,
      table = about.signed ? differenceRamp() : heatRamp();
    const shade = (layer, head) => {
      const value = values[start + layer * heads + head];
      return Number.isNaN(value) ? -1 : Math.round(about.signed ? 127.5 + (127.5 * value) / top : (255 * value) / top);
    };
    this.drawing.paint(`${about.tile}|${about.each ? step : ""}|${top}`, (pen) => {
      paintShades(pen, box, layers, heads, (row, head) => shade(layers - 1 - row, head), table, this.drawing.ratio);
      axes(pen, box, { x: [0, heads], y: [0, layers], xLabel: "head", yLabel: "layer", cells: true });
      const wide = box.width / heads,
        tall = box.height / layers;
      if (Math.min(wide, tall) < 13) return;
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      for (let layer = 0; layer < layers; layer++)
        for (let head = 0; head < heads; head++) {
          const here = shade(layer, head),
            role = recording.role(layer, head),
            value = values[start + layer * heads + head];
          pen.fillStyle = here < 0 ? colour("soft") : isBright(table, here) ? "#111" : "#fff";
          const text = [
            here < 0 ? "–" : wide > 34 ? number(value, 3) : "",
            role ? (wide > 74 ? role.role : (LETTERS[role.role] ?? role.role[0])) : "",
          ]
            .filter(Boolean)
            .join(wide > 74 ? " " : "·");
          pen.fillText(text, box.left + (head + 0.5) * wide, box.top + (layers - layer - 0.5) * tall);
        }
    });
    const pen = this.drawing.pen(this.drawing.marks),
      layer = recording.clampLayer(selection.layer),
      head = recording.clampHead(selection.head);
    const wide = box.width / heads,
      tall = box.height / layers;
    if (layer >= 0) {
      pen.lineWidth = 3;
      pen.strokeStyle = colour("swap");
      if (head >= 0) pen.strokeRect(box.left + head * wide + 1, box.top + (layers - 1 - layer) * tall + 1, wide - 2, tall - 2);
      else pen.strokeRect(box.left + 1, box.top + (layers - 1 - layer) * tall + 1, box.width - 2, tall - 2);
    }
    legendBar(this.root.querySelector(".heads-view .bar"), table, about.signed ? number(-top, 3) : "0", number(top, 3), about.unit);
    this.root.querySelector(".heads-view .marks").textContent = recording.roles.length
      ? "roles: " + [...new Set(recording.roles.map((one) => one.role))].map((role) => `${LETTERS[role] ?? role[0]} ${role}`).join(", ")
      : about.signed || selection.statistic === "strength"
        ? "– no main sink"
        : "";
    const value = layer >= 0 && head >= 0 ? values[start + layer * heads + head] : null;
    this.drawing.place.setAttribute(
      "aria-label",
      `map of layers and heads: ${about.label}; largest ${number(recording.largest("heads/" + about.tile), 3)} ${about.unit}${value === null ? "" : `; layer ${layer} head ${head}: ${number(value, 4)}`}`,
    );
  }
}
