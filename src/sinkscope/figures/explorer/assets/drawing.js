// Colours, canvases, axes and the tip that tells numbers: what all drawings share.
// magma (Smith and van der Walt, CC0), its darkest end raised to the ground of the page: its lightness rises all the way, so that colour-blind readers and grey prints show the same order.
const MAGMA = ["17131f", "221250", "440f76", "721f81", "9e2f7f", "cd4071", "f1605d", "fd9668", "feca8d", "fcfdbf"];
// The kinds of main sinks, in colours that colour-blind readers tell apart (Okabe and Ito's).
const KINDS = ["none", "first token", "special", "newline", "white space", "punctuation", "mask", "content"];
const KIND_COLOURS = ["0072b2", "56b4e9", "e69f00", "f0e442", "009e73", "cc79a7", "d55e00"];
const UPWARD = ["0b5cad", "3d86cf", "86b6e3", "c5dcf1", "f4f3f0", "f8d9c2", "eea877", "d4702c", "9c3f05"];
const UPWARD_DARK = ["8cc4ff", "4f95dc", "2b669f", "1c3f61", "1b1b20", "553217", "93511d", "d67b2e", "ffb877"];

const dark = () => document.documentElement.dataset.theme === "dark";
const colours = new Map();
function colour(name) {
  const key = name + dark();
  if (!colours.has(key))
    colours.set(
      key,
      getComputedStyle(document.documentElement)
        .getPropertyValue("--" + name)
        .trim(),
    );
  return colours.get(key);
}

function ramp(anchors, count = 256) {
  const parts = anchors.map((text) => [0, 2, 4].map((at) => parseInt(text.slice(at, at + 2), 16)));
  const table = new Uint8ClampedArray(count * 3);
  for (let number = 0; number < count; number++) {
    const place = (number / (count - 1)) * (parts.length - 1),
      left = Math.min(parts.length - 2, Math.floor(place)),
      rest = place - left;
    for (let part = 0; part < 3; part++) table[number * 3 + part] = parts[left][part] * (1 - rest) + parts[left + 1][part] * rest;
  }
  return table;
}
const RAMPS = {
  dark: ramp(MAGMA),
  light: ramp(["fffef8", ...MAGMA.slice(1, -1).reverse(), "08040f"]),
  difference: ramp(UPWARD),
  darkDifference: ramp(UPWARD_DARK),
  kinds: ramp(["e6e3dd", ...KIND_COLOURS], KINDS.length),
  darkKinds: ramp(["2b2b33", ...KIND_COLOURS], KINDS.length),
};
const heatRamp = () => (dark() ? RAMPS.dark : RAMPS.light);
const differenceRamp = () => (dark() ? RAMPS.darkDifference : RAMPS.difference);
const kindRamp = () => (dark() ? RAMPS.darkKinds : RAMPS.kinds);
const cssOf = (table, number) => `rgb(${table[number * 3]},${table[number * 3 + 1]},${table[number * 3 + 2]})`;
// Black or white, whichever is easier to read on a colour: one of them has a contrast of 4.58 or more (WCAG 2).
function inkOn(table, number) {
  const [red, green, blue] = [0, 1, 2].map((part) => {
    const value = table[number * 3 + part] / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}
// Strokes a line that is seen on every colour of a map: black and white, one within the other.
function strokeOnMap(pen, width, dash = []) {
  pen.strokeStyle = colour("casing");
  pen.lineWidth = width + 2;
  pen.stroke();
  pen.strokeStyle = colour("mark");
  pen.lineWidth = width;
  pen.setLineDash(dash);
  pen.stroke();
  pen.setLineDash([]);
}
function frameOnMap(pen, ...box) {
  pen.beginPath();
  pen.rect(...box);
  strokeOnMap(pen, 2);
}

function number(value, digits = 4) {
  if (value === null || Number.isNaN(value)) return "–";
  const text =
    Math.abs(value) >= 1000 || (value !== 0 && Math.abs(value) < 0.0001)
      ? value.toExponential(2)
      : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−");
}
// The value of a number, NaN where it may not have been recorded.
const known = (found) => (!found || (found.gaps && found.below) ? NaN : found.value);
// A number with how exact it is: the stored float32, or one decoded from a byte.
function told(found, unit) {
  if (!found) return "…";
  if (found.exact) return `${number(found.value, 7)} ${unit}`;
  if (found.below)
    return found.sparse
      ? "not among the largest columns, which this page keeps"
      : `${found.gaps ? "not recorded here, or " : ""}less than ${number(found.below, 2)} ${unit}`;
  return `≈ ${number(found.value, 3)} ${unit} (± ${number(100 * found.error, 2)} %)`;
}
const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

// Colours of the 256 codes of a table: `low` is the value of the first colour of a logarithmic scale, `top` that of the last colour.
function codeColours(table, low, top, logarithmic) {
  const shades = new Uint8Array(256);
  for (let code = 1; code < 256; code++)
    shades[code] = logarithmic
      ? 255 * Math.max(0, Math.min(1, Math.log(table[code] / low) / Math.log(Math.max(top / low, 1.0001))))
      : 255 * Math.min(1, table[code] / top);
  return shades;
}

// A drawing: a picture and a track that change seldom, and marks over them that change with every step.
const drawings = [];
class Drawing {
  constructor(place, label) {
    this.place = place;
    this.picture = place.appendChild(document.createElement("canvas"));
    this.track = place.appendChild(document.createElement("canvas"));
    this.marks = place.appendChild(document.createElement("canvas"));
    this.sheets = [this.picture, this.track, this.marks];
    for (const one of this.sheets) one.setAttribute("aria-hidden", "true");
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", label);
    this.drawn = "";
    drawings.push(this);
    this.measured = false;
    new ResizeObserver(() => {
      this.measured = false;
      draw();
    }).observe(place);
  }
  // Where a map stands between its axes.
  get inside() {
    return { left: 42, top: 6, width: this.width - 50, height: this.height - 44 };
  }
  // Returns whether there is anything to draw on. The place is measured only after it has changed, since measuring lays the page out.
  size() {
    if (this.measured) return this.width > 0 && this.height > 0;
    this.measured = true;
    const { clientWidth: width, clientHeight: height } = this.place,
      ratio = Math.min(3, window.devicePixelRatio || 1);
    for (const one of this.sheets)
      if (one.width !== Math.round(width * ratio) || one.height !== Math.round(height * ratio)) {
        one.width = Math.round(width * ratio);
        one.height = Math.round(height * ratio);
        this.drawn = "";
      }
    this.width = width;
    this.height = height;
    this.ratio = ratio;
    return width > 0 && height > 0;
  }
  // Puts all sheets on the first, which alone is printed: browsers print a cleared canvas as white, over what lies below.
  merge() {
    const pen = this.picture.getContext("2d");
    pen.setTransform(1, 0, 0, 1, 0, 0);
    for (const one of this.sheets.slice(1)) if (one.width && one.height) pen.drawImage(one, 0, 0);
    this.drawn = "";
  }
  pen(canvas) {
    const pen = canvas.getContext("2d");
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    pen.font = `11px system-ui, "DejaVu Sans", sans-serif`;
    pen.lineWidth = 1;
    return pen;
  }
  // Draws the picture only where something that it depends on has changed.
  paint(key, work) {
    const all = `${key}|${this.width}|${this.height}|${dark()}`;
    if (this.drawn === all) return;
    work(this.pen(this.picture));
    this.drawn = all;
  }
}

// The nicest step of ticks: at most `most` of them from low to high.
function ticks(low, high, most) {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, most),
    power = 10 ** Math.floor(Math.log10(raw)),
    each = [1, 2, 5, 10].find((one) => one * power >= raw) * power;
  const found = [];
  for (let at = Math.ceil(low / each) * each; at <= high + each * 1e-6; at += each) found.push(Number(at.toPrecision(10)));
  return found;
}

// Axes of numbers; with `cells` the numbers name rows and columns and stand in their middle.
function axes(pen, box, { x, y, xLabel, yLabel, down, cells }) {
  if (cells) return cellAxes(pen, box, x[1], y[1], xLabel, yLabel);
  pen.fillStyle = colour("soft");
  pen.strokeStyle = colour("line");
  pen.textAlign = "center";
  pen.textBaseline = "top";
  for (const at of ticks(x[0], x[1], Math.max(2, box.width / 70))) {
    const left = box.left + ((at - x[0]) / (x[1] - x[0] || 1)) * box.width;
    pen.fillText(number(at), left, box.top + box.height + 5);
    pen.beginPath();
    pen.moveTo(left, box.top + box.height);
    pen.lineTo(left, box.top + box.height + 3);
    pen.stroke();
  }
  pen.fillText(xLabel, box.left + box.width / 2, box.top + box.height + 18);
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  if (y)
    for (const at of ticks(y[0], y[1], Math.max(2, box.height / 34))) {
      const part = (at - y[0]) / (y[1] - y[0] || 1),
        top = box.top + (down ? part : 1 - part) * box.height;
      pen.fillText(number(at), box.left - 6, top);
      pen.beginPath();
      pen.moveTo(box.left - 3, top);
      pen.lineTo(down ? box.left : box.left + box.width, top);
      pen.stroke();
    }
  upwardLabel(pen, box, yLabel);
}

// The label of an axis that goes upwards.
function upwardLabel(pen, box, text) {
  pen.save();
  pen.translate(10, box.top + box.height / 2);
  pen.rotate(-Math.PI / 2);
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.fillText(text, 0, 0);
  pen.restore();
}

function cellAxes(pen, box, columns, rows, xLabel, yLabel) {
  const every = (count, size, room) => Math.max(1, [1, 2, 4, 8, 16, 32, 64].find((one) => (size / count) * one >= room) ?? 64);
  pen.fillStyle = colour("soft");
  pen.textAlign = "center";
  pen.textBaseline = "top";
  for (let column = 0; column < columns; column += every(columns, box.width, 22))
    pen.fillText(column, box.left + ((column + 0.5) / columns) * box.width, box.top + box.height + 5);
  pen.fillText(xLabel, box.left + box.width / 2, box.top + box.height + 18);
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (let row = 0; row < rows; row += every(rows, box.height, 14))
    pen.fillText(row, box.left - 6, box.top + (1 - (row + 0.5) / rows) * box.height);
  upwardLabel(pen, box, yLabel);
}

// Paints a table of shades, rows × columns, as large as the box: where it is smaller than the table, the strongest of what falls on a dot is seen.
function paintShades(pen, box, rows, columns, shadeAt, table, ratio, strength = (shade) => shade) {
  const wide = Math.max(1, Math.min(columns, Math.round(box.width * ratio))),
    high = Math.max(1, Math.min(rows, Math.round(box.height * ratio)));
  const image = new ImageData(wide, high),
    pixels = new Uint32Array(image.data.buffer),
    inks = new Uint32Array(256);
  for (let shade = 0; shade < 256; shade++)
    inks[shade] = (255 << 24) | (table[shade * 3 + 2] << 16) | (table[shade * 3 + 1] << 8) | table[shade * 3];
  const shades = new Int16Array(wide * high).fill(-1),
    best = new Float32Array(wide * high).fill(-1);
  for (let row = 0; row < rows; row++) {
    const line = Math.floor((row * high) / rows) * wide;
    for (let column = 0; column < columns; column++) {
      const shade = shadeAt(row, column);
      if (shade < 0) continue;
      const at = line + Math.floor((column * wide) / columns),
        here = strength(shade);
      if (here > best[at]) {
        best[at] = here;
        shades[at] = shade;
      }
    }
  }
  for (let at = 0; at < pixels.length; at++) pixels[at] = shades[at] < 0 ? 0 : inks[shades[at]];
  const sheet = document.createElement("canvas");
  sheet.width = wide;
  sheet.height = high;
  sheet.getContext("2d").putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(sheet, box.left, box.top, box.width, box.height);
}

function legendBar(place, table, left, right, unit) {
  const key = `${left}|${right}|${unit}|${dark()}`;
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  const stops = Array.from({ length: 11 }, (_, at) => cssOf(table, Math.round(at * 25.5)));
  const bar = document.createElement("i");
  bar.style.background = `linear-gradient(to right, ${stops.join(",")})`;
  place.replaceChildren(left, bar, `${right} ${unit}`);
}

const tip = document.getElementById("tip");
let tellAgain = null; // what is pointed at, told again when more of the data is there
function showTip(event, tell, paint) {
  const [words, sheet] = tip.children;
  tellAgain = () => showTip(event, tell, paint);
  words.textContent = tell() || "";
  tip.hidden = !words.textContent;
  sheet.hidden = !paint?.(sheet);
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(innerWidth - width - 4, event.clientX + 14)) + "px";
  tip.style.top = (event.clientY + height + 24 > innerHeight ? event.clientY - height - 12 : event.clientY + 16) + "px";
}
function hideTip() {
  tellAgain = null;
  tip.hidden = true;
}

// The row and column of a map under a point, or null beside it.
function cellAt(box, rows, columns, x, y) {
  const row = Math.floor(((y - box.top) / box.height) * rows),
    column = Math.floor(((x - box.left) / box.width) * columns);
  return row >= 0 && row < rows && column >= 0 && column < columns ? [row, column] : null;
}

// Tells of the place under the pointer; a click or a drag chooses it. `at` turns pixels of the drawing into a place, or null.
function follow(drawing, { at, tell, choose, paint }) {
  const placeOf = (event) => {
    const corner = drawing.place.getBoundingClientRect();
    return at(event.clientX - corner.left, event.clientY - corner.top);
  };
  drawing.place.addEventListener("pointermove", (event) => {
    const place = placeOf(event);
    if (place && event.buttons & 1) choose(...place);
    if (place)
      showTip(
        event,
        () => tell(...place),
        paint && ((sheet) => paint(sheet, ...place)),
      );
    else hideTip();
  });
  drawing.place.addEventListener("pointerleave", hideTip);
  drawing.place.addEventListener("pointerdown", (event) => {
    const place = event.button === 0 && placeOf(event);
    if (place) choose(...place);
  });
}
