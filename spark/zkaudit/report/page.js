"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const colours = { critical: "#dc2626", high: "#ea580c", medium: "#ca8a04", low: "#65a30d", info: "#6b7280" };
const signs = { critical: "\u25bc", high: "\u25c6", medium: "\u25a0", low: "\u25cf", info: "\u25cb" };
const view = { from: data.begin, to: data.end };
const ALL = -1, MOST = 10, LEGEND = 24;
let zone = "UTC", chosen = null;

function text(parent, tag, value, className) {
  const element = document.createElement(tag);
  element.textContent = value;
  if (className) element.className = className;
  parent.appendChild(element);
  return element;
}
const zxid = (number) => "0x" + BigInt.asUintN(64, BigInt(number)).toString(16);
const formats = new Map();
function when(ms) {
  if (ms === null) return "";
  if (zone === "UTC") return new Date(ms).toISOString().replace("T", " ").replace("Z", "");
  if (!formats.has(zone)) formats.set(zone, new Intl.DateTimeFormat("en", {
    timeZone: zone, hourCycle: "h23", year: "numeric", month: "2-digit", day: "2-digit",
    hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 }));
  const p = Object.fromEntries(formats.get(zone).formatToParts(ms).map((one) => [one.type, one.value]));
  return `${p.year}-${p.month}-${p.day} ${p.hour}:${p.minute}:${p.second}.${p.fractionalSecond}`;
}
// The timeline of a time range begins after most owners.
const since = (ms) => (data.clamped && ms <= data.begin ? "before " : "") + when(ms);
// Reds and oranges are those of findings.
const hues = [];
const hue = (member) => hues[member] ??= `hsl(${95 + (member * 137.5) % 225} 50% ${46 + (member % 3) * 10}%)`;
const names = data.groups.map((g) => g.chroot + " " + g.group_id);

function options(id, values) {
  const select = byId(id);
  select.replaceChildren();
  values.forEach(([value, label]) => { text(select, "option", label).value = value; });
}
function fill(id, values, then = draw) {
  options(id, values);
  byId(id).addEventListener("change", () => { then(); remember(); });
}
function fillGroups(searched) {
  const found = data.groups.map((g, i) => [i, names[i].trim() + (g.worst ? ` (${g.worst})` : "") + (g.mode ? `, mode ${g.mode}` : "")])
    .filter(([i]) => names[i].toLowerCase().includes(searched.toLowerCase()));
  options("group", searched && found.length ? found : [[ALL, "all"], ...found]);
  fillTopics();
}
const number = (count) => count.toLocaleString("en");
const many = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
// The command that makes a page of one group. A name may hold anything: it is quoted for the shell.
const quoted = (name) => `'${name.replaceAll("'", "'\\''")}'`;
function command(name) {
  return `run: zkaudit report OUT ${name ? `--group ${quoted(name)}` : "--groups-regex REGEX"}`;
}
function left(count, total, what, table, name) {
  if (count >= total) return "";
  const all = `read the table OUT/tables/${table}`;
  const fix = data.all_groups === 1 || name === undefined ? all : name === null ? `choose a group, or ${all}` : command(name);
  return `Not in this page: ${number(total - count)} of ${number(total)} ${what}. To see them, ${fix} (OUT: the directory of the audit).`;
}
function drawCuts() {
  const group = chosenGroup(), name = group ? group.group_id : "", of = group ? " of this group" : "";
  drawOthers();
  byId("rows-cut").textContent = group && !group.partitions ? "No partition of this group had an owner."
    : left(data.rows.map(asItem).filter(inGroup).length, group ? group.partitions : data.partitions, "partitions" + of, "ownership", name);
  byId("findings-cut").textContent = left(data.findings.filter(inGroup).length, allFindings(), "findings" + of, "findings", name);
  const counted = group || data.groups.length === data.all_groups ? "" : `Only the ${number(data.groups.length)} groups that can be chosen are counted here.`;
  const unknown = data.groups.some((one) => inGroup(one) && one.members.some((point) => point[1] === null));
  byId("series-cut").textContent = [counted, unknown ? "Grey: the logs do not show how many members were registered." : ""].filter(Boolean).join(" ");
}
// Groups that are not in the page are packed in it by name, for the search.
const OTHERS = 10;
let others = null, unpackingOthers = null;
async function unpackOthers() {
  others = JSON.parse(new TextDecoder().decode(await inflated(data.others.packed)));
  others.lower = others.names.map((name, i) => `${others.chroots[others.chroot[i]]} ${name}`.toLowerCase());
}
function drawOthers() {
  const list = byId("others"), cut = byId("groups-cut"), searched = byId("search").value.toLowerCase();
  list.replaceChildren();
  const inPage = names.filter((name) => name.toLowerCase().includes(searched)).length;
  if (!searched) {
    cut.textContent = left(data.groups.length, data.all_groups, "groups", "registrations", "");
    if (data.others) cut.textContent += " The search finds these groups too.";
    return;
  }
  if (data.others && !others) {
    cut.textContent = "";
    unpackingOthers = unpackingOthers || unpackOthers();
    unpackingOthers.then(drawOthers);
    return;
  }
  const found = [];
  if (others) others.lower.forEach((name, i) => { if (name.includes(searched)) found.push(i); });
  cut.textContent = found.length ? `Not in this page: ${many(found.length, "group")} with such a name.` : inPage ? "" : "No group of the audit has such a name.";
  for (const i of found.slice(0, OTHERS)) { // the worst are first
    const item = text(list, "li", ""), pairs = others.found[i] || [], counts = [];
    for (let k = 0; k < pairs.length; k += 2) counts.push(`${number(pairs[k + 1])} ${others.kinds[pairs[k]].join(" ")}`);
    if (pairs.length) text(item, "span", others.kinds[pairs[0]][0], "sev " + others.kinds[pairs[0]][0]);
    text(item, "b", ` ${others.chroots[others.chroot[i]]} ${others.names[i]}`.replace(/^ +/, pairs.length ? " " : ""));
    text(item, "span", counts.length ? `: ${counts.join(", ")}.` : ": no findings.");
    text(item, "div", "Its page: ", "dim").appendChild(document.createElement("code")).textContent = `zkaudit report OUT --group ${quoted(others.names[i])} --page group.html`;
  }
  if (found.length > OTHERS) text(list, "li", `${number(found.length - OTHERS)} more: type more of the name.`, "dim");
}
function allFindings() {
  const group = chosenGroup();
  return group ? group.findings : data.summary.findings.reduce((sum, row) => sum + row.count, 0);
}
function chosenGroup() { return data.groups[Number(byId("group").value)]; }
function inGroup(item) {
  const group = chosenGroup();
  return !group || (item.chroot === group.chroot && item.group_id === group.group_id);
}
const asItem = (row) => ({ chroot: row[0], group_id: row[1], topic: row[2] });
function fillTopics() {
  const select = byId("topic");
  select.replaceChildren();
  text(select, "option", "all").value = "";
  const topics = [...new Set(data.rows.map(asItem).filter(inGroup).map((row) => row.topic))];
  topics.forEach((topic, i) => { const o = text(select, "option", topic); o.value = String(i + 1); o.dataset.topic = topic; });
}
function chosenTopic() { const o = byId("topic").selectedOptions[0]; return o ? o.dataset.topic : undefined; }
function wanted(item) {
  const topic = chosenTopic();
  return inGroup(item) && (topic === undefined || item.topic === null || item.topic === topic);
}
function shownFindings() {
  const severity = byId("severity").value, words = byId("words").value.toLowerCase();
  return data.findings.filter((f) => wanted(f) && (!severity || f.severity === severity)
    && (!words || `${f.id} ${f.kind} ${f.sentence}`.toLowerCase().includes(words)));
}

function remember() {
  const group = chosenGroup(), state = new URLSearchParams();
  if (group) state.set("group", JSON.stringify([group.chroot, group.group_id]));
  if (view.from !== data.begin || view.to !== data.end) state.set("time", `${Math.round(view.from)}-${Math.round(view.to)}`);
  if (zone !== "UTC") state.set("zone", zone);
  if (chosen) state.set("finding", chosen.id);
  history.replaceState(null, "", "#" + state);
}
function recall() {
  const state = new URLSearchParams(location.hash.slice(1));
  const group = names.findIndex((_, i) => JSON.stringify([data.groups[i].chroot, data.groups[i].group_id]) === state.get("group"));
  if (group >= 0) { byId("group").value = String(group); fillTopics(); }
  else if (state.get("group") && data.others) { // maybe a link from the page of another group
    byId("search").value = (/^\["[^"]*","(.*)"\]$/.exec(state.get("group")) || [])[1] || "";
    fillGroups(byId("search").value);
  }
  if ([...byId("zone").options].some((o) => o.value === state.get("zone"))) zone = byId("zone").value = state.get("zone");
  const found = data.findings.find((f) => f.id === state.get("finding"));
  if (found) look(found);
  const [from, to] = (state.get("time") || "").split("-").map(Number);
  if (from < to) { view.from = Math.max(data.begin, from); view.to = Math.min(data.end, to); }
}
// Show the time around a finding.
function look(f) {
  chosen = f;
  if (f.t !== null) {
    const end = f.u === null ? f.t : f.u, span = Math.min(data.end - data.begin, Math.max(60000, (end - f.t) * 3));
    view.from = Math.max(data.begin, Math.min(data.end - span, (f.t + end - span) / 2));
    view.to = view.from + span;
  }
}
function choose(f, scroll) {
  look(f);
  draw();
  remember();
  const row = document.querySelector("#findings .chosen"), y = lines.indexOf(rowOf.get(keyOf(f)));
  if (row && scroll) row.scrollIntoView({ block: "nearest" });
  if (y >= 0) canvas.parentElement.scrollTop = Math.max(0, y * ROW - 100);
}
function step(by) {
  const found = shownFindings().filter((f) => f.t !== null).sort((a, b) => a.t - b.t);
  if (!found.length) return;
  const at = found.indexOf(chosen);
  choose(found[at < 0 ? (by > 0 ? 0 : found.length - 1) : (at + by + found.length) % found.length], true);
}

function bundles() {
  const found = new Map();
  for (const f of shownFindings()) {
    const key = JSON.stringify([f.severity, f.kind, f.basis, f.chroot, f.group_id, f.member]);
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(f);
  }
  const all = [...found.values()], first = (bundle) => Math.min(...bundle.map((f) => f.t === null ? Infinity : f.t));
  for (const bundle of all) bundle.sort((a, b) => a.t - b.t);
  return byId("order").value === "time" ? all.sort((a, b) => first(a) - first(b) || 0) : all;
}
function detail(parent, f) {
  text(parent, "div", f.sentence);
  const proof = f.evidence.map((e) => e[1] === null ? `${e[0]}: ${e[3]}` : `${e[0]} ${zxid(e[1])}: ${e[3]}`);
  text(parent, "div", proof.join(" \u00b7 "), "dim");
  text(parent, "div", f.place ? `${f.id} \u00b7 ${f.place}` : f.id, "dim");
  if (f.command) text(text(parent, "div", "", "dim"), "code", f.command);
}
function drawFindings() {
  const body = byId("findings");
  body.replaceChildren();
  const found = shownFindings(), shown = new Set(found);
  const total = allFindings();
  byId("findings-head").textContent = `Findings: ${number(found.length)} shown of ${number(total)}`;
  if (!found.length) text(text(body, "tr", ""), "td", total ? "None in this page for this choice." : "None.").colSpan = 4;
  for (const bundle of bundles()) {
    const [f] = bundle, row = text(body, "tr", "", "found"), selected = bundle.includes(chosen);
    if (selected) row.classList.add("chosen");
    row.role = "row";
    row.ariaSelected = String(selected);
    row.tabIndex = selected || (row === body.firstChild && !shown.has(chosen)) ? 0 : -1;
    const open = () => choose(bundle.includes(chosen) ? chosen : f, false);
    row.addEventListener("click", (event) => { if (!event.target.closest("details, code")) open(); });
    row.addEventListener("keydown", (event) => {
      const next = event.key === "ArrowDown" ? row.nextSibling : event.key === "ArrowUp" ? row.previousSibling : null;
      if (event.target !== row || (!next && event.key !== "Enter")) return;
      event.preventDefault();
      if (next) { row.tabIndex = -1; next.tabIndex = 0; next.focus(); return; }
      open();
      document.querySelector("#findings .chosen").focus();
    });
    text(text(row, "td", ""), "span", f.severity, "sev " + f.severity);
    const kind = text(row, "td", f.kind);
    if (f.basis !== "proven") text(kind, "div", f.basis, "dim");
    const last = bundle[bundle.length - 1];
    const times = text(row, "td", when(f.t), "at");
    if (last.t !== f.t) text(times, "div", `to ${when(last.t)}`);
    const what = text(row, "td", "");
    detail(what, f);
    for (const cell of row.children) cell.role = "gridcell";
    if (bundle.length === 1) continue;
    const more = text(what, "details", "");
    text(more, "summary", `${number(bundle.length - 1)} more of this kind${f.member ? ", of this member" : ""}`);
    for (const other of bundle.slice(1)) {
      const one = text(more, "p", "");
      const link = text(one, "a", when(other.t) || "show");
      link.href = "#";
      link.addEventListener("click", (event) => { event.preventDefault(); choose(other, false); });
      if (other === chosen) more.open = true;
      detail(one, other);
    }
  }
}

function drawHerds() {
  const body = byId("herds");
  body.replaceChildren();
  const group = chosenGroup(), found = data.herds.filter(inGroup).slice(0, MOST), all = group ? group.changes : data.changes;
  if (!found.length) text(text(body, "tr", ""), "td", all ? `Members joined or left ${many(all, "time")}, no other member was woken.` : "No member joined or left.").colSpan = 6;
  byId("herds-cut").textContent = found.length ? left(found.length, all, `joins and leaves${group ? " of this group" : ""}`, "herds", group ? undefined : null) : "";
  byId("woken").open = found.some((h) => h.notified >= ((data.summary.limits || {}).herd_members || 50));
  for (const h of found) {
    const row = text(body, "tr", "");
    text(row, "td", when(h.t), "at");
    text(row, "td", `${h.group_id}: ${h.change} of ${h.member}`);
    for (const value of [h.notified, h.rebalances, h.reads]) text(row, "td", value.toLocaleString("en"));
    const how = h.basis === "modelled" ? "modelled: an upper bound" : h.basis === "measured" ? "measured from journals" : "measured in part: a lower bound";
    text(row, "td", how + (h.cause === "proven" ? "; cause proven" : h.cause === "inferred" ? "; cause inferred" : ""));
  }
}

const ROW = 18;
let lines = [], label = 230, drawn = new Set();
const keyOf = (item) => JSON.stringify([item.chroot, item.group_id, item.topic, item.partition]);
const rowOf = new Map(data.rows.map((row, i) => [JSON.stringify(row.slice(0, 4)), i]));
function fit(canvas, height) {
  canvas.style.height = height + "px"; // first: it decides whether there is a scroll bar
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.width = width * scale; canvas.height = height * scale;
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  label = Math.min(230, Math.round(width * 0.32));
  return [context, width];
}
const ink = () => getComputedStyle(document.body).color;
const at = (ms, width) => label + (ms - view.from) / Math.max(1, view.to - view.from) * (width - label);

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5, 12e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5, 1728e5, 6048e5, 25920e5, 77760e5, 311040e5];
function ticks(width) {
  const least = (view.to - view.from) / Math.max(1, (width - label) / 80);
  const step = STEPS.find((s) => s >= least) || Math.ceil(least / STEPS.at(-1)) * STEPS.at(-1), found = [];
  for (let ms = Math.ceil(view.from / step) * step; ms <= view.to; ms += step) found.push(ms);
  const [a, b] = step < 1e3 ? [11, 23] : step < 6e4 ? [11, 19] : step < 864e5 ? [11, 16] : [0, 10];
  return found.map((ms) => [ms, when(ms).slice(a, b)]);
}

// Exact intervals are packed in the page; they are unpacked once so few are in view that they can
// be told apart.
const MANY = 30000;
let exact = null, unpacking = null;
async function inflated(packed) {
  const text = atob(packed), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
}
async function unpack() {
  const bytes = new Uint8Array(await inflated(data.exact.packed)), n = data.exact.count, unit = data.exact.unit;
  let place = 0;
  const [row, since, length, member, ended] = data.exact.bytes.map((size) => {
    const column = new Uint32Array(n);
    for (let k = 0; k < size; k++, place += n) for (let i = 0; i < n; i++) column[i] |= bytes[place + i] << (8 * k);
    return column;
  });
  // Intervals are sorted by row and begin. ``last`` is the latest end so far in the row.
  const a = since, b = length, last = new Uint32Array(n), first = new Uint32Array(data.rows.length + 1);
  for (let i = 0; i < n; i++) {
    const same = i > 0 && row[i] === row[i - 1];
    a[i] += same ? b[i - 1] : 0;
    b[i] += a[i];
    last[i] = same ? Math.max(last[i - 1], b[i]) : b[i];
    first[row[i] + 1] = i + 1;
  }
  for (let i = 1; i < first.length; i++) first[i] = Math.max(first[i], first[i - 1]);
  const search = (column, low, high, value) => { // the first that is not less
    while (low < high) {
      const middle = (low + high) >> 1;
      if (column[middle] < value) low = middle + 1; else high = middle;
    }
    return low;
  };
  const units = (ms) => Math.min(2 ** 32 - 1, Math.max(0, (ms - data.begin) / unit));
  exact = {
    row, member, ended,
    begin: (i) => data.begin + a[i] * unit, end: (i) => data.begin + b[i] * unit,
    // The range of intervals of a row that may touch a time range.
    range: (r, from, to) => [search(last, first[r], first[r + 1], units(from)), search(a, first[r], first[r + 1], units(to) + 1)],
  };
}
function drawsExact() {
  if (!data.exact || data.exact.count * (view.to - view.from) > MANY * (data.end - data.begin)) return false;
  if (!exact && !unpacking) unpacking = unpack().then(redraw);
  return exact !== null;
}
function shape(c, severity, x, y) {
  const r = 6;
  c.beginPath();
  if (severity === "critical") { c.moveTo(x - r, y - r); c.lineTo(x + r, y - r); c.lineTo(x, y + r); }
  else if (severity === "high") { c.moveTo(x, y - r); c.lineTo(x + r, y); c.lineTo(x, y + r); c.lineTo(x - r, y); }
  else if (severity === "medium") c.rect(x - 4, y - 4, 8, 8);
  else c.arc(x, y, severity === "low" ? 4 : 3, 0, 7);
  c.closePath();
  c.fillStyle = colours[severity]; c.fill();
  c.strokeStyle = ink(); c.lineWidth = 1; c.stroke();
}
function short(c, name, width) {
  if (c.measureText(name).width <= width) return name;
  while (name.length > 1 && c.measureText("\u2026" + name).width > width) name = name.slice(1);
  return "\u2026" + name; // the partition is at the end
}
// Cells of a row: first and last bucket, member.
function eachCell(row, use) {
  const cells = data.cells[row] || [];
  for (let i = 0; i < cells.length; i += 3)
    use(data.begin + cells[i] * data.width, data.begin + (cells[i + 1] + 1) * data.width, cells[i + 2]);
}
let marks = [];
function drawTimeline() {
  lines = [];
  data.rows.forEach((row, i) => { if (wanted(asItem(row))) lines.push(i); });
  const place = new Map(lines.map((row, i) => [row, i]));
  const [c, width] = fit(canvas, lines.length * ROW);
  drawn = new Set();
  const bar = (row, a, b, member) => {
    const y = place.get(row);
    if (y === undefined || b < view.from || a > view.to) return;
    const x = Math.max(label, at(a, width)), end = Math.min(width, at(b, width));
    c.fillStyle = hue(member);
    c.fillRect(x, y * ROW + 2, Math.max(1, end - x), ROW - 4);
    if (drawn.size <= LEGEND) drawn.add(member);
  };
  if (drawsExact()) for (const row of lines) {
    const [low, high] = exact.range(row, view.from, view.to);
    for (let i = low; i < high; i++) bar(row, exact.begin(i), exact.end(i), exact.member[i]);
  } else for (const row of lines) eachCell(row, (a, b, member) => bar(row, a, b, member));
  const times = ticks(width);
  c.fillStyle = "#8886";
  for (const [ms] of times) c.fillRect(at(ms, width), 0, 1, lines.length * ROW);
  marks = [];
  const bands = new Map();
  lines.forEach((row, i) => {
    const key = JSON.stringify(data.rows[row].slice(0, 2)), band = bands.get(key);
    if (band) band[1] = i + 1; else bands.set(key, [i, i + 1]);
  });
  for (const f of shownFindings().reverse()) { // the worst on top
    if (f.t === null) continue;
    const y = place.get(rowOf.get(keyOf(f))), x = at(f.t, width);
    c.fillStyle = colours[f.severity];
    if (y !== undefined && f.u !== null && f.u > view.from && f.t < view.to) {
      const begin = Math.max(label, x);
      c.fillRect(begin, y * ROW + ROW - 3, Math.max(1, Math.min(width, at(f.u, width)) - begin), 3);
    }
    if (x < label || x > width) continue;
    if (y === undefined) { // about a whole group: a line through its rows
      const band = bands.get(JSON.stringify([f.chroot, f.group_id])) || (f.group_id === null || f === chosen ? [0, lines.length] : null);
      if (!band) continue; // its group has no row here
      c.fillRect(x, band[0] * ROW, f === chosen ? 3 : 1, (band[1] - band[0]) * ROW);
    }
    else shape(c, f.severity, x, y * ROW + ROW / 2);
    if (f === chosen && y !== undefined) { c.strokeStyle = ink(); c.lineWidth = 2; c.strokeRect(x - 9, y * ROW, 18, ROW); }
    marks.push([x, y, f]);
  }
  c.fillStyle = ink();
  lines.forEach((row, i) => {
    const [, group, topic, partition] = data.rows[row];
    c.fillText(short(c, `${chosenGroup() ? "" : group + " "}${topic}-${partition}`, label - 8), 0, i * ROW + ROW / 2);
  });
  const [axis] = fit(byId("axis"), 22);
  axis.fillStyle = ink();
  for (const [ms, name] of times) if (at(ms, width) < width - 40) axis.fillText(name, at(ms, width), 11);
  byId("span").textContent = `${when(Math.round(view.from))} to ${when(Math.round(view.to))} ${zone}`;
  drawLegend();
}
function drawLegend() {
  const legend = byId("legend");
  legend.replaceChildren();
  for (const severity of new Set(shownFindings().map((f) => f.severity))) {
    const entry = text(legend, "span", "");
    text(entry, "b", signs[severity] + " ").style.color = colours[severity];
    text(entry, "span", severity);
  }
  [...drawn].slice(0, LEGEND).forEach((member) => {
    const entry = text(legend, "span", "");
    text(entry, "span", "", "swatch").style.background = hue(member);
    text(entry, "span", data.members[member] || "?");
  });
  if (drawn.size > LEGEND) text(legend, "span", "and more members", "dim");
}

function drawSeries() {
  const [c, width] = fit(byId("series"), 156);
  ["members", "commits", "refused"].forEach((kind, band) => {
    const sums = new Map(), unknown = new Set();
    // One scale for every group, so that groups can be compared.
    let most = 1;
    for (const group of data.groups) {
      if (chosenGroup()) for (const [, n] of group[kind]) most = Math.max(most, n || 0);
      if (!inGroup(group)) continue;
      let last = 0;
      const points = new Map(group[kind]);
      const top = Math.ceil((data.end - data.begin) / data.width) + 1;
      for (let b = 0; b <= top; b++) {
        if (kind === "members") last = points.has(b) ? points.get(b) : last;
        else last = points.get(b) || 0;
        if (last === null) unknown.add(b);
        else if (last) sums.set(b, (sums.get(b) || 0) + last);
      }
    }
    const seen = Math.max(0, ...sums.values()), low = band * 52 + 46;
    most = Math.max(most, seen);
    const bar = (b, height) => {
      const x = at(data.begin + b * data.width, width), end = at(data.begin + (b + 1) * data.width, width);
      if (end < label || x > width) return;
      c.fillRect(Math.max(label, x), low - height, Math.max(1, end - Math.max(label, x)), height);
    };
    c.fillStyle = "#9ca3af66";
    for (const b of unknown) bar(b, 40);
    c.fillStyle = ["#2563eb", "#0d9488", "#dc2626"][band];
    for (const [b, n] of sums) bar(b, n / most * 40);
    c.fillStyle = "#8886";
    c.fillRect(label, low, width - label, 1); c.fillRect(label, low - 40, width - label, 1);
    c.fillStyle = ink();
    c.fillText(short(c, `${kind}, at most ${seen}`, label - 44), 0, low - 20);
    c.textAlign = "right";
    c.fillText(number(most), label - 4, low - 38); c.fillText("0", label - 4, low - 2);
    c.textAlign = "left";
  });
}

function draw() { drawCuts(); drawFindings(); drawHerds(); drawTimeline(); drawSeries(); }
let queued = false;
function redraw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => { queued = false; drawTimeline(); drawSeries(); });
}

const canvas = byId("timeline");
const msAt = (event) => {
  const box = canvas.getBoundingClientRect();
  return view.from + (event.clientX - box.left - label) / (box.width - label) * (view.to - view.from);
};
function zoom(factor, centre = (view.from + view.to) / 2) {
  const span = Math.min(data.end - data.begin, Math.max(10, (view.to - view.from) * factor));
  const share = (centre - view.from) / Math.max(1, view.to - view.from);
  view.from = Math.max(data.begin, Math.min(data.end - span, centre - share * span));
  view.to = Math.min(data.end, view.from + span);
  redraw(); remember();
}
function move(ms) {
  const by = Math.max(data.begin - view.from, Math.min(data.end - view.to, ms));
  view.from += by; view.to += by;
  redraw(); remember();
}
function whole() { view.from = data.begin; view.to = data.end; redraw(); remember(); }
canvas.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
  event.preventDefault();
  zoom(event.deltaY < 0 ? 0.7 : 1 / 0.7, msAt(event));
}, { passive: false });
const keys = {
  ArrowLeft: () => move((view.from - view.to) / 4), ArrowRight: () => move((view.to - view.from) / 4),
  "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: whole, n: () => step(1), p: () => step(-1),
};
canvas.addEventListener("keydown", (event) => {
  const act = keys[event.key] || keys[event.key.toLowerCase()];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act();
  noTip();
  if (chosen) byId("tip").textContent = `${chosen.severity}: ${chosen.sentence}`;
});
let dragged = null, moved = 0;
canvas.addEventListener("pointerdown", (event) => { dragged = event.clientX; moved = 0; canvas.setPointerCapture(event.pointerId); });
canvas.addEventListener("pointerup", () => { dragged = null; });
canvas.addEventListener("pointercancel", () => { dragged = null; });
canvas.addEventListener("click", (event) => {
  const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = Math.floor((event.clientY - box.top) / ROW);
  const hit = marks.filter((m) => (m[1] === undefined || m[1] === y) && Math.abs(m[0] - x) < 10).pop();
  if (hit && moved < 5) choose(hit[2], true);
});
function nearPointer(event) {
  const tip = byId("tip"), right = event.clientX > innerWidth / 2, low = event.clientY > innerHeight / 2;
  tip.classList.add("near");
  tip.style.inset = `${low ? "auto" : event.clientY + 14 + "px"} ${right ? innerWidth - event.clientX + 14 + "px" : "auto"} ${low ? innerHeight - event.clientY + 14 + "px" : "auto"} ${right ? "auto" : event.clientX + 14 + "px"}`;
}
// Keys say what they found below the chart.
function noTip() {
  byId("tip").classList.remove("near");
  byId("tip").textContent = "";
}
canvas.addEventListener("pointerleave", noTip);
canvas.addEventListener("pointermove", (event) => {
  const box = canvas.getBoundingClientRect();
  if (dragged !== null) {
    noTip();
    moved += Math.abs(dragged - event.clientX);
    move((dragged - event.clientX) / (box.width - label) * (view.to - view.from));
    dragged = event.clientX;
    return;
  }
  const row = lines[Math.floor((event.clientY - box.top) / ROW)], ms = msAt(event);
  if (row === undefined || ms < view.from) return noTip();
  const [, group, topic, partition] = data.rows[row];
  let owner = "no owner";
  if (drawsExact()) {
    const [low, high] = exact.range(row, ms, ms);
    for (let i = low; i < high; i++) if (exact.begin(i) <= ms && ms < exact.end(i))
      owner = `${data.members[exact.member[i]]}, ${since(exact.begin(i))} to ${when(exact.end(i))}, ${data.exact.ends[exact.ended[i]]}`;
  } else eachCell(row, (a, b, member) => { if (a <= ms && ms < b) owner = `${data.members[member]} for most of this moment`; });
  nearPointer(event);
  byId("tip").textContent = `${group} ${topic}-${partition} at ${when(Math.round(ms))}: ${owner}`;
});
for (const [id, act] of Object.entries({ in: () => zoom(0.5), out: () => zoom(2), back: keys.ArrowLeft, forth: keys.ArrowRight, reset: whole }))
  byId(id).addEventListener("click", act);
window.addEventListener("resize", redraw);
window.addEventListener("hashchange", () => { recall(); draw(); });

function save(name, type, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
const iso = (ms) => ms === null ? null : new Date(ms).toISOString();
const COLUMNS = ["id", "severity", "kind", "basis", "time", "end_time", "chroot", "group_id", "topic", "partition", "member", "effect", "messages", "zxid", "place", "sentence", "command"];
function plainFindings() {
  return shownFindings().map((f) => ({ ...f, time: iso(f.t), end_time: iso(f.u), zxid: f.zxid === null ? null : zxid(f.zxid) }));
}
function jsonOf() {
  return JSON.stringify(plainFindings().map((f) => Object.fromEntries([...COLUMNS, "evidence"].map((name) => [name, f[name] ?? null]))), null, 1);
}
function csvOf() {
  const cell = (value) => {
    let plain = value === null || value === undefined ? "" : String(value);
    if (typeof value === "string" && /^[=+@\t\r-]/.test(plain)) plain = "'" + plain; // no spreadsheet computes a name
    return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
  };
  return [COLUMNS, ...plainFindings().map((f) => COLUMNS.map((name) => f[name]))].map((row) => row.map(cell).join(",") + "\r\n").join("");
}
// Chrome's trace format: a process for each group, a thread for each partition.
function traceOf() {
  const groups = new Map(), events = [], added = new Set();
  const place = (chroot, group, row) => {
    const name = `${chroot} ${group}`.trim();
    if (!groups.has(name)) {
      groups.set(name, groups.size + 1);
      events.push({ ph: "M", name: "process_name", pid: groups.get(name), tid: 0, args: { name } });
    }
    const pid = groups.get(name), tid = row === undefined ? 0 : row + 1;
    if (tid && !added.has(row)) {
      added.add(row);
      events.push({ ph: "M", name: "thread_name", pid, tid, args: { name: `${data.rows[row][2]}-${data.rows[row][3]}` } });
    }
    return { pid, tid };
  };
  const span = (row, begin, end, member, args) => {
    const [chroot, group] = data.rows[row];
    if (wanted(asItem(data.rows[row]))) events.push({ ph: "X", name: data.members[member] || "?", cat: "ownership", ...place(chroot, group, row), ts: begin * 1000, dur: (end - begin) * 1000, args });
  };
  if (exact) for (let i = 0; i < exact.row.length; i++) span(exact.row[i], exact.begin(i), exact.end(i), exact.member[i], { ended: data.exact.ends[exact.ended[i]] });
  else data.rows.forEach((_, row) => eachCell(row, (a, b, member) => span(row, a, b, member, { rounded: true })));
  for (const f of shownFindings()) if (f.t !== null) {
    const row = rowOf.get(keyOf(f));
    events.push({ ph: "i", s: row === undefined ? "p" : "t", name: f.kind, cat: "finding", ...place(f.chroot || "", f.group_id || "", row), ts: f.t * 1000,
      args: { severity: f.severity, basis: f.basis, zxid: f.zxid === null ? null : zxid(f.zxid), what: f.sentence } });
  }
  return JSON.stringify({ traceEvents: events, displayTimeUnit: "ms" });
}
byId("csv").addEventListener("click", () => save("findings.csv", "text/csv", csvOf()));
byId("json").addEventListener("click", () => save("findings.json", "application/json", jsonOf()));
byId("trace").addEventListener("click", async () => {
  if (data.exact && !exact) { unpacking = unpacking || unpack(); await unpacking; }
  save("ownership.trace.json", "application/json", traceOf());
});

const s = data.summary;
for (const line of data.verdict) {
  const item = text(byId("verdict"), "li", "");
  if (line.severity) text(item, "span", line.severity, "sev " + line.severity);
  text(item, "span", (line.severity ? " " : "") + line.text + " ");
  const first = data.findings.find((f) => (line.effect && f.effect === line.effect) || (line.kind && f.kind === line.kind && f.severity === line.severity));
  if (!first) continue;
  const link = text(item, "a", "Show it.");
  link.href = "#" + new URLSearchParams({ finding: first.id });
  link.addEventListener("click", (event) => { event.preventDefault(); choose(first, false); canvas.scrollIntoView({ block: "center" }); });
}
for (const row of s.findings) {
  text(byId("kinds"), "span", row.severity, "sev " + row.severity);
  text(byId("kinds"), "span", ` ${row.count.toLocaleString("en")} ${row.kind} \u00a0 `);
}
const spans = (ranges) => ranges.length ? ranges.slice(0, 5).map(([a, b]) => `${zxid(a)} to ${zxid(b)}`).join(", ") + (ranges.length > 5 ? ", ..." : "") : "none";
byId("head").textContent = `${many(s.intervals, "ownership interval")} and ${many(s.commits, "write")} of offsets, `
  + `${when(data.begin)} to ${when(data.end)} UTC, from ${many(s.logs, "log")} of ${many(s.servers, "server")} with ${many(s.log_gaps.length, "log gap")}. `
  + `Timeline: ${number(data.rows.length)} of ${number(data.partitions)} partitions`
  + (data.exact && data.exact.count <= MANY ? "." : `, in cells of ${(data.width / 1000).toLocaleString("en")} s${data.exact ? " until you zoom in" : ""}.`);
if (data.only) byId("head").textContent += ` Only ${data.only}.`;
if (s.from || s.to) byId("head").textContent += ` Only findings ${[s.from && `from ${s.from}`, s.to && `before ${s.to}`].filter(Boolean).join(" ")}.`;
if (s.journals) byId("head").textContent += ` ${many(s.journals, "journal")} of members, ${s.unreadable} of their ${s.journal_lines.toLocaleString("en")} lines unreadable.`;
if (s.dropped.length || s.unconfirmed.length) byId("head").textContent += ` Proposals left out because they never were committed: ${spans(s.dropped)}; that may not have been committed: ${spans(s.unconfirmed)}.`;
data.limits.forEach((line) => text(byId("limits"), "li", line));
const here = Intl.DateTimeFormat().resolvedOptions().timeZone;
fill("group", [], () => { fillTopics(); draw(); });
fill("topic", []);
fill("severity", [["", "all"], ...Object.keys(colours).map((name) => [name, name])]);
fill("order", [["worst", "worst first"], ["time", "by time"]], drawFindings);
fill("zone", [...new Set(["UTC", here, ...Intl.supportedValuesOf("timeZone")])].map((name) => [name, name === here && name !== "UTC" ? `${name} (this computer)` : name]),
  () => { zone = byId("zone").value || "UTC"; draw(); });
fillGroups("");
byId("search").addEventListener("input", () => { fillGroups(byId("search").value); draw(); });
byId("words").addEventListener("input", draw);
recall();
draw();
document.documentElement.dataset.drawn = "yes";
if (unpackingOthers) unpackingOthers.then(() => { document.documentElement.dataset.others = others.names.length; });
if (unpacking) unpacking.then(() => { document.documentElement.dataset.exact = `${data.exact.count} ${exact.begin(0)} ${exact.end(data.exact.count - 1)}`; });
