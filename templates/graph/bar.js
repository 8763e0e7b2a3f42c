// The bar above the picture; and how the page begins.
for (const entry of data.kinds) {
  const label = element("label");
  const box = element("input");
  box.type = "checkbox";
  box.checked = true;
  box.dataset.toggle = entry.kind;
  box.addEventListener("change", () => {
    if (box.checked) hidden.delete(entry.kind);
    else hidden.add(entry.kind);
    hideKinds();
  });
  label.append(box, coloured(element("i"), entry.kind), entry.implied ? `${entry.kind} (implied)` : entry.kind);
  document.getElementById("kinds").append(label);
}
document.getElementById("fold").hidden = !data.folds.length;
document.getElementById("fold").addEventListener("click", () => {
  if (folded.size) folded.clear();
  else data.folds.forEach((_, number) => folded.add(number));
  redraw();
  begin();
});
document.getElementById("fit").addEventListener("click", fit);
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
const measures = document.getElementById("measures");
if (data.measures.length) {
  [{ name: "no numbers" }, ...data.measures].forEach((entry, at) => {
    const option = element("option", entry.name);
    option.value = at - 1;
    measures.querySelector("select").append(option);
  });
  measures.hidden = false;
  measures.querySelector("select").addEventListener("change", (event) => {
    measure = Number(event.target.value) < 0 ? null : Number(event.target.value);
    showMeasure();
    redraw();
    if (chosen !== null) open(chosen, chosenWay);
  });
}

// The colour bar, with the least and the most of what is shown.
function showMeasure() {
  const now = measure === null ? null : data.measures[measure];
  measures.querySelector("select").value = measure ?? -1;
  measures.querySelector(".least").textContent = now?.least ?? "";
  measures.querySelector(".most").textContent = now?.most ?? "";
  measures.querySelector("i").hidden = !now?.least;
}

showMeasure();
showNothing();
redraw();
begin();
window.addEventListener("resize", () => eye.moved || begin()); // where a person looks, the view stays
if (data.focus !== null) {
  const target = { [data.focus[0]]: data.focus[1] };
  if ("row" in target ? items.has(target.row) : states.has(target.state)) {
    open(target);
    center(target);
    focusPart(partOf(target));
  }
}
