// Brings the page to life: controls, keys, playing, and one drawing of all views for each change of the selection.
const byId = (id) => document.getElementById(id);
const traceViews = new Map();
const charts = {
  track: new Chart(byId("track-view"), "main sink’s track"),
  token: new Chart(byId("token-view"), "one token’s column"),
  norm: new Chart(byId("norm-view"), "norms"),
  order: new Chart(byId("order-view"), "order of commitment"),
};
const difference = new DifferenceView(byId("difference"));
const map = new MapView(byId("map-section"));
const lens = new LensView(byId("lens"), page.lens);

let waiting = 0;
function draw() {
  if (!waiting) waiting = requestAnimationFrame(drawNow);
}
let opening = false; // until the strongest head of the step is known and shown
function drawNow() {
  waiting = 0;
  const strongest = opening && recordings[selection.first].strongestHead(stepOf(recordings[selection.first]));
  if (strongest) {
    opening = false;
    Object.assign(selection, strongest);
  }
  arrange();
  drawControls();
  for (const recording of shown()) traceViews.get(recording).draw();
  drawTracks(charts.track);
  listChanges(byId("changes"));
  drawToken(charts.token);
  drawNorms(charts.norm);
  drawOrder(charts.order);
  difference.draw();
  map.draw();
  lens.draw();
  tellStory();
  tellHeadline();
  tellAgain?.();
}
whenLoaded = draw;
onProblem = (text) => {
  byId("problem").textContent = text;
  byId("problem").hidden = false;
};

// Puts the views of the chosen traces on the page.
let arranged = "";
function arrange() {
  const key = `${selection.first}|${selection.second}`;
  if (arranged === key) return;
  arranged = key;
  for (const recording of shown()) if (!traceViews.has(recording)) traceViews.set(recording, new TraceView(byId("trace-views"), recording));
  const views = byId("views");
  views.querySelectorAll("section.trace").forEach((one) => one.remove());
  views.append(...shown().map((recording) => traceViews.get(recording).root));
  views.classList.toggle("two", shown().length > 1);
}

function options(place, entries, chosen) {
  const key = JSON.stringify(entries);
  if (place.dataset.key !== key) {
    place.replaceChildren(...entries.map(([value, text]) => new Option(text, value)));
    place.dataset.key = key;
  }
  if (place.value !== String(chosen)) place.value = String(chosen);
}

function drawControls() {
  const recording = recordings[selection.first];
  byId("step").max = lastStep();
  byId("step").value = selection.step;
  byId("step").setAttribute("aria-valuetext", `step ${selection.step} of ${lastStep()}`);
  byId("step-number").textContent = `step ${selection.step} of ${lastStep()}`;
  options(byId("layer"), [[-1, "all (mean)"], ...range(recording.layers).map((layer) => [layer, layer])], selection.layer);
  options(
    byId("head"),
    [
      [-1, "mean"],
      ...(selection.layer < 0
        ? []
        : range(recording.heads).map((head) => {
            const role = recording.role(selection.layer, head);
            return [head, role ? `${head} (${role.need}, ${role.role})` : head];
          })),
    ],
    selection.head,
  );
  options(
    byId("quantity"),
    recording.quantities.map((one) => [one.name, one.label]),
    selection.quantity,
  );
  byId("scale").value = selection.scale;
  options(
    byId("first"),
    recordings.map((one) => [one.number, one.label]),
    selection.first,
  );
  options(
    byId("second"),
    [[-1, "no other"], ...recordings.filter((one) => one.number !== selection.first).map((one) => [one.number, one.label])],
    selection.second,
  );
  byId("first-label").hidden = byId("second-label").hidden = recordings.length < 2;
  const changes = selection.head < 0 ? [] : recording.changesOf(selection.layer, selection.head);
  byId("next-move").disabled = !changes.some((one) => one[0] > selection.step);
  byId("previous-move").disabled = !changes.some((one) => one[0] < selection.step);
}

function tellStory() {
  const recording = recordings[selection.first],
    step = stepOf(recording),
    { layer, head } = selection;
  let text;
  if (head < 0) {
    const sinks = [...recording.sinks(layer, head, step)].sort((one, other) => other[1] - one[1]).slice(0, 3);
    const where = sinks
      .map(
        ([position, heads]) =>
          `${place(recording, step, position)} (${counted(heads, "head")})`,
      )
      .join(", ");
    text = `Step ${step}, ${headName(layer, head)}: ${where ? `the commonest sinks are ${where}, of ${counted(layer < 0 ? recording.layers * recording.heads : recording.heads, "head")}.` : "no head has a sink."}`;
  } else {
    const main = recording.main(step, layer, head),
      changes = recording.changesOf(layer, head),
      now = changes.find((one) => one[0] === step);
    const moves = changes.filter((one) => !one[3]).length,
      swaps = changes.length - moves,
      role = recording.role(layer, head);
    const found = main >= 0 && recording.value(recording.followed, layer, head, step, main),
      { unit } = recording.quantity(recording.followed),
      share = unit.startsWith("of"); // of the newest queries' attention
    const how = now
      ? now[3]
        ? ` It has just swapped with ${place(recording, step, recording.main(step - 1, layer, head))}.`
        : ` It has just moved from ${place(recording, step - 1, recording.main(step - 1, layer, head))}.`
      : "";
    text =
      `Step ${step}, ${headName(layer, head)}${role ? ` (${role.need}, ${role.role})` : ""}: ` +
      (main < 0
        ? "no token is a sink."
        : `the main sink is ${place(recording, step, main)}, with ${found ? (share ? `${number(100 * found.value, 3)} %` : number(found.value, 4)) : "…"} ${unit}.${how}`) +
      ` Over ${counted(recording.steps, "step")} it ${moves + swaps ? `moves ${times(moves)} and swaps ${times(swaps)}` : "neither moves nor swaps"}.`;
  }
  byId("sentence").setAttribute("aria-live", playing ? "off" : "polite");
  if (byId("sentence").textContent !== text) byId("sentence").textContent = text;
}
// Which token is the main sink, in how many heads, and whether it moves.
function tellHeadline() {
  const lines = shown().map((recording) => {
    const step = stepOf(recording),
      rows = recording.mainSinks(step),
      heads = recording.layers * recording.heads,
      when = step === recording.steps - 1 ? "the last step" : `step ${step}`;
    if (!rows) return byId("headline").textContent;
    const [first] = rows;
    const who = first
      ? `${quoted(recording.reading(step, first[0]))}, position ${first[0]}, is the main sink of ${first[1]} of ${counted(heads, "head")} in ${when}.`
      : `No head has a sink in ${when}.`;
    const { moves, swaps, movers } = recording.movement;
    const how = movers
      ? `Over ${counted(recording.steps, "step")} main sinks move ${times(moves)} and swap ${times(swaps)}, in ${counted(movers, "head")}.`
      : first
        ? `No main sink moves in ${counted(recording.steps, "step")}.`
        : "";
    return `${shown().length > 1 ? `${recording.label}: ` : ""}${who} ${how}`;
  });
  const text = lines.join("\n");
  if (byId("headline").textContent !== text) byId("headline").textContent = text;
}
const place = (recording, step, position) => `${quoted(recording.reading(step, position))} at position ${position}`;
const times = (count) => (count === 0 ? "never" : count === 1 ? "once" : count === 2 ? "twice" : `${count} times`);

// Playing
let playing = 0;
function play(start) {
  clearInterval(playing);
  playing = 0;
  if (start) {
    if (selection.step >= lastStep()) select({ step: 0 });
    playing = setInterval(
      () => (selection.step >= lastStep() ? play(false) : select({ step: selection.step + 1 })),
      Math.max(40, Math.min(250, 16000 / (lastStep() + 1))),
    );
  }
  byId("play").textContent = playing ? "❚❚ pause" : "▶ play";
  byId("play").setAttribute("aria-label", playing ? "pause" : "play");
  byId("play").setAttribute("aria-pressed", Boolean(playing));
  draw();
}

function jump(direction) {
  if (selection.head < 0) return;
  const steps = recordings[selection.first].changesOf(selection.layer, selection.head).map((one) => one[0]);
  const target = direction > 0 ? steps.find((step) => step > selection.step) : steps.filter((step) => step < selection.step).pop();
  if (target !== undefined) select({ step: target });
}
function mostMoving(recording) {
  const moves = new Map();
  for (const [, layer, head, swap] of recording.changes) if (!swap) moves.set(layer + "." + head, (moves.get(layer + "." + head) ?? 0) + 1);
  const best = [...moves].sort((one, other) => other[1] - one[1])[0];
  return best ? best[0].split(".").map(Number) : [0, 0];
}
function toMover() {
  const [layer, head] = mostMoving(recordings[selection.first]);
  select({ layer, head });
}
function changeTheme() {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  draw();
}

const KEYS = {
  " ": () => play(!playing),
  ArrowLeft: (event) => select({ step: selection.step - (event.shiftKey ? 10 : 1) }),
  ArrowRight: (event) => select({ step: selection.step + (event.shiftKey ? 10 : 1) }),
  Home: () => select({ step: 0 }),
  End: () => select({ step: lastStep() }),
  ArrowUp: () => select({ layer: selection.layer + 1 }),
  ArrowDown: () => select({ layer: selection.layer - 1 }),
  ".": () => select({ layer: Math.max(0, selection.layer), head: selection.head + 1 }),
  ",": () => select({ head: selection.head - 1 }),
  "]": () => select({ token: selection.token + 1 }),
  "[": () => select({ token: selection.token - 1 }),
  n: () => jump(1),
  p: () => jump(-1),
  b: toMover,
  m: () => select(selection.head < 0 ? { layer: -1 } : { head: -1 }),
  t: changeTheme,
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select, summary, input")) return;
  if (event.key === " " && event.target.matches("button")) return;
  if (KEYS[event.key]) {
    event.preventDefault();
    KEYS[event.key](event);
  }
});

for (const name of ["layer", "head", "first", "second"])
  byId(name).addEventListener("change", (event) => select({ [name]: Number(event.target.value) }));
for (const name of ["quantity", "scale"]) byId(name).addEventListener("change", (event) => select({ [name]: event.target.value }));
byId("step").addEventListener("input", (event) => select({ step: Number(event.target.value) }));
byId("play").addEventListener("click", () => play(!playing));
byId("previous").addEventListener("click", () => select({ step: selection.step - 1 }));
byId("next").addEventListener("click", () => select({ step: selection.step + 1 }));
byId("previous-move").addEventListener("click", () => jump(-1));
byId("next-move").addEventListener("click", () => jump(1));
byId("mover").addEventListener("click", toMover);
byId("theme").addEventListener("click", changeTheme);
addEventListener("hashchange", () => {
  readAddress();
  draw();
});
new ResizeObserver(draw).observe(document.body);

let before = "";
addEventListener("beforeprint", () => {
  before = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
  drawNow();
  for (const one of drawings) one.merge();
});
addEventListener("afterprint", () => {
  document.documentElement.dataset.theme = before;
  draw();
});

function definitions(place, rows) {
  const list = document.createElement("dl");
  for (const [name, text] of rows) {
    const term = document.createElement("dt"),
      about = document.createElement("dd");
    term.textContent = name;
    about.textContent = text;
    list.append(term, about);
  }
  place.append(list);
}

function start() {
  document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  byId("lead").textContent = page.lead;
  Object.assign(selection, { layer: -1, head: -1, step: Infinity, second: recordings.length > 1 ? 1 : -1 });
  readAddress();
  opening = !/layer=|head=/.test(location.hash);
  if (page.notes.length) onProblem(page.notes.join(" "));
  definitions(byId("words"), [
    ...page.words,
    ...recordings.map((one) => [
      `Exactness, ${one.label}`,
      one.quantities.map((quantity) => `${quantity.label} ± ${number(100 * quantity.error, 2)} %`).join("; "),
    ]),
  ]);
  for (const recording of recordings)
    definitions(byId("about"), [
      [
        "Trace",
        `${recording.label}: ${recording.name}, ${counted(recording.steps, "step")}, ${recording.layers} layers, ${recording.heads} heads, up to ${counted(recording.positions, "token")}`,
      ],
      ...recording.about,
    ]);
  drawNow();
}
start();
