// The picture: elements from the data's positions. Folding moves items; everything else hangs on them.
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const colours = new Map(Object.entries(data.colours));
const states = new Map(data.states.map((state) => [state.id, state]));
const items = new Map(data.items.map((item, at) => [item.id, { ...item, at }]));
const folded = new Set(data.folds.flatMap((fold, at) => (fold.closed ? [at] : [])));
const hidden = new Set();

function node(name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

function coloured(element, kind) {
  element.classList.add("of-kind");
  element.style.setProperty("--k", colours.get(kind) ?? "#777777");
  element.dataset.kind = kind;
  return element;
}

// Tops of the items with the present folds, and the height: a folded layer lies where the first of its run does.
function tops() {
  const top = [];
  let y = data.head;
  data.items.forEach((item) => {
    if (isHiddenRow(item)) {
      top.push(top[data.folds[item.fold].first]);
    } else {
      top.push(y);
      y += item.place.height + (isClosed(item) ? data.gap : item.gap);
    }
  });
  return { top, height: y - data.gap + data.margin };
}

function path(points, top) {
  const xy = points.map(([x, item, dy]) => [x, top[item] + dy]);
  let out = `M${xy[0][0]} ${xy[0][1]}`;
  for (let at = 1; at + 1 < xy.length; at += 1) {
    const [[ax, ay], [bx, by], [cx, cy]] = [xy[at - 1], xy[at], xy[at + 1]];
    const before = Math.abs(bx - ax) + Math.abs(by - ay);
    const after = Math.abs(cx - bx) + Math.abs(cy - by);
    const r = Math.min(data.radius, before / 2, after / 2);
    const [px, py] = [bx - r * Math.sign(bx - ax), by - r * Math.sign(by - ay)];
    const [qx, qy] = [bx + r * Math.sign(cx - bx), by + r * Math.sign(cy - by)];
    out += `L${px} ${py}Q${bx} ${by} ${qx} ${qy}`;
  }
  const last = xy[xy.length - 1];
  return `${out}L${last[0]} ${last[1]}`;
}

function cut(text, most) {
  const letters = [...text];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : text;
}

function drawColumns(layer, height) {
  data.column_places.forEach(([x, width]) => {
    layer.append(node("rect", { class: "stripe", x: x - 8, y: 8, width: width + 16, height: height - 16, rx: 8 }));
  });
}

function drawBand(layer, labels, item, top) {
  const { x, width, height } = item.place;
  layer.append(node("rect", { class: "band", x: x - 4, y: top, width: width + 8, height, rx: 4 }));
  const text = item.detail ? `${item.label} · ${item.detail}` : item.label;
  labels.append(node("text", { class: "band-title", "text-anchor": "end", x: x + width - 4, y: top + 13 }, text));
}

function drawArc(layer, labels, arc, at, top) {
  const whole = coloured(node("g", { class: "edge", role: "button", tabindex: -1, "data-edge": at }), arc.kind);
  const words = edgeWords(arc);
  whole.setAttribute("aria-label", words);
  whole.append(node("title", {}, words));
  if (arc.change) whole.classList.add(`is-${arc.change}`);
  const d = path(arc.crossing ? arc.points.slice(0, -2) : arc.points, top);
  whole.append(node("path", { class: "hit", d: path(arc.points, top) }));
  whole.append(node("path", { class: arc.implied ? "arc implied" : "arc", d }));
  const [[before], [x, item, dy]] = arc.points.slice(-2);
  const y = top[item] + dy;
  const way = x < before ? -1 : 1;
  if (arc.crossing) {
    whole.append(node("path", { class: "arc crossing", d: path(arc.points.slice(-3), top) }));
    whole.append(node("path", { class: "end", d: `M${x} ${y}l${-9 * way} -5v10z` }));
    const label = node("text", { class: "crossing-label", x: Math.min(before, x) + 34, y: y - 4 }, arc.origin);
    label.dataset.kind = arc.kind;
    label.dataset.label = at;
    labels.append(label);
  } else if (!arc.implied) {
    whole.append(node("circle", { class: "end", cx: x - 3 * way, cy: y, r: 3 }));
  }
  layer.append(whole);
}

function drawRow(layer, item, top) {
  const { x, width, height } = item.place;
  const closed = isClosed(item);
  const fold = item.fold === null ? null : data.folds[item.fold];
  const label = closed ? fold.label : item.label;
  const row = node("g", { class: "row", role: "button", tabindex: -1, "data-row": item.id });
  if (item.parent !== null) row.classList.add("inner");
  row.setAttribute("aria-label", rowWords(item, label));
  row.append(node("title", {}, rowWords(item, label)));
  if (closed) {
    row.append(node("rect", { class: "box", x: x + 3, y: top + 3, width, height, rx: 5 }));
  }
  row.append(node("rect", { class: "box", x, y: top, width, height, rx: 5 }));
  const text = node("text", { class: "label", x: x + item.text_x, y: top + 15 }, cut(label, 32));
  text.append(node("tspan", { class: "detail", dx: 8 }, item.details[0]));
  row.append(text);
  item.details.slice(1).forEach((detail, at) => {
    row.append(node("text", { class: "detail", x: x + item.text_x, y: top + 15 + data.more * (at + 1) }, detail));
  });
  drawMarks(row, item, top);
  layer.append(row);
  if (fold !== null && fold.first === items.get(item.id).at) {
    const toggle = node("text", { class: "toggle", x: x + 9, y: top + 15, role: "button" }, closed ? "▸" : "▾");
    toggle.setAttribute("aria-label", `${closed ? "unfold" : "fold"} ${fold.label}`);
    toggle.dataset.fold = item.fold;
    row.append(toggle);
  }
  for (const chip of item.chips) drawChip(layer, item, chip, top);
}

function drawChip(layer, item, chip, top) {
  const group = node("g", { class: "chip-group", role: "button", tabindex: -1, "data-state": chip.value });
  const words = states.get(chip.value)?.sentence ?? chip.value;
  group.setAttribute("aria-label", words);
  group.append(node("title", {}, words));
  const x = item.place.x + chip.x;
  const y = top + chip.y;
  group.append(coloured(node("rect", { class: "chip", x, y, width: chip.width, height: 13, rx: 6 }), chip.kind));
  group.append(node("text", { class: "chip-text", x: x + 5, y: y + 10 }, chip.text));
  layer.append(group);
}

// Whether a row stands for a fold: for itself and the rows behind it.
function isClosed(item) {
  return item.fold !== null && folded.has(item.fold);
}

function isHiddenRow(item) {
  return item.fold !== null && folded.has(item.fold) && data.folds[item.fold].first !== items.get(item.id).at;
}

// The arc that is drawn for each: one for all of a value between the same two rows, of which folds make many.
let stands = [];
function standing() {
  const first = new Map();
  const seen = (at) => (isHiddenRow(data.items[at]) ? data.folds[data.items[at].fold].first : at);
  return data.arcs.map((arc, at) => {
    const key = JSON.stringify([arc.value, seen(arc.source), seen(arc.target), arc.change]);
    if (!first.has(key)) first.set(key, at);
    return first.get(key);
  });
}

function draw(layer) {
  const { top, height } = tops();
  const labels = node("g");
  layer.replaceChildren();
  drawColumns(layer, height);
  data.items.forEach((item, at) => item.row || drawBand(layer, labels, item, top[at]));
  drawGhosts(layer, top);
  stands = standing();
  data.arcs.forEach((arc, at) => isInside(arc) || stands[at] !== at || drawArc(layer, labels, arc, at, top));
  data.items.forEach((item, at) => !item.row || isHiddenRow(item) || drawRow(layer, item, top[at]));
  layer.append(labels);
  return height;
}

// An arc between two rows that are folded into one.
function isInside(arc) {
  const [source, target] = [data.items[arc.source], data.items[arc.target]];
  return source.fold !== null && source.fold === target.fold && folded.has(source.fold);
}

function edgeWords(arc) {
  const [source, target] = [data.items[arc.source], data.items[arc.target]];
  const change = arc.change ? `, ${arc.change}` : "";
  if (arc.crossing) return `${arc.origin} crosses ${target.label}${change}`;
  return `${arc.origin}: ${source.row ? source.label : source.device} to ${target.label}${change}`;
}

function rowWords(item, label) {
  const makes = item.chips.length ? `, makes ${item.chips.map((chip) => chip.text).join(", ")}` : "";
  const changes = item.changes.length ? `, ${item.changes.join(", ")}` : "";
  const number = numberOf(item);
  return `${label}${item.detail ? `, ${item.detail}` : ""} on ${item.device}${makes}${changes}${number ? `, ${number.text}` : ""}`;
}
