// Line charts over the steps, the map of the difference, and single attention maps.
class Chart {
  constructor(figure, label) {
    this.figure = figure;
    this.drawing = new Drawing(figure.querySelector(".drawing"), label);
    this.what = figure.querySelector(".what");
    this.legend = figure.querySelector(".legend");
    const stepAt = (x) => { const box = this.box; return Math.max(0, Math.min(lastStep(), Math.round(((x - box.left) / box.width) * Math.max(1, lastStep())))); };
    follow(this.drawing, { over: (x) => this.tell?.(stepAt(x)) ?? "", choose: (x) => select({ step: stepAt(x) }) });
  }
  get box() { return { left: 52, top: 8, width: this.drawing.width - 64, height: this.drawing.height - 46 }; }
  // series: {values (by step, NaN: none), colour, dash, points, label}; marks: {step, value, swap}.
  draw({ series, low, high, yLabel, logarithmic, lines = [], marks = [], dots = [], tell, what }) {
    this.tell = tell;
    if (this.what.textContent !== what) this.what.textContent = what;
    if (!this.drawing.size()) return;
    const box = this.box, pen = this.drawing.pen(this.drawing.picture), last = Math.max(1, lastStep());
    if (!(high > low)) high = low + 1;
    const part = (value) => (logarithmic ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
    const x = (step) => box.left + (step / last) * box.width, y = (value) => box.top + (1 - part(value)) * box.height;
    axes(pen, box, { x: [0, last], y: logarithmic ? null : [low, high], xLabel: "step", yLabel: logarithmic ? "" : yLabel });
    if (logarithmic) this.logTicks(pen, box, low, high, y, yLabel);
    for (const { value, label } of lines) {
      if (value < low || value > high) continue;
      pen.strokeStyle = colour("soft"); pen.setLineDash([5, 4]); pen.beginPath(); pen.moveTo(box.left, y(value)); pen.lineTo(box.left + box.width, y(value)); pen.stroke(); pen.setLineDash([]);
      pen.fillStyle = colour("soft"); pen.textAlign = "right"; pen.textBaseline = "bottom"; pen.fillText(label, box.left + box.width, y(value) - 1);
    }
    for (const one of series) {
      pen.strokeStyle = pen.fillStyle = one.colour; pen.lineWidth = one.thin ? 1 : 2; pen.setLineDash(one.dash ?? []);
      pen.beginPath();
      let open = false;
      one.values.forEach((value, step) => {
        if (Number.isNaN(value) || (logarithmic && value <= 0)) { open = false; return; }
        if (one.stepped && open) pen.lineTo(x(step), y(one.values[step - 1]));
        if (open) pen.lineTo(x(step), y(value)); else { pen.moveTo(x(step) - 0.8, y(value)); pen.lineTo(x(step) + 0.8, y(value)); }
        open = true;
      });
      pen.stroke(); pen.setLineDash([]);
    }
    for (const dot of dots) { pen.fillStyle = dot.colour; pen.beginPath(); pen.arc(x(dot.step), y(dot.value), dot.size, 0, 7); pen.fill(); if (dot.ring) { pen.strokeStyle = dot.ring; pen.lineWidth = 0.8; pen.stroke(); } }
    for (const mark of marks) { pen.strokeStyle = pen.fillStyle = mark.colour; pen.lineWidth = 1.8; changeMark(pen, x(mark.step), y(mark.value), mark.swap); }
    const cursor = this.drawing.pen(this.drawing.marks);
    cursor.strokeStyle = colour("swap"); cursor.lineWidth = 2; cursor.beginPath(); cursor.moveTo(x(selection.step), box.top); cursor.lineTo(x(selection.step), box.top + box.height); cursor.stroke();
    this.drawing.place.setAttribute("aria-label", `${what}. ${tell?.(selection.step) ?? ""}`);
    this.legend.replaceChildren(...series.filter((one) => one.label).map((one) => {
      const item = document.createElement("span"), name = document.createElement("b");
      name.textContent = one.dash ? "╌╌ " : "━━ "; name.style.color = one.colour;
      item.append(name, one.label);
      return item;
    }));
  }
  logTicks(pen, box, low, high, y, yLabel) {
    pen.strokeStyle = colour("line"); pen.fillStyle = colour("soft"); pen.textAlign = "right"; pen.textBaseline = "middle";
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const digit of [1, 2, 5]) { const value = digit * 10 ** power; if (value < low || value > high) continue; pen.fillText(number(value), box.left - 6, y(value)); pen.beginPath(); pen.moveTo(box.left - 3, y(value)); pen.lineTo(box.left + box.width, y(value)); pen.stroke(); }
    pen.save(); pen.translate(10, box.top + box.height / 2); pen.rotate(-Math.PI / 2); pen.textAlign = "center"; pen.fillText(yLabel, 0, 0); pen.restore();
  }
}

const seriesColour = (place) => colour(place === 0 ? "accent" : "second");
const range = (count) => Array.from({ length: count }, (_, number) => number);

function drawTracks(chart) {
  const { layer, head } = selection, all = shown(), series = [], marks = [];
  if (layer >= 0)
    all.forEach((recording, place) => {
      const mine = recording.clampLayer(layer), heads = head >= 0 ? [recording.clampHead(head)] : range(recording.heads);
      heads.forEach((one, nth) => series.push({
        values: range(recording.steps).map((step) => { const main = recording.main(step, mine, one); return main < 0 ? NaN : main; }),
        colour: seriesColour(place), dash: place ? [6, 3] : undefined, thin: head < 0, stepped: true, label: nth === 0 && (all.length > 1 ? recording.label : head < 0 ? "each head of the layer" : "main sink"),
      }));
      if (head >= 0) for (const [step, , , swap] of recording.changesOf(mine, heads[0])) marks.push({ step, value: recording.main(step, mine, heads[0]), swap, colour: seriesColour(place) });
    });
  chart.draw({
    series, marks, low: 0, high: Math.max(...all.map((one) => one.positions)), yLabel: "position",
    what: layer < 0 ? "choose a layer or a head to see its main sinks" : `${headName(layer, head)}; ◆ move, ✕ swap`,
    tell: (step) => (head < 0 ? `step ${step}` : all.map((recording) => tellMain(recording, Math.min(step, recording.steps - 1))).join("\n")),
  });
}

function tellMain(recording, step) {
  const layer = recording.clampLayer(selection.layer), head = recording.clampHead(selection.head), main = recording.main(step, layer, head);
  const change = recording.changesOf(layer, head).find((one) => one[0] === step);
  const about = main < 0 ? "no main sink" : `main sink ${quoted(recording.text(recording.token(step, main)))} at position ${main}, ${told(recording.value(recording.followed, layer, head, step, main), recording.quantity(recording.followed).unit)}`;
  return `${shown().length > 1 ? recording.label + ", " : ""}step ${step}: ${about}${change ? (change[3] ? "; swapped in this step" : "; moved in this step") : ""}`;
}

// The token that the line charts follow: the chosen one, or the main sink of the step.
function followedToken() {
  if (selection.token >= 0) return selection.token;
  const recording = recordings[selection.first];
  return Math.max(0, recording.main(stepOf(recording), selection.layer, selection.head));
}

function valuesOverSteps(recording, name, position) {
  const rows = recording.rows(name, selection.layer, selection.head);
  if (!rows) return [];
  return range(recording.steps).map((step) => { const found = recording.value(name, selection.layer, selection.head, step, position); return found ? found.value : NaN; });
}

function drawToken(chart) {
  const position = followedToken(), all = shown(), series = all.map((recording, place) => ({
    values: valuesOverSteps(recording, quantityOf(recording), position), colour: seriesColour(place), dash: place ? [6, 3] : undefined,
    label: `${all.length > 1 ? recording.label + ": " : ""}${quoted(recording.text(recording.token(stepOf(recording), position)))} at position ${position}`,
  }));
  const first = recordings[selection.first], quantity = first.quantity(quantityOf(first));
  const isColumn = quantity.name === first.followed && selection.head >= 0;
  const line = 1 + page.excess * (1 - 1 / first.positions);
  const high = Math.max(isColumn && !first.causal ? line * 1.1 : 0, ...series.flatMap((one) => one.values.filter((value) => !Number.isNaN(value))));
  chart.draw({
    series, low: 0, high: high * 1.05, yLabel: quantity.unit, lines: isColumn && !first.causal ? [{ value: line, label: "sink above this line" }] : [],
    what: `${quantity.label}, ${headName(selection.layer, selection.head)}`,
    tell: (step) => all.map((recording) => {
      const at = Math.min(step, recording.steps - 1), one = recording.quantity(quantityOf(recording));
      return `${all.length > 1 ? recording.label + ", " : ""}step ${at}: ${quoted(recording.text(recording.token(at, position)))}, ${told(recording.value(one.name, selection.layer, selection.head, at, position), one.unit)}`;
    }).join("\n"),
  });
}

function drawNorms(chart) {
  const names = [["values", "value", "accent"], ["keys", "key", "swap"], ["hidden", "hidden", "second"]], position = followedToken(), series = [], all = shown();
  all.forEach((recording, place) => {
    for (const [name, label, tone] of names)
      if (recording.quantities.some((one) => one.name === name))
        series.push({ values: valuesOverSteps(recording, name, position), colour: colour(tone), dash: place ? [6, 3] : undefined, label: all.length > 1 ? `${label}, ${recording.label}` : label });
  });
  const told = series.flatMap((one) => one.values.filter((value) => value > 0));
  chart.figure.hidden = !series.length;
  if (!series.length) return;
  chart.draw({
    series, low: Math.min(...told, 1e9) / 1.15 || 0.1, high: Math.max(...told, 1e-9) * 1.15, yLabel: "Euclidean norm", logarithmic: true,
    what: `of the token at position ${position}, ${headName(selection.layer, selection.head)}`,
    tell: (step) => `step ${step}\n` + series.map((one) => `${one.label}: ${number(one.values[Math.min(step, one.values.length - 1)] ?? NaN, 3)}`).join("\n"),
  });
}

function drawOrder(chart) {
  const all = shown().filter((recording) => recording.has("written") && recording.tile("written"));
  chart.figure.hidden = !all.length;
  if (!all.length) return;
  const table = heatRamp(), dots = [];
  let low = Infinity, high = 0;
  all.forEach((recording, place) => {
    const view = traceViews.get(recording);
    for (const [step, position] of view?.commits ?? []) {
      const confidence = recording.confidence(step, position), now = step === stepOf(recording);
      low = Math.min(low, position); high = Math.max(high, position);
      dots.push({ step, value: position, size: now ? 5.5 : 3.2, colour: confidence === null ? seriesColour(place) : cssOf(table, Math.round(55 + 200 * confidence)), ring: now ? colour("swap") : seriesColour(place) });
    }
  });
  chart.draw({
    series: [], dots, low: Number.isFinite(low) ? low - 1 : 0, high: high + 1, yLabel: "position",
    what: `tokens when they are written${all.some((one) => one.has("confidence")) ? (dark() ? "; brighter: surer" : "; darker: surer") : ""}`,
    tell: (step) => all.map((recording) => {
      const at = Math.min(step, recording.steps - 1), here = (traceViews.get(recording)?.commits ?? []).filter((one) => one[0] === at);
      return `${all.length > 1 ? recording.label + ", " : ""}step ${at}: ` + (here.map(([, position]) => { const sure = recording.confidence(at, position); return `${quoted(recording.text(recording.writtenIn(at, position)))} at position ${position}${sure === null ? "" : `, confidence ${number(sure, 5)}`}`; }).join("; ") || "nothing written");
    }).join("\n"),
  });
}

// The quantity of which a difference is drawn: the one chosen, or what both traces have where they show different ones.
function comparedQuantity(first, second) {
  const mine = quantityOf(first);
  return mine === quantityOf(second) ? mine : "columns";
}

class DifferenceView {
  constructor(section) {
    this.section = section;
    this.drawing = new Drawing(section.querySelector(".drawing"), "heat map of the difference");
    const at = (x, y) => { const box = this.box, step = Math.floor(((y - box.top) / box.height) * this.steps), position = Math.floor(((x - box.left) / box.width) * this.positions); return step >= 0 && step < this.steps && position >= 0 && position < this.positions ? [step, position] : null; };
    follow(this.drawing, { over: (x, y) => at(x, y) && this.tell(...at(x, y)), choose: (x, y) => { const place = at(x, y); if (place) select({ step: place[0], token: place[1] }); } });
  }
  get box() { return { left: 42, top: 6, width: this.drawing.width - 50, height: this.drawing.height - 44 }; }
  tell(step, position) {
    const { layer, head } = selection, name = comparedQuantity(...shown()), found = shown().map((one) => one.value(name, layer, head, step, position));
    const lines = shown().map((one, place) => `${one.label}: ${quoted(one.text(one.token(step, position)))}, ${told(found[place], one.quantity(name).unit)}`);
    return [`step ${step}, position ${position}`, ...lines, found[0] && found[1] ? `difference: ${found[0].exact && found[1].exact ? "" : "≈ "}${number(found[0].value - found[1].value, 4)}` : ""].join("\n");
  }
  draw() {
    const [first, second] = shown();
    this.section.hidden = !second;
    if (!second || !this.drawing.size()) return;
    const { layer, head } = selection, name = comparedQuantity(first, second), left = first.rows(name, layer, head), right = second.rows(name, layer, head);
    this.steps = Math.min(first.steps, second.steps); this.positions = Math.min(first.positions, second.positions);
    this.section.querySelector(".what").textContent = `${first.label} minus ${second.label}: ${first.quantity(name).label}, ${headName(layer, head)}, the same step and position of both${this.sameTokens(first, second) ? "" : "; the two prompts differ, so positions hold other tokens"}`;
    if (!left || !right) return;
    const at = (rows, step, position) => rows.table[rows.codes[rows.start + step * rows.stride + position]];
    const both = (step, position) => position < Math.min(first.length(step), second.length(step));
    this.drawing.paint(`${first.number}|${second.number}|${name}|${layer}|${head}`, (pen) => {
      let most = 1e-9;
      for (let step = 0; step < this.steps; step++) for (let position = 0; position < this.positions; position++) if (both(step, position)) most = Math.max(most, Math.abs(at(left, step, position) - at(right, step, position)));
      const shade = (step, position) => (both(step, position) ? Math.round(127.5 + (127.5 * (at(left, step, position) - at(right, step, position))) / most) : -1);
      paintShades(pen, this.box, this.steps, this.positions, shade, differenceRamp(), this.drawing.ratio, (one) => Math.abs(one - 127.5));
      axes(pen, this.box, { x: [0, this.positions], y: [0, this.steps], xLabel: "position in the canvas", yLabel: "step", down: true });
      legendBar(this.section.querySelector(".bar"), differenceRamp(), `${number(-most, 3)} (more in ${second.label})`, `${number(most, 3)} (more in ${first.label})`, first.quantity(name).unit);
    });
    const pen = this.drawing.pen(this.drawing.marks), tall = this.box.height / this.steps;
    pen.strokeStyle = colour("swap"); pen.lineWidth = 2;
    if (selection.step < this.steps) pen.strokeRect(this.box.left - 1, this.box.top + selection.step * tall - 0.5, this.box.width + 2, Math.max(2, tall + 1));
  }
  sameTokens(first, second) {
    const length = Math.min(first.promptLength, second.promptLength);
    return first.promptLength === second.promptLength && range(length).every((position) => first.tokenIds[first.token(0, position)] === second.tokenIds[second.token(0, position)]);
  }
}

// One attention map, which was kept with the trace or is computed by the server at hand.
class MapView {
  constructor(section) {
    this.section = section;
    this.drawing = new Drawing(section.querySelector(".drawing"), "attention map");
    this.wanted = section.querySelector("#map-on");
    this.wanted.addEventListener("change", draw);
    follow(this.drawing, {
      over: (x, y) => { const at = this.point(x, y); return at && this.tell(...at); },
      choose: (x, y) => { const at = this.point(x, y); if (at) select({ token: at[1] }); },
    });
  }
  get box() { const side = Math.max(10, Math.min(this.drawing.width - 50, this.drawing.height - 44)); return { left: 42, top: 6, width: side, height: side }; }
  point(x, y) {
    if (!this.map) return null;
    const box = this.box, { queries, keys } = this.map, query = Math.floor(((y - box.top) / box.height) * queries), key = Math.floor(((x - box.left) / box.width) * keys);
    return query >= 0 && query < queries && key >= 0 && key < keys ? [query, key] : null;
  }
  tell(query, key) {
    const recording = recordings[selection.first], { values, keys, step, error } = this.map, value = values[query * keys + key];
    const name = (position) => `${quoted(recording.text(recording.token(step, position)))} (${position})`;
    return `${name(query)} gives ${error && value ? "≈ " : error ? "less than 0.0001, or no, " : ""}${value ? number(value, error ? 3 : 7) : error ? "part" : "0"} of its attention to ${name(key)}`;
  }
  place() { return [selection.first, stepOf(recordings[selection.first]), selection.layer, selection.head]; }
  draw() {
    const recording = recordings[selection.first], [first, step, layer, head] = this.place(), key = this.place().join("-");
    this.section.hidden = !(page.served || recording.maps.length);
    if (this.section.hidden) return;
    const kept = recording.maps.some((one) => one.join() === [step, layer, head].join());
    const others = recording.maps.slice(0, 12).map((one) => `step ${one[0]} layer ${one[1]} head ${one[2]}`).join(", ");
    let what = head < 0 ? "choose a head" : `${headName(layer, head)}, step ${step}`;
    if (!kept && !page.served) what += `; not kept with this trace, which keeps ${others}`;
    this.drawing.place.hidden = !this.wanted.checked || head < 0 || (!kept && !page.served);
    this.section.querySelector(".what").textContent = what;
    if (this.drawing.place.hidden) return;
    if (this.key !== key) { clearTimeout(this.timer); this.timer = setTimeout(() => this.fetch(first, step, layer, head, kept, key), playing ? 0 : 150); }
    if (!this.map || !this.drawing.size()) return;
    const { values, queries, keys } = this.map, top = this.map.top;
    this.drawing.paint(this.map.key, (pen) => {
      paintShades(pen, this.box, queries, keys, (query, one) => Math.round(255 * Math.sqrt(Math.min(1, values[query * keys + one] / top))), heatRamp(), this.drawing.ratio);
      axes(pen, this.box, { x: [0, keys], y: [0, queries], xLabel: "key: who is looked at", yLabel: "query: who looks", down: true });
      legendBar(this.section.querySelector(".bar"), heatRamp(), "0", number(top, 3), "of a query’s attention (colours by square root)");
    });
  }
  async fetch(first, step, layer, head, kept, key) {
    if (this.key === key || this.asked === key) return;
    this.asked = key;
    try {
      let values, queries, error = 0;
      if (kept && page.tiles[`${first}/map/${step}-${layer}-${head}`]) {
        const name = `${first}/map/${step}-${layer}-${head}`, table = valuesOf(page.tiles[name].scale);
        const codes = loaded.get(name) ?? (await load(name));
        values = Float32Array.from(codes, (code) => table[code]); queries = page.tiles[name].shape[0]; error = 1;
      } else {
        const answer = await fetch(`map?trace=${first}&step=${step}&layer=${layer}&head=${head}`);
        if (!answer.ok) throw new Error((await answer.json()).error);
        values = new Float32Array(await answer.arrayBuffer()); queries = Number(answer.headers.get("X-Queries"));
      }
      this.map = { values, queries, keys: values.length / queries, step, key, error, top: values.reduce((most, one) => Math.max(most, one), 1e-9) };
      this.key = key;
    } catch (error) { this.key = key; this.map = null; onProblem(error.message); }
    this.asked = "";
    draw();
  }
}
