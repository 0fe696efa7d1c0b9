
"use strict";
const $ = (id) => document.getElementById(id);
const classes = JSON.parse($("options").textContent);
const terms = JSON.parse($("terms").textContent);
const rows = [];
for (const block of document.querySelectorAll("script.block")) {
  for (const row of JSON.parse(block.textContent)) rows.push(row);
  block.remove();
}
for (const row of rows) row.text = `${row.id}\n${classes[row.class].name}`.toLowerCase();
// The manifest has them as they were done.
const { compare } = new Intl.Collator("en", { numeric: true });
rows.sort((a, b) => compare(a.id, b.id) || a.number - b.number);
const sampled = rows.filter((row) => row.sampled);

const AT_ONCE = 60;
const count = (number) => number.toLocaleString("en");
const decimal = (value, digits = 2) => (value === null ? "–" : value.toFixed(digits));
const nameOf = (row) => classes[row.class].name;
const compared = new Set(rows.map((row) => row.method)).size > 1;
const titleOf = (row) => {
  const told = [compared && row.method, row.number && `map ${row.number + 1}`].filter(Boolean);
  return told.length ? `${row.id} (${told.join(", ")})` : row.id;
};

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function card(row, list, value) {
  const frame = element("span", "frame");
  if (row.thumbnail) {
    const picture = element("img");
    picture.src = row.thumbnail;
    picture.alt = "";
    frame.append(picture);
  } else {
    frame.classList.add("none");
    frame.append("no picture");
  }
  const label = element("bdi", "label", nameOf(row));
  const id = element("bdi", "id", titleOf(row));
  const button = element("button", "map", frame,
    element("span", "line", label, element("span", "value", decimal(row[value]))), id);
  if (row.correct === false) id.before(element("span", "id warned", `predicted: ${row.predicted}`));
  if (row.warning) id.before(element("span", "id warned", row.warning));
  button.type = "button";
  button.title = `${titleOf(row)}\n${nameOf(row)}`;
  button.setAttribute("aria-label", [titleOf(row), nameOf(row),
    row[value] === null ? "" : `${value} ${decimal(row[value])}`, row.warning ?? ""]
    .filter(Boolean).join(", "));
  button.setAttribute("aria-haspopup", "dialog");
  button.onclick = () => open(list, list.indexOf(row));
  return element("li", "", button);
}

/* The large one. */
let among = [], at = 0;

function open(list, index) {
  among = list;
  tell(index);
  $("large").showModal();
  $("large").scrollTop = 0;
}

function tell(index) {
  at = index;
  const row = among[at];
  const { index: number } = classes[row.class];
  $("large-place").textContent = `${count(at + 1)} of ${count(among.length)}`;
  $("large-title").replaceChildren(element("bdi", "", nameOf(row)));
  $("large-id").textContent = row.id;
  $("large-picture").hidden = !row.thumbnail;
  $("large-none").hidden = Boolean(row.thumbnail);
  if (row.thumbnail) $("large-picture").src = row.thumbnail;
  $("large-picture").alt = `${row.id}, coloured where the model sees ${nameOf(row)}`;
  $("large-alone").hidden = !row.alone;
  $("large-warning").textContent = row.warning ?? "";
  $("large-warning").hidden = !row.warning;
  $("full").hidden = !row.link;
  if (row.link) $("full").href = row.link; else $("full").removeAttribute("href");
  const three = (value) => (value === null ? null : decimal(value, 3));
  const facts = [
    ["Probability", three(row.probability), "target_probability"],
    ["Predicted", row.predicted === null ? null : `${row.predicted} (${three(row.sure)})`, "predicted_index"],
    ["As named", row.correct === null ? null : row.correct ? "yes" : "no", "correct"],
    ["Concentration", three(row.concentration), "concentration"],
    ["At the border", three(row.border), "border"],
    ["Agreement", row.agreements.map(([name, each]) => `${name} ${three(each)}`).join(", ") || null,
      "agreement"],
    ["Scores", row.scores.map(([name, each]) => `${name} ${three(each)}`).join(", ") || null,
      "scores"],
    ["Mean heat", three(row.mass), "mass"],
    ["Score", row.score === null ? null : String(+row.score.toPrecision(4)), "target_score"],
    ["Hottest at", row.peak && `x ${count(row.peak[0])}, y ${count(row.peak[1])}`, "peak"],
    ["Size", row.size && `${count(row.size[0])} × ${count(row.size[1])} pixels`, "width"],
    ["Class", number, "target_index"],
    ["Map of the image", row.number ? `number ${row.number + 1}` : null, "number"],
    ["Method", row.method, "method"],
    ["Layer", row.layer, "layer"],
  ];
  const term = (name, key) => {
    const made = element("dt", "", name);
    made.title = terms[key];
    return made;
  };
  $("facts").replaceChildren(...facts.filter(([, fact]) => fact !== null).flatMap(
    ([name, fact, key]) => [term(name, key), element("dd", "", String(fact))]));
  $("before").disabled = at === 0;
  $("after").disabled = at === among.length - 1;
}

function step(by) {
  if (!among[at + by]) return;
  tell(at + by);
  // What is hidden or disabled hears no key.
  const held = document.activeElement;
  if (!$("large").contains(held) || held.disabled || held.hidden) $("close").focus();
}

$("before").onclick = () => step(-1);
$("after").onclick = () => step(1);
$("large").onkeydown = (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.key === "ArrowLeft") step(-1);
  if (event.key === "ArrowRight") step(1);
};
$("large").onclick = (event) => { if (event.target === $("large")) $("large").close(); };

/* Both ends of concentration. */
for (const end of ["most", "least"]) {
  const list = rows.filter((row) => row[end] !== null).sort((a, b) => a[end] - b[end]);
  $(end)?.append(...list.map((row) => card(row, list, "concentration")));
}

const beside = rows.filter((row) => row.beside !== null).sort((a, b) => a.beside - b.beside);
$("beside")?.append(...beside.map((row) => card(row, beside, "border")));

const disputed = rows.filter((row) => row.disputed !== null)
  .sort((a, b) => a.disputed - b.disputed);
$("disputed")?.append(...disputed.map((row) => card(row, disputed, "agreement")));

/* The prototypes of each cluster, which are pictures in the page already. */
const byRow = new Map(rows.map((row) => [row.row, row]));
for (const prototypes of document.querySelectorAll(".prototypes")) {
  const pictures = [...prototypes.querySelectorAll("img")]
    .filter((picture) => byRow.has(+picture.dataset.row));
  const list = pictures.map((picture) => byRow.get(+picture.dataset.row));
  for (const [index, picture] of pictures.entries()) {
    const button = element("button", "map");
    button.type = "button";
    button.setAttribute("aria-haspopup", "dialog");
    button.onclick = () => open(list, index);
    picture.replaceWith(button);
    button.append(picture);
  }
}

/* All maps, as they are filtered and sorted; made as they come into view. */
let shown = [], made = 0;

function extend() {
  const by = $("sort").value.replace("-", "");
  const value = ["concentration", "agreement"].includes(by) ? by : "probability";
  const next = shown.slice(made, made + AT_ONCE);
  $("gallery").append(...next.map((row) => card(row, shown, value)));
  made += next.length;
}

function sorted(list, by) {
  if (!by) return list;
  const key = by.replace("-", ""), sign = by.startsWith("-") ? -1 : 1;
  const known = list.filter((row) => row[key] !== null);
  const unknown = list.filter((row) => row[key] === null);
  return [...known.sort((a, b) => sign * (a[key] - b[key])), ...unknown];
}

function wanted() {
  const position = $("class").value, text = $("search").value.trim().toLowerCase();
  const low = +$("low").value, high = +$("high").value, whole = low <= 0 && high >= 1;
  const warned = $("warned")?.checked, mistaken = $("mistaken")?.checked;
  const { cluster } = $("cluster")?.checked ? $("cluster").dataset : {};
  // Of a cluster there are maps on the page that are not in the sample: its prototypes, and members
  // of a suspect one.
  return (cluster ? rows : sampled).filter((row) =>
    (!cluster || row.cluster === +cluster) && (position === "" || row.class === +position) && (!text || row.text.includes(text)) &&
    (whole || (row.probability !== null && row.probability >= low && row.probability <= high)) &&
    (!warned || row.warning) && (!mistaken || row.correct === false));
}

function update() {
  const held = document.activeElement;
  const chosen = $("cluster");
  if (chosen && chosen.dataset.class !== $("class").value) chosen.checked = false;
  const within = Boolean(chosen?.checked);
  if (chosen) $("cluster-chip").hidden = !within;
  shown = sorted(wanted(), $("sort").value);
  made = 0;
  $("gallery").replaceChildren();
  extend();
  watcher.unobserve($("end"));
  watcher.observe($("end"));
  const low = +$("low").value, high = +$("high").value;
  $("between").textContent = `${decimal(low)} – ${decimal(high)}`;
  const bars = $("histogram").children;
  for (const [place, bar] of [...bars].entries()) {
    const middle = (place + 0.5) / bars.length;
    bar.classList.toggle("in", middle >= low && middle <= high);
  }
  const all = !within && shown.length === sampled.length;
  $("found").textContent = within
    ? `${count(shown.length)} of the cluster’s ${count(+chosen.dataset.maps)} maps`
    : all ? `${count(shown.length)} ${shown.length === 1 ? "map" : "maps"}`
    : `${count(shown.length)} of ${count(sampled.length)} maps`;
  if (chosen) {
    const here = rows.filter((row) =>
      row.class === +chosen.dataset.class && row.cluster === +chosen.dataset.cluster).length;
    const missing = within ? chosen.dataset.maps - here : 0;
    $("missing").textContent = `${count(missing)} ${missing === 1 ? "is" : "are"}`;
    $("rest").hidden = missing <= 0;
  }
  $("everything").hidden = all && !$("sort").value;
  $("nothing").hidden = shown.length > 0;
  // What is hidden loses the focus, and the keyboard would start again at the page's top.
  if (held?.closest("#tools [hidden]")) $("class").focus({ preventScroll: true });
  for (const each of document.querySelectorAll(".portrait")) {
    const { cluster } = within ? chosen.dataset : {};
    each.setAttribute("aria-pressed",
      each.dataset.class === $("class").value && each.dataset.cluster === cluster);
  }
}

const watcher = new IntersectionObserver((entries) => {
  if (!entries.at(-1).isIntersecting || made >= shown.length) return;
  extend();
  // It tells of a change alone, and the end may still be in view.
  watcher.unobserve($("end"));
  watcher.observe($("end"));
}, { rootMargin: "1200px" });

if ($("tools")) {
  const present = new Set(sampled.map((row) => row.class));
  for (const each of document.querySelectorAll(".portrait")) present.add(+each.dataset.class);
  $("class").append(...[...present].sort((a, b) => a - b).map((position) =>
    new Option(`${classes[position].name} (${count(classes[position].maps)})`, position)));
  if (rows.every((row) => row.probability === null)) $("range").hidden = true;
  // The one that is moved pushes the other one along.
  $("low").oninput = () => { if (+$("low").value > +$("high").value) $("high").value = $("low").value; };
  $("high").oninput = () => { if (+$("high").value < +$("low").value) $("low").value = $("high").value; };
  $("tools").oninput = update;
  $("tools").onreset = () => setTimeout(update);
  $("tools").onsubmit = (event) => event.preventDefault();
  for (const portrait of document.querySelectorAll(".portrait")) {
    portrait.onclick = () => {
      $("tools").reset();
      $("class").value = portrait.dataset.class;
      if (portrait.dataset.cluster) {
        Object.assign($("cluster").dataset, portrait.dataset);
        $("cluster").checked = true;
        $("cluster-name").textContent = `cluster ${portrait.dataset.cluster} only`;
      }
      update();
      $("maps").scrollIntoView();
      $("found").focus({ preventScroll: true });
    };
  }
  update();
}

// What speaks of buttons that would be dead without this script is shown now.
document.documentElement.classList.add("scripted");
