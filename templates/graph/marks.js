// What is drawn on top: differences to another graph, numbers as colour, and titles that stay in view.
let measure = data.measures.length ? 0 : null;

// The number of a row; of a closed fold the largest, said to be so where the others differ.
function numberOf(item) {
  if (measure === null || !item.row) return null;
  const known = data.measures[measure].rows;
  if (!isClosed(item)) return known[item.id] ?? null;
  const fold = data.folds[item.fold];
  const own = data.items.slice(fold.first, fold.last + 1).flatMap((other) => known[other.id] ?? []);
  const most = own.reduce((largest, number) => (largest === null || number.share > largest.share ? number : largest), null);
  return own.every((number) => number.text === most.text) ? most : { ...most, text: `≤ ${most.text}` };
}

function drawMarks(row, item, top) {
  const { x, width, height } = item.place;
  if (item.changes.length) row.classList.add(`is-${item.changes[0]}`);
  if (item.badge) {
    row.append(node("text", { class: "badge", "text-anchor": "end", x: x + width - item.badge_right, y: top + 15 }, item.badge));
  }
  if (measure === null || item.parent !== null) return;
  const number = numberOf(item);
  row.classList.add(number ? "heated" : "unmeasured");
  if (number) {
    row.style.setProperty("--share", number.share);
    row.append(node("rect", { class: "heat-bar", x: x + 2, y: top + height - 4, width: (width - 4) * number.share, height: 3, rx: 1.5 }));
  }
  row.append(node("text", { class: "number", "text-anchor": "end", x: x + width - 6, y: top + 15 }, number ? number.text : "–"));
}

// Where moved rows were.
function drawGhosts(layer, top) {
  for (const ghost of data.ghosts) {
    const item = data.items[ghost.item];
    if (isHiddenRow(item)) continue;
    const y = top[ghost.item];
    const label = isClosed(item) ? data.folds[item.fold].label : ghost.label;
    const part = node("g", { "data-ghost": item.id });
    part.append(node("title", {}, `${label} was here before`));
    part.append(node("rect", { class: "ghost", x: ghost.x, y, width: ghost.width, height: ghost.height, rx: 5 }));
    part.append(node("path", { class: "ghost-line", d: `M${ghost.begin} ${y + 11}L${ghost.end} ${y + 11}` }));
    part.append(node("text", { class: "ghost-label", x: ghost.x + 8, y: y + 14 }, cut(label, 18)));
    layer.append(part);
  }
}

// The columns' titles, over the picture: they stay at its upper edge and go sideways with their columns.
const titles = node("g", { class: "titles" });
data.columns.forEach((device) => {
  const title = node("g");
  title.append(node("title", {}, device), node("rect", { class: "title-back", height: 24, rx: 5 }), node("text", { class: "column", x: 8, y: 17 }));
  titles.append(title);
});

function placeTitles(eye) {
  data.column_places.forEach(([x, width], at) => {
    const scale = Math.min(1.15, Math.max(0.6, eye.scale));
    const [title, wide] = [titles.children[at], ((width + 16) * eye.scale) / scale];
    const y = Math.max(3, eye.y + 12 * eye.scale);
    title.setAttribute("transform", `translate(${eye.x + (x - 8) * eye.scale} ${y}) scale(${scale})`);
    title.querySelector("rect").setAttribute("width", wide);
    const letters = Math.floor((wide - 12) / 8.2);
    title.querySelector("text").textContent = letters > 2 ? cut(data.columns[at], letters) : "";
  });
}
