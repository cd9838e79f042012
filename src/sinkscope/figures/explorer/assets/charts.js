// Line charts over the steps.
class Chart {
  constructor(figure, label) {
    this.figure = figure;
    this.drawing = new Drawing(figure.querySelector(".drawing"), label);
    this.what = figure.querySelector(".what");
    this.legend = figure.querySelector(".legend");
    const stepAt = (x) => {
      const box = this.box;
      return Math.max(0, Math.min(lastStep(), Math.round(((x - box.left) / box.width) * Math.max(1, lastStep()))));
    };
    follow(this.drawing, { over: (x) => this.tell?.(stepAt(x)) ?? "", choose: (x) => select({ step: stepAt(x) }) });
  }
  get box() {
    return { left: 52, top: 8, width: this.drawing.width - 64, height: this.drawing.height - 46 };
  }
  // series: {values (by step, NaN: none), colour, dash, points, label}; marks: {step, value, swap}.
  draw({ series, low, high, yLabel, logarithmic, lines = [], marks = [], dots = [], tell, what }) {
    this.tell = tell;
    if (this.what.textContent !== what) this.what.textContent = what;
    if (!this.drawing.size()) return;
    const box = this.box,
      pen = this.drawing.pen(this.drawing.picture),
      last = Math.max(1, lastStep());
    if (!(high > low)) high = low + 1;
    const part = (value) => (logarithmic ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
    const x = (step) => box.left + (step / last) * box.width,
      y = (value) => box.top + (1 - part(value)) * box.height;
    axes(pen, box, { x: [0, last], y: logarithmic ? null : [low, high], xLabel: "step", yLabel: logarithmic ? "" : yLabel });
    if (logarithmic) this.logTicks(pen, box, low, high, y, yLabel);
    for (const { value, label } of lines) {
      if (value < low || value > high) continue;
      pen.strokeStyle = colour("soft");
      pen.setLineDash([5, 4]);
      pen.beginPath();
      pen.moveTo(box.left, y(value));
      pen.lineTo(box.left + box.width, y(value));
      pen.stroke();
      pen.setLineDash([]);
      pen.fillStyle = colour("soft");
      pen.textAlign = "right";
      pen.textBaseline = "bottom";
      pen.fillText(label, box.left + box.width, y(value) - 1);
    }
    for (const one of series) {
      pen.strokeStyle = pen.fillStyle = one.colour;
      pen.lineWidth = one.thin ? 1 : 2;
      pen.setLineDash(one.dash ?? []);
      pen.beginPath();
      let open = false;
      one.values.forEach((value, step) => {
        if (Number.isNaN(value) || (logarithmic && value <= 0)) {
          open = false;
          return;
        }
        if (one.stepped && open) pen.lineTo(x(step), y(one.values[step - 1]));
        if (open) pen.lineTo(x(step), y(value));
        else {
          pen.moveTo(x(step) - 0.8, y(value));
          pen.lineTo(x(step) + 0.8, y(value));
        }
        open = true;
      });
      pen.stroke();
      pen.setLineDash([]);
    }
    for (const dot of dots) {
      pen.fillStyle = dot.colour;
      pen.beginPath();
      pen.arc(x(dot.step), y(dot.value), dot.size, 0, 7);
      pen.fill();
      if (dot.ring) {
        pen.strokeStyle = dot.ring;
        pen.lineWidth = 0.8;
        pen.stroke();
      }
    }
    for (const mark of marks) {
      pen.strokeStyle = pen.fillStyle = mark.colour;
      pen.lineWidth = 1.8;
      changeMark(pen, x(mark.step), y(mark.value), mark.swap);
    }
    const cursor = this.drawing.pen(this.drawing.marks);
    cursor.strokeStyle = colour("swap");
    cursor.lineWidth = 2;
    cursor.beginPath();
    cursor.moveTo(x(selection.step), box.top);
    cursor.lineTo(x(selection.step), box.top + box.height);
    cursor.stroke();
    this.drawing.place.setAttribute("aria-label", `${what}. ${tell?.(selection.step) ?? ""}`);
    this.legend.replaceChildren(
      ...series
        .filter((one) => one.label)
        .map((one) => {
          const item = document.createElement("span"),
            name = document.createElement("b");
          name.textContent = one.dash ? "╌╌ " : "━━ ";
          name.style.color = one.colour;
          item.append(name, one.label);
          return item;
        }),
    );
  }
  logTicks(pen, box, low, high, y, yLabel) {
    pen.strokeStyle = colour("line");
    pen.fillStyle = colour("soft");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const digit of [1, 2, 5]) {
        const value = digit * 10 ** power;
        if (value < low || value > high) continue;
        pen.fillText(number(value), box.left - 6, y(value));
        pen.beginPath();
        pen.moveTo(box.left - 3, y(value));
        pen.lineTo(box.left + box.width, y(value));
        pen.stroke();
      }
    pen.save();
    pen.translate(10, box.top + box.height / 2);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "center";
    pen.fillText(yLabel, 0, 0);
    pen.restore();
  }
}

const seriesColour = (place) => colour(place === 0 ? "accent" : "second");
const range = (count) => Array.from({ length: count }, (_, number) => number);

function drawTracks(chart) {
  const { layer, head } = selection,
    all = shown(),
    series = [],
    marks = [];
  if (layer >= 0)
    all.forEach((recording, place) => {
      const mine = recording.clampLayer(layer),
        heads = head >= 0 ? [recording.clampHead(head)] : range(recording.heads);
      heads.forEach((one, nth) =>
        series.push({
          values: range(recording.steps).map((step) => {
            const main = recording.main(step, mine, one);
            return main < 0 ? NaN : main;
          }),
          colour: seriesColour(place),
          dash: place ? [6, 3] : undefined,
          thin: head < 0,
          stepped: true,
          label: nth === 0 && (all.length > 1 ? recording.label : head < 0 ? "each head of the layer" : "main sink"),
        }),
      );
      if (head >= 0)
        for (const [step, , , swap] of recording.changesOf(mine, heads[0]))
          marks.push({ step, value: recording.main(step, mine, heads[0]), swap, colour: seriesColour(place) });
    });
  chart.draw({
    series,
    marks,
    low: 0,
    high: Math.max(...all.map((one) => one.positions)),
    yLabel: "position",
    what: layer < 0 ? "choose a layer or a head to see its main sinks" : `${headName(layer, head)}; ◆ move, ✕ swap`,
    tell: (step) =>
      head < 0 ? `step ${step}` : all.map((recording) => tellMain(recording, Math.min(step, recording.steps - 1))).join("\n"),
  });
}

function tellMain(recording, step) {
  const layer = recording.clampLayer(selection.layer),
    head = recording.clampHead(selection.head),
    main = recording.main(step, layer, head);
  const change = recording.changesOf(layer, head).find((one) => one[0] === step);
  const about =
    main < 0
      ? "no main sink"
      : `main sink ${quoted(recording.text(recording.token(step, main)))} at position ${main}, ${told(recording.value(recording.followed, layer, head, step, main), recording.quantity(recording.followed).unit)}`;
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
  return range(recording.steps).map((step) => {
    const found = recording.value(name, selection.layer, selection.head, step, position);
    return found ? found.value : NaN;
  });
}

function drawToken(chart) {
  const position = followedToken(),
    all = shown(),
    series = all.map((recording, place) => ({
      values: valuesOverSteps(recording, quantityOf(recording), position),
      colour: seriesColour(place),
      dash: place ? [6, 3] : undefined,
      label: `${all.length > 1 ? recording.label + ": " : ""}${quoted(recording.text(recording.token(stepOf(recording), position)))} at position ${position}`,
    }));
  const first = recordings[selection.first],
    quantity = first.quantity(quantityOf(first));
  const isColumn = quantity.name === first.followed && selection.head >= 0;
  const line = 1 + page.excess * (1 - 1 / first.positions);
  const high = Math.max(
    isColumn && !first.causal ? line * 1.1 : 0,
    ...series.flatMap((one) => one.values.filter((value) => !Number.isNaN(value))),
  );
  chart.draw({
    series,
    low: 0,
    high: high * 1.05,
    yLabel: quantity.unit,
    lines: isColumn && !first.causal ? [{ value: line, label: "sink above this line" }] : [],
    what: `${quantity.label}, ${headName(selection.layer, selection.head)}`,
    tell: (step) =>
      all
        .map((recording) => {
          const at = Math.min(step, recording.steps - 1),
            one = recording.quantity(quantityOf(recording));
          return `${all.length > 1 ? recording.label + ", " : ""}step ${at}: ${quoted(recording.text(recording.token(at, position)))}, ${told(recording.value(one.name, selection.layer, selection.head, at, position), one.unit)}`;
        })
        .join("\n"),
  });
}

function drawNorms(chart) {
  const names = [
      ["values", "value", "accent"],
      ["keys", "key", "swap"],
      ["hidden", "hidden", "second"],
    ],
    position = followedToken(),
    series = [],
    all = shown();
  all.forEach((recording, place) => {
    for (const [name, label, tone] of names)
      if (recording.quantities.some((one) => one.name === name))
        series.push({
          values: valuesOverSteps(recording, name, position),
          colour: colour(tone),
          dash: place ? [6, 3] : undefined,
          label: all.length > 1 ? `${label}, ${recording.label}` : label,
        });
  });
  const told = series.flatMap((one) => one.values.filter((value) => value > 0));
  chart.figure.hidden = !series.length;
  if (!series.length) return;
  chart.draw({
    series,
    low: Math.min(...told, 1e9) / 1.15 || 0.1,
    high: Math.max(...told, 1e-9) * 1.15,
    yLabel: "Euclidean norm",
    logarithmic: true,
    what: `of the token at position ${position}, ${headName(selection.layer, selection.head)}`,
    tell: (step) =>
      `step ${step}\n` +
      series.map((one) => `${one.label}: ${number(one.values[Math.min(step, one.values.length - 1)] ?? NaN, 3)}`).join("\n"),
  });
}

function drawOrder(chart) {
  const all = shown().filter((recording) => recording.has("written") && recording.tile("written"));
  chart.figure.hidden = !all.length;
  if (!all.length) return;
  const table = heatRamp(),
    dots = [];
  let low = Infinity,
    high = 0;
  all.forEach((recording, place) => {
    const view = traceViews.get(recording);
    for (const [step, position] of view?.commits ?? []) {
      const confidence = recording.confidence(step, position),
        now = step === stepOf(recording);
      low = Math.min(low, position);
      high = Math.max(high, position);
      dots.push({
        step,
        value: position,
        size: now ? 5.5 : 3.2,
        colour: confidence === null ? seriesColour(place) : cssOf(table, Math.round(55 + 200 * confidence)),
        ring: now ? colour("swap") : seriesColour(place),
      });
    }
  });
  chart.draw({
    series: [],
    dots,
    low: Number.isFinite(low) ? low - 1 : 0,
    high: high + 1,
    yLabel: "position",
    what: `tokens when they are written${all.some((one) => one.has("confidence")) ? (dark() ? "; brighter: surer" : "; darker: surer") : ""}`,
    tell: (step) =>
      all
        .map((recording) => {
          const at = Math.min(step, recording.steps - 1),
            here = (traceViews.get(recording)?.commits ?? []).filter((one) => one[0] === at);
          return (
            `${all.length > 1 ? recording.label + ", " : ""}step ${at}: ` +
            (here
              .map(([, position]) => {
                const sure = recording.confidence(at, position);
                return `${quoted(recording.text(recording.writtenIn(at, position)))} at position ${position}${sure === null ? "" : `, confidence ${number(sure, 5)}`}`;
              })
              .join("; ") || "nothing written")
          );
        })
        .join("\n"),
  });
}
