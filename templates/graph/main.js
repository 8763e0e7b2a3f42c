// What a person does: look around, search, choose, fold, hide, by mouse or keys.
const stage = document.getElementById("stage");
const search = document.getElementById("search");
const said = document.getElementById("said");
const svg = node("svg", { class: "graph", role: "group", "aria-label": `${data.name}: which layer reads what, on which device` });
const layer = node("g", { class: "picture" });
svg.append(layer, titles);
stage.append(svg);
const eye = { x: 0, y: 0, scale: 1, moved: false };
let height = data.height;
let chosen = null;
let chosenWay = "";

function look() {
  layer.setAttribute("transform", `translate(${eye.x} ${eye.y}) scale(${eye.scale})`);
  placeTitles(eye);
}

function fit() {
  const { clientWidth, clientHeight } = stage;
  const whole = Math.min(clientWidth / data.width, clientHeight / height, 1.4);
  eye.moved = false;
  eye.scale = Math.max(whole, 0.02);
  eye.x = (clientWidth - data.width * eye.scale) / 2;
  eye.y = Math.max(belowTitles(), (clientHeight - height * eye.scale) / 2);
  look();
}

// At first, and after folding: the whole where that can be read, else its upper end.
function begin() {
  fit();
  if (eye.scale >= 0.4) return;
  eye.scale = Math.min(stage.clientWidth / data.width, 0.8);
  eye.x = Math.max(0, (stage.clientWidth - data.width * eye.scale) / 2);
  eye.y = belowTitles();
  look();
}

// Where the picture begins, so that titles, which stay readable, do not cover its first row.
function belowTitles() {
  return Math.max(0, 22 - data.head * eye.scale);
}

function zoom(factor, x = stage.clientWidth / 2, y = stage.clientHeight / 2) {
  const scale = Math.min(6, Math.max(0.02, eye.scale * factor));
  eye.x = x - ((x - eye.x) * scale) / eye.scale;
  eye.y = y - ((y - eye.y) * scale) / eye.scale;
  eye.scale = scale;
  eye.moved = true;
  look();
}

function redraw() {
  const before = layer.querySelector('[tabindex="0"]');
  const [stop, focused] = [before && targetOf(before), before !== null && before === document.activeElement];
  height = draw(layer);
  hideKinds();
  light();
  const part = (stop && partOf(stop)) ?? rowsShown()[0];
  part?.setAttribute("tabindex", "0");
  if (focused) part?.focus({ preventScroll: true });
  document.getElementById("fold").textContent = folded.size ? "Unfold" : "Fold";
  document.getElementById("fold").setAttribute("aria-pressed", String(folded.size > 0));
}

function hideKinds() {
  for (const part of layer.querySelectorAll(".edge, .crossing-label")) {
    part.style.display = hidden.has(part.dataset.kind) ? "none" : "";
  }
}

function light() {
  layer.classList.toggle("dim", chosen !== null);
  layer.querySelectorAll(".lit, .chosen").forEach((part) => part.classList.remove("lit", "chosen"));
  if (chosen === null) return;
  const { rows, arcs: every } = lit(chosen, chosenWay);
  const arcs = new Set([...every].map((at) => stands[at]));
  if ("row" in chosen) data.items.forEach((item) => item.parent === chosen.row && rows.add(item.id));
  const open = new Set([...rows].filter((id) => items.has(id)).map((id) => shownRow(items.get(id)).id));
  for (const row of layer.querySelectorAll(".row")) row.classList.toggle("lit", open.has(row.dataset.row));
  for (const edge of layer.querySelectorAll(".edge")) edge.classList.toggle("lit", arcs.has(Number(edge.dataset.edge)));
  for (const label of layer.querySelectorAll(".crossing-label")) label.classList.toggle("lit", arcs.has(Number(label.dataset.label)));
  const origins = new Set([...arcs].map((at) => data.arcs[at].origin));
  if ("state" in chosen) origins.add(states.get(chosen.state).origin);
  for (const chip of layer.querySelectorAll(".chip-group")) chip.classList.toggle("lit", origins.has(chip.dataset.state));
  find(chosen)?.classList.add("chosen", "lit");
}

// The row that stands for an item: itself, or the first of its folded run.
function shownRow(item) {
  return isHiddenRow(item) ? data.items[data.folds[item.fold].first] : item;
}

function find(target) {
  if ("row" in target) return layer.querySelector(`[data-row="${CSS.escape(shownRow(items.get(target.row)).id)}"]`);
  if ("state" in target) return layer.querySelector(`[data-state="${CSS.escape(target.state)}"]`);
  return layer.querySelector(`[data-edge="${stands[target.edge]}"]`);
}

// Where a thing is seen: its own part, or, of a state without one, that of the row which makes or reads it.
function partOf(target) {
  const part = find(target);
  if (part || !("state" in target)) return part;
  const state = states.get(target.state);
  const row = [state.row, ...state.rows].find((id) => items.get(id)?.row);
  return row === undefined ? null : find({ row });
}

open = (target, way = "") => {
  chosen = target;
  chosenWay = way;
  reveal(target);
  if ("row" in target) showRow(target.row);
  else if ("state" in target) showState(target.state);
  else showEdge(target.edge);
  light();
  said.textContent = panel.querySelector("h2").textContent;
};

// From a link: opened, and in view.
jump = (target) => {
  open(target);
  bring(target);
};

// An op is not shown while its layer is closed.
function reveal(target) {
  const item = "row" in target ? items.get(target.row) : null;
  if (item && item.parent !== null && isHiddenRow(item)) toggleFold(item.fold);
}

function close() {
  chosen = null;
  showNothing();
  light();
}

function targetOf(element) {
  const part = element.closest?.(".row, .chip-group, .edge");
  if (!part || !layer.contains(part)) return null;
  if ("row" in part.dataset) return { row: part.dataset.row };
  if ("state" in part.dataset) return { state: part.dataset.state };
  return { edge: Number(part.dataset.edge) };
}

function toggleFold(number) {
  if (folded.has(number)) folded.delete(number);
  else folded.add(number);
  redraw();
}

function bring(target) {
  const part = partOf(target);
  if (!part) return;
  const box = part.getBoundingClientRect();
  const frame = stage.getBoundingClientRect();
  const above = titles.getBoundingClientRect().bottom;
  const inside = box.left >= frame.left && box.right <= frame.right && box.top >= above && box.bottom <= frame.bottom;
  if (!inside || eye.scale < 0.5) center(target);
}

function center(target) {
  const part = partOf(target);
  if (!part) return;
  const box = part.getBoundingClientRect();
  const frame = stage.getBoundingClientRect();
  const scale = Math.max(eye.scale, 0.9);
  const [x, y] = [(box.left + box.width / 2 - frame.left - eye.x) / eye.scale, (box.top + box.height / 2 - frame.top - eye.y) / eye.scale];
  const within = (at, size, whole) => (whole * scale <= size ? (size - whole * scale) / 2 : Math.min(20, Math.max(size - whole * scale - 20, at)));
  eye.scale = scale;
  eye.x = within(frame.width / 2 - x * scale, frame.width, data.width);
  eye.y = within(frame.height / 2 - y * scale, frame.height, height);
  eye.moved = true;
  look();
}

// --- search -----------------------------------------------------------------------------------------------------------

function matches(text) {
  const sought = text.trim().toLowerCase();
  if (!sought) return [];
  const rows = data.items.filter((item) => item.row).map((item) => [item.parent === null ? item.label : item.id, { row: item.id }]);
  const all = [...rows, ...rows.map(([, target]) => [target.row, target]), ...data.states.map((state) => [state.id, { state: state.id }])];
  const rank = (name) => (name === sought ? 0 : name.startsWith(sought) ? 1 : name.includes(sought) ? 2 : 3);
  const ranked = all.map(([name, target], at) => [rank(name.toLowerCase()), at, name, target]).filter(([value]) => value < 3);
  ranked.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  return ranked.map(([, , name, target]) => [name, target]);
}

function showMatches() {
  const found = matches(search.value);
  const exact = found.slice(0, 40);
  panel.replaceChildren(element("h2", `${found.length} found`), ...links("Matches", exact));
  said.textContent = `${found.length} found`;
}

search.addEventListener("input", () => (search.value.trim() ? showMatches() : close()));
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter") {
    const found = matches(search.value);
    if (found.length) {
      open(found[0][1]);
      bring(found[0][1]);
      focusPart(partOf(found[0][1]));
    }
  }
});

// --- mouse ------------------------------------------------------------------------------------------------------------

let held = null;
stage.addEventListener("wheel", (event) => {
  event.preventDefault();
  const frame = stage.getBoundingClientRect();
  zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), event.clientX - frame.left, event.clientY - frame.top);
}, { passive: false });
stage.addEventListener("pointerdown", (event) => {
  held = { x: event.clientX - eye.x, y: event.clientY - eye.y, from: [event.clientX, event.clientY], moved: false };
});
window.addEventListener("pointermove", (event) => {
  if (!held) return;
  held.moved ||= Math.hypot(event.clientX - held.from[0], event.clientY - held.from[1]) > 4;
  if (!held.moved) return;
  stage.classList.add("dragging");
  Object.assign(eye, { x: event.clientX - held.x, y: event.clientY - held.y, moved: true });
  look();
});
let dragged = false;
function letGo() {
  dragged = held?.moved ?? false;
  held = null;
  stage.classList.remove("dragging");
}
window.addEventListener("pointerup", letGo);
window.addEventListener("pointercancel", letGo);
stage.addEventListener("click", (event) => {
  if (dragged) return;
  if ("fold" in event.target.dataset) {
    toggleFold(Number(event.target.dataset.fold));
    return;
  }
  const target = targetOf(event.target);
  if (target) open(target);
  else close();
});

// --- keys -------------------------------------------------------------------------------------------------------------

function focusPart(part) {
  if (!part) return;
  layer.querySelectorAll('[tabindex="0"]').forEach((other) => other.setAttribute("tabindex", "-1"));
  part.setAttribute("tabindex", "0");
  part.focus({ preventScroll: true });
}

function rowsShown() {
  return [...layer.querySelectorAll(".row")];
}

function rowOf(part) {
  const target = targetOf(part);
  if (!target) return rowsShown()[0];
  if ("row" in target) return part;
  const id = "state" in target ? states.get(target.state).row : data.items[data.arcs[target.edge].target].id;
  return find({ row: items.has(id) && items.get(id).row ? id : rowsShown()[0].dataset.row });
}

// A row with what belongs to it: the states that it makes, and its reads.
function company(row) {
  const item = items.get(row.dataset.row);
  const chips = item.chips.map((chip) => find({ state: chip.value }));
  const reads = data.arcs.flatMap((arc, at) => (arc.target === item.at ? [find({ edge: at })] : []));
  return [row, ...chips, ...reads].filter((part) => part && part.style.display !== "none");
}

function step(event) {
  const here = targetOf(document.activeElement) ? document.activeElement : null;
  const row = here && rowOf(here);
  if (!row) return focusPart(rowsShown()[0]);
  const [ring, at] = event.key === "ArrowUp" || event.key === "ArrowDown" ? [rowsShown(), rowsShown().indexOf(row)] : [company(row), company(row).indexOf(here)];
  const next = at + (event.key === "ArrowUp" || event.key === "ArrowLeft" ? -1 : 1);
  const part = ring[Math.min(ring.length - 1, Math.max(0, next))];
  focusPart(part);
  bring(targetOf(part));
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    search.value = "";
    close();
    focusPart(layer.querySelector('[tabindex="0"]') ?? rowsShown()[0]);
  } else if (event.target === search) {
    return;
  } else if (event.key === "/") {
    event.preventDefault();
    search.focus();
  } else if (event.key === "f" || event.key === "F") {
    fit();
  } else if (event.key === "+" || event.key === "-") {
    zoom(event.key === "+" ? 1.25 : 0.8);
  } else if (stage.contains(event.target) || event.target === document.body) {
    keyInPicture(event);
  }
});

function keyInPicture(event) {
  const target = targetOf(event.target);
  if (event.key.startsWith("Arrow")) {
    event.preventDefault();
    step(event);
  } else if (event.key === "Enter" && target) {
    open(target);
  } else if (event.key === " " && target && "row" in target && items.get(target.row).fold !== null) {
    event.preventDefault();
    toggleFold(items.get(target.row).fold);
  }
}
