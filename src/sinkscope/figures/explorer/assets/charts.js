// Line charts over the steps.
class Chart {
  constructor(figure, label) {
    this.figure = figure;
    this.drawing = new Drawing(figure.querySelector(".drawing"), label);
    this.what = figure.querySelector(".what");
    this.legend = figure.querySelector(".legend");
    const stepAt = (x) => {
      const box = this.box;
      return [Math.max(0, Math.min(lastStep(), Math.round(((x - box.left) / box.width) * Math.max(1, lastStep()))))];
    };
    follow(this.drawing, { at: stepAt, tell: (step) => this.tell?.(step), choose: (step) => select({ step }) });
  }
  get box() {
    return { left: 52, top: 8, width: this.drawing.width - 64, height: this.drawing.height - 46 };
  }
  // series: {values (by step, NaN: none), colour, dash, points, label}; marks: {step, value, swap}.
  // `build` is called only where something that the picture depends on has changed: `key`, the size or the colours.
  draw(key, what, tell, build) {
    this.tell = tell;
    if (this.what.textContent !== what) this.what.textContent = what;
    if (!this.drawing.size()) return;
    this.drawing.paint(`${key}|${selection.first}|${selection.second}|${selection.layer}|${selection.head}|${loaded.size}`, () =>
      this.paint(build()),
    );
    const box = this.box,
      cursor = this.drawing.pen(this.drawing.marks),
      x = box.left + (selection.step / Math.max(1, lastStep())) * box.width;
    cursor.strokeStyle = colour("swap");
    cursor.lineWidth = 2;
    cursor.beginPath();
    cursor.moveTo(x, box.top);
    cursor.lineTo(x, box.top + box.height);
    cursor.stroke();
    this.drawing.place.setAttribute("aria-label", `${what}. ${tell?.(selection.step) ?? ""}`);
  }
  paint({ series, low, high, yLabel, logarithmic, lines = [], marks = [], dots = [] }) {
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
      for (const digit of high / low > 1000 ? [1] : [1, 2, 5]) {
        const value = digit * 10 ** power;
        if (value < low || value > high) continue;
        pen.fillText(number(value).replace(".00e+", "e"), box.left - 6, y(value));
        pen.beginPath();
        pen.moveTo(box.left - 3, y(value));
        pen.lineTo(box.left + box.width, y(value));
        pen.stroke();
      }
    upwardLabel(pen, box, yLabel);
  }
}

const seriesColour = (place) => colour(place === 0 ? "accent" : "second");
const range = (count) => Array.from({ length: count }, (_, number) => number);

// Calls for each trace with a step that it has, and puts its name in front where there are two.
function ofEach(all, step, tell) {
  return all
    .map((recording) => {
      const at = Math.min(step, recording.steps - 1);
      return `${all.length > 1 ? recording.label + ", " : ""}step ${at}: ${tell(recording, at)}`;
    })
    .join("\n");
}

function drawTracks(chart) {
  const { layer, head } = selection,
    all = shown();
  chart.draw(
    "",
    layer < 0 ? "choose a layer or a head to see its main sinks" : `${headName(layer, head)}; ◆ move, ✕ swap`,
    (step) => (head < 0 ? `step ${step}` : ofEach(all, step, tellMain)),
    () => {
      const series = [],
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
      return { series, marks, low: 0, high: Math.max(...all.map((one) => one.positions)), yLabel: "position" };
    },
  );
}

function tellMain(recording, step) {
  const layer = recording.clampLayer(selection.layer),
    head = recording.clampHead(selection.head),
    main = recording.main(step, layer, head);
  const change = recording.changesOf(layer, head).find((one) => one[0] === step);
  const about =
    main < 0
      ? "no main sink"
      : `main sink ${place(recording, step, main)}, ${told(recording.value(recording.followed, layer, head, step, main), recording.quantity(recording.followed).unit)}`;
  return `${about}${change ? (change[3] ? "; swapped in this step" : "; moved in this step") : ""}`;
}

// The token that the line charts follow: the chosen one, or the main sink of the step, or the commonest sink of several heads.
function followedToken() {
  if (selection.token >= 0) return selection.token;
  const recording = recordings[selection.first],
    step = stepOf(recording),
    { layer, head } = selection;
  if (head >= 0) return Math.max(0, recording.main(step, layer, head));
  return [...recording.sinks(layer, head, step)].reduce((best, one) => (one[1] > best[1] ? one : best), [0, 0])[0];
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
    first = recordings[selection.first],
    quantity = first.quantity(quantityOf(first));
  const line = quantity.name === first.followed && selection.head >= 0 && !first.newest ? first.threshold : 0;
  const tellToken = (recording, at) => {
    const one = recording.quantity(quantityOf(recording));
    const found = recording.value(one.name, selection.layer, selection.head, at, position);
    return `${place(recording, at, position)}, ${told(found, one.unit)}`;
  };
  chart.draw(
    `${selection.quantity}|${position}`,
    `${quantity.label}, ${headName(selection.layer, selection.head)}`,
    (step) => ofEach(all, step, tellToken),
    () => {
      const series = all.map((recording, place) => ({
        values: valuesOverSteps(recording, quantityOf(recording), position),
        colour: seriesColour(place),
        dash: place ? [6, 3] : undefined,
        label: `${all.length > 1 ? recording.label + ": " : ""}position ${position}`,
      }));
      const high = Math.max(line * 1.1, ...series.flatMap((one) => one.values.filter((value) => !Number.isNaN(value))));
      return {
        series,
        low: 0,
        high: high * 1.05,
        yLabel: quantity.unit,
        lines: line ? [{ value: line, label: "sink above this line" }] : [],
      };
    },
  );
}

const NORMS = [
  ["values", "value", "accent"],
  ["keys", "key", "swap"],
  ["hidden", "hidden", "second"],
];

function drawNorms(chart) {
  const position = followedToken(),
    all = shown(),
    kept = all.flatMap((recording, place) =>
      NORMS.filter(([name]) => recording.quantities.some((one) => one.name === name)).map(([name, label, tone]) => [
        recording,
        place,
        name,
        label,
        tone,
      ]),
    );
  chart.figure.hidden = !kept.length;
  if (!kept.length) return;
  chart.draw(
    position,
    `of the token at position ${position}, ${headName(selection.layer, selection.head)}`,
    (step) =>
      ofEach(all, step, (recording, at) =>
        kept
          .filter(([one]) => one === recording)
          .map(
            ([, , name, label]) =>
              `${label} ${number(known(recording.value(name, selection.layer, selection.head, at, position)), 3)}`,
          )
          .join(", "),
      ),
    () => {
      const series = kept.map(([recording, place, name, label, tone]) => ({
        values: valuesOverSteps(recording, name, position),
        colour: colour(tone),
        dash: place ? [6, 3] : undefined,
        label: all.length > 1 ? `${label}, ${recording.label}` : label,
      }));
      const told = series.flatMap((one) => one.values.filter((value) => value > 0));
      return {
        series,
        low: told.length ? Math.min(...told) / 1.15 : 0.1,
        high: told.length ? Math.max(...told) * 1.15 : 1,
        yLabel: "Euclidean norm",
        logarithmic: true,
      };
    },
  );
}

function drawOrder(chart) {
  const all = shown().filter((recording) => recording.has("written"));
  chart.figure.hidden = !all.length;
  if (!all.length) return;
  const tellCommits = (recording, at) =>
    recording
      .commits()
      .filter((one) => one[0] === at)
      .map(([, position]) => {
        const sure = recording.confidence(at, position);
        return `${quoted(recording.text(recording.writtenIn(at, position)))} at position ${position}${sure === null ? "" : `, confidence ${number(sure, 5)}`}`;
      })
      .join("; ") || "nothing written";
  chart.draw(
    "",
    `tokens when they are written${all.some((one) => one.has("confidence")) ? (dark() ? "; brighter: surer" : "; darker: surer") : ""}`,
    (step) => ofEach(all, step, tellCommits),
    () => {
      const table = heatRamp(),
        dots = all.flatMap((recording, place) =>
          recording.commits().map(([step, position]) => {
            const confidence = recording.confidence(step, position);
            const [lowest, highest] = recording.confidenceRange;
            return {
              step,
              value: position,
              size: 3.4,
              colour: confidence === null ? seriesColour(place) : cssOf(table, Math.round(55 + (200 * (confidence - lowest)) / (highest - lowest))),
              ring: seriesColour(place),
            };
          }),
        );
      const places = dots.map((one) => one.value);
      return {
        series: [],
        dots,
        low: places.length ? Math.min(...places) - 1 : 0,
        high: places.length ? Math.max(...places) + 1 : 1,
        yLabel: "position",
      };
    },
  );
}

// The moves and swaps of the head as words: when, from which token, onto which. A click goes there.
function listChanges(list) {
  const recording = recordings[selection.first],
    { layer, head } = selection,
    changes = head < 0 ? [] : recording.changesOf(layer, head),
    key = `${recording.number}|${layer}|${head}|${loaded.size}`;
  if (list.dataset.key !== key) {
    list.dataset.key = key;
    list.replaceChildren(
      ...changes.slice(0, 200).map(([step, , , swap]) => {
        const item = document.createElement("li"),
          button = document.createElement("button"),
          from = recording.main(step - 1, layer, head),
          to = recording.main(step, layer, head);
        const name = (at, position) => `${quoted(recording.reading(at, position))} ${position}`;
        button.type = "button";
        button.dataset.step = step;
        button.textContent = `step ${step} ${swap ? "✕" : "◆"} ${name(step - 1, from)} → ${name(step, to)}`;
        button.setAttribute("aria-label", `step ${step}: ${swap ? "swap" : "move"} from ${name(step - 1, from)} to ${name(step, to)}`);
        button.addEventListener("click", () => select({ step }));
        item.append(button);
        return item;
      }),
    );
  }
  for (const button of list.querySelectorAll("button")) {
    const here = Number(button.dataset.step) === selection.step;
    if (here !== button.hasAttribute("aria-current"))
      here ? button.setAttribute("aria-current", "step") : button.removeAttribute("aria-current");
  }
}
