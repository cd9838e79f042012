// The one selection that all views show and change, kept in the address of the page.
const selection = { first: 0, second: -1, step: 0, layer: 0, head: 0, token: -1, quantity: "", statistic: "strength", scale: "linear" };
const TEXTS = new Set(["quantity", "statistic", "scale"]);
const recordings = page.traces.map((_, number) => new Recording(number));

function shown() {
  return [selection.first, selection.second].filter((number) => number >= 0).map((number) => recordings[number]);
}
function stepOf(recording) {
  return Math.min(selection.step, recording.steps - 1);
}
function lastStep() {
  return Math.max(...shown().map((one) => one.steps)) - 1;
}

function readAddress() {
  for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
    if (TEXTS.has(name)) selection[name] = text;
    else if (name in selection && /^-?\d{1,7}$/.test(text)) selection[name] = Number(text);
  }
  keepInRange();
}

function keepInRange() {
  const between = (value, low, high) => Math.max(low, Math.min(high, value));
  selection.first = between(selection.first, 0, recordings.length - 1);
  selection.second = between(selection.second, -1, recordings.length - 1);
  const recording = recordings[selection.first];
  selection.step = between(selection.step, 0, lastStep());
  selection.layer = between(selection.layer, -1, recording.layers - 1);
  selection.head = selection.layer < 0 ? -1 : between(selection.head, -1, recording.heads - 1);
  selection.token = between(selection.token, -1, recording.positions - 1);
  if (!recording.quantities.some((one) => one.name === selection.quantity)) selection.quantity = recording.followed;
  if (selection.scale !== "log") selection.scale = "linear";
  if (!(selection.statistic in STATISTICS)) selection.statistic = "strength";
}

let addressTimer = 0;
function writeAddress() {
  clearTimeout(addressTimer);
  addressTimer = setTimeout(() => {
    try {
      history.replaceState(null, "", "#" + new URLSearchParams(Object.entries(selection)));
    } catch {
      // inside a notebook the page has no address of its own
    }
  }, 120);
}

function select(changes) {
  Object.assign(selection, changes);
  keepInRange();
  writeAddress();
  draw();
}

// The quantity that a trace shows: the one chosen, or where sinks are followed in it, if the other trace chose that.
function quantityOf(recording) {
  const chosen = recordings[selection.first];
  if (recording !== chosen && selection.quantity === chosen.followed) return recording.followed;
  return recording.quantities.some((one) => one.name === selection.quantity) ? selection.quantity : recording.followed;
}
