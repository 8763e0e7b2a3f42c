// The panel: what is known of a layer, a state or an edge, and what hangs on it. Text is only ever set as text.
const panel = document.getElementById("panel");
const lines = new Map(data.lines);
let open = () => {};
let jump = () => {};

function element(name, text = null, className = "") {
  const made = document.createElement(name);
  if (text !== null) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function button(text, act) {
  const made = element("button", text);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

function bytes(number, per) {
  return number === null ? null : `${number.toLocaleString("en", { maximumFractionDigits: 3 })} B ${per}`;
}

function table(rows) {
  const list = element("dl");
  for (const [name, value] of rows) {
    if (value !== null && value !== undefined && value !== "") list.append(element("dt", name), element("dd", String(value)));
  }
  return list;
}

// What some states take together, of one measure; null where none of them has it.
function sum(ids, measure) {
  const known = ids.flatMap((id) => states.get(id)?.[measure] ?? []);
  return known.length ? known.reduce((all, one) => all + one, 0) : null;
}

// A place in the spec, with the line that is there.
function place(span) {
  const line = lines.get(span.slice(0, span.lastIndexOf(":")));
  return line === undefined ? [] : [element("code", line, "line")];
}

function links(title, targets, more = "") {
  if (!targets.length) return [];
  const box = element("div", null, "links");
  for (const [text, target] of targets) box.append(button(text, () => jump(target)));
  return [element("h3", `${title} (${targets.length}${more})`), box];
}

function stateLinks(title, ids) {
  return links(title, ids.filter((id) => states.has(id)).map((id) => [id, { state: id }]));
}

function rowLinks(title, ids) {
  const drawn = ids.filter((id) => items.has(id));
  const left = ids.length - drawn.length;
  const targets = drawn.map((id) => [items.get(id).parent === null ? items.get(id).label : id, { row: id }]);
  return links(title, targets, left ? `, ${left} more are not drawn` : "");
}

// How a row or state differs from what it was before.
function differences(part, changes) {
  if (!changes.length && !part.changes.length) return [];
  const box = element("div", null, `was is-${part.changes[0] ?? "changed"}`);
  box.append(element("h3", "Compared with before"));
  if (part.changes.length) box.append(element("p", part.changes.map((kind) => `${data.signs[kind] ?? ""} ${kind}`.trim()).join(", ")));
  if (part.was.length) box.append(table(part.was.map(([name, before]) => [`${name} before`, before])));
  for (const change of changes) box.append(element("p", change.sentence));
  return [box];
}

function numbersOf(id) {
  return data.measures.map((entry) => [entry.name, entry.rows[id]?.text ?? "no number"]);
}

function asks(target) {
  const box = element("div", null, "ask");
  box.append(button("Who reads this?", () => open(target, "after")));
  box.append(button("What does this read?", () => open(target, "before")));
  return box;
}

function showRow(id) {
  const item = items.get(id);
  const facts = table([
    ["device", item.device],
    ["stage", item.stage],
    ["what", item.detail],
    ["writes", bytes(sum(item.writes, "bytes_per_token"), "per token")],
    ["keeps", bytes(sum(item.writes, "bytes_per_session"), "per session")],
    ["capture region", item.regions.join(", ")],
    ["spec", item.span],
    ...(item.parent === null ? numbersOf(id) : []),
  ]);
  const title = item.parent === null ? item.label : item.id;
  panel.replaceChildren(element("h2", title), asks({ row: id }), ...differences(item, data.differences.filter((change) => change.rows.includes(id))), facts);
  panel.append(...place(item.span), ...stateLinks("Reads", item.reads), ...stateLinks("Writes", item.writes));
  panel.append(...rowLinks("Read by", readersOf({ row: id })));
  panel.append(...rowLinks("Ops", data.items.filter((other) => other.parent === id).map((other) => other.id)));
  if (item.kernels.length) panel.append(element("h3", "Kernels"), element("p", item.kernels.join(", ")));
}

function sizesOf(state) {
  return [
    ["shape", `${state.dtype} [${state.shape.join(", ")}]`],
    ["bytes", bytes(state.bytes_per_token, "per token")],
    ["state", bytes(state.bytes_per_session, "per session")],
  ];
}

function showState(id) {
  const state = states.get(id);
  const facts = table([
    ["kind", state.kind],
    ["copy of", state.origin === id ? null : state.origin],
    ["read by", state.read_by],
    ...sizesOf(state),
    ["crosses with", bytes(state.crossing_bytes, "per token")],
    ["device", state.device],
    ["capture region", state.region],
    ["kernel", state.kernel],
    ["written by", state.producer],
    ["spec", state.span],
  ]);
  panel.replaceChildren(element("h2", id), element("p", state.sentence), asks({ state: id }));
  panel.append(...differences(state, data.differences.filter((change) => change.states.includes(id))), facts);
  panel.append(...place(state.span), ...rowLinks("Read by", state.rows), ...rowLinks("Made by", state.row === null ? [] : [state.row]));
  const copies = data.states.filter((other) => other.origin === state.origin && other.id !== id);
  panel.append(...stateLinks("On other devices", copies.map((other) => other.id)));
}

function showEdge(at) {
  const arc = data.arcs[at];
  const [source, target] = [data.items[arc.source], data.items[arc.target]];
  const [state, origin] = [states.get(arc.crossing ? arc.arrives : arc.value), states.get(arc.origin)];
  const facts = table([
    ["state", arc.origin],
    ["kind", arc.kind],
    ["compared with before", arc.change],
    ["from", source.row ? source.label : source.device],
    ["to", target.row ? target.label : target.device],
    ["device", arc.crossing ? target.label : target.device],
    ["arrives as", arc.arrives],
    ["crosses with", arc.crossing ? bytes(state.crossing_bytes, "per token") : null],
    ...sizesOf(state),
    ["capture region", origin.region],
    ["kernel", origin.kernel],
    ["spec", state.span],
  ]);
  panel.replaceChildren(element("h2", edgeWords(arc)), asks({ edge: at }), facts);
  panel.append(...place(state.span), ...stateLinks("State", [...new Set([arc.origin, state.id])]));
  panel.append(...rowLinks("Rows", [source, target].filter((item) => item.row).map((item) => item.id)));
  panel.append(...rowLinks("Read by", origin.rows));
}

// All differences, each with what to jump to.
function listDifferences() {
  panel.append(element("p", `${data.compared.after}, compared with ${data.compared.before}: ${data.compared.summary}.`));
  for (const kind of new Set(data.differences.map((change) => change.kind))) {
    const found = data.differences.filter((change) => change.kind === kind);
    const list = element("ul", null, `differences is-${kind}`);
    for (const change of found) {
      const target = [...change.states.filter((id) => states.has(id)).map((id) => ({ state: id })), ...change.rows.map((id) => ({ row: id }))];
      const first = change.rows.length ? { row: change.rows[0] } : target[0];
      const entry = element("li");
      entry.append(button(change.sentence, () => jump(first)));
      list.append(entry);
    }
    panel.append(element("h3", `${data.signs[kind]} ${kind} (${found.length})`), list);
  }
}

function showNothing() {
  panel.replaceChildren(element("h2", data.name));
  if (data.compared) listDifferences();
  if (data.measures.length) panel.append(element("p", `${data.title ? `${data.title}. ` : ""}Rows are coloured by number, pale to full; a dashed row has none.`));
  for (const remark of data.remarks) panel.append(element("p", remark));
  panel.append(element("p", "Rows are layers, columns are devices. A line leads from what makes a state to who reads it; a thick dashed one in a yellow band goes to another device."));
  if (data.compared) panel.append(element("p", "Strong lines are new reads, dotted ones are no more; a dashed outline is where a layer was, a crossed-out layer is gone."));
  panel.append(element("p", "Click a layer, a state or a line. Drag to move, wheel to zoom."));
  panel.append(table([
    ["/", "search"], ["↑ ↓", "layer before, after"], ["← →", "states and reads of the layer"], ["Enter", "open"],
    ["Space", "fold, unfold"], ["F", "fit"], ["+ −", "zoom"], ["Esc", "close"],
  ]));
}

// --- who reads, what is read ------------------------------------------------------------------------------------------

function originOf(target) {
  return "state" in target ? states.get(target.state).origin : data.arcs[target.edge].origin;
}

function readersOf(target) {
  if (!("row" in target)) return states.get(originOf(target)).rows;
  const made = new Set(items.get(target.row).writes);
  return [...new Set(data.states.filter((state) => made.has(state.id)).flatMap((state) => state.rows))]
    .filter((row) => row !== target.row);
}

// The arcs and rows to light: of a row those on its way (`before` what it reads, `after` who reads it), of a state its own.
function lit(target, way) {
  const rows = new Set();
  const origins = new Set();
  if ("row" in target) {
    const item = items.get(target.row);
    rows.add(target.row);
    if (way !== "after") item.reads.forEach((id) => states.has(id) && origins.add(states.get(id).origin));
    if (way !== "before") item.writes.forEach((id) => states.has(id) && origins.add(states.get(id).origin));
    const sought = new Set([...rows, ...(way === "before" ? [] : readersOf(target))]);
    for (const id of origins) if (states.get(id).row !== null && way !== "after") sought.add(states.get(id).row);
    return { rows: sought, arcs: onTheWay(origins, target.row, way) };
  }
  const origin = originOf(target);
  const made = states.get(origin).row;
  if (way === "before" && made !== null) return lit({ row: made }, "before");
  if ("edge" in target && !way) {
    const arc = data.arcs[target.edge];
    return { rows: new Set([data.items[arc.source].id, data.items[arc.target].id]), arcs: new Set([target.edge]) };
  }
  for (const id of states.get(origin).rows) rows.add(id);
  if (made !== null) rows.add(made);
  return { rows, arcs: new Set(data.arcs.flatMap((arc, at) => (arc.origin === origin ? [at] : []))) };
}

// Arcs of some values that end at a row, or begin there; with those over which they came from other devices.
function onTheWay(origins, row, way) {
  const found = new Set();
  const at = items.get(row).at;
  const made = new Set(items.get(row).writes);
  const follow = (value) => data.arcs.forEach((arc, number) => {
    if (arc.crossing && arc.arrives === value && !found.has(number)) {
      found.add(number);
      follow(arc.value);
    }
  });
  data.arcs.forEach((arc, number) => {
    const gone = arc.change === "removed";
    if (!origins.has(arc.origin) && !gone) return;
    if (way !== "before" && (gone ? arc.source === at : made.has(arc.origin))) found.add(number);
    if (way !== "after" && arc.target === at) {
      found.add(number);
      follow(arc.value);
    }
  });
  return found;
}
