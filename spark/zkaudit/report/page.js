"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const colours = { critical: "#dc2626", high: "#ea580c", medium: "#ca8a04", low: "#65a30d", info: "#6b7280" };
const view = { from: data.begin, to: data.end };
const ALL = -1, MOST = 10;

function text(parent, tag, value, className) {
  const element = document.createElement(tag);
  element.textContent = value;
  if (className) element.className = className;
  parent.appendChild(element);
  return element;
}
const zxid = (number) => "0x" + BigInt.asUintN(64, BigInt(number)).toString(16);
const when = (ms) => ms === null ? "" : new Date(ms).toISOString().replace("T", " ").replace("Z", "");
const hue = (member) => `hsl(${(member * 137.5) % 360} 55% ${52 + (member % 3) * 8}%)`;
const names = data.groups.map((g) => g.chroot + " " + g.group);

function options(id, values) {
  const select = byId(id);
  select.replaceChildren();
  values.forEach(([value, label]) => { text(select, "option", label).value = value; });
}
function fill(id, values) {
  options(id, values);
  byId(id).addEventListener("change", () => { if (id === "group") fillTopics(); draw(); });
}
function fillGroups(searched) {
  const found = data.groups.map((g, i) => [i, names[i].trim() + (g.worst ? ` (${g.worst})` : "")])
    .filter(([i]) => names[i].toLowerCase().includes(searched.toLowerCase()));
  options("group", searched && found.length ? found : [[ALL, "all"], ...found]);
  fillTopics();
}
const number = (count) => count.toLocaleString("en");
const many = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
// The command that makes a page of some groups. A name may hold anything: it is quoted for the regex and for the shell.
function command(name) {
  const regex = name.replace(/[^\p{L}\p{N}_-]/gu, "\\$&").replaceAll("'", "'\\''");
  return `run: zkaudit report OUT --group ${name ? `'${regex}'` : "REGEX"}`;
}
function left(count, total, what, table, name) {
  if (count >= total) return "";
  const all = `read the table OUT/tables/${table}`;
  const fix = data.all_groups === 1 || name === undefined ? all : name === null ? `choose a group, or ${all}` : command(name);
  return `Not in this page: ${number(total - count)} of ${number(total)} ${what}. To see them, ${fix} (OUT: the directory of the audit).`;
}
function drawCuts() {
  const group = chosenGroup(), name = group ? group.group : "", of = group ? " of this group" : "";
  const searched = byId("search").value;
  const cut = left(data.groups.length, data.all_groups, "groups", "registrations", searched && !searched.includes("/") ? searched : "");
  const missed = searched && !names.some((n) => n.toLowerCase().includes(searched.toLowerCase()));
  byId("groups-cut").textContent = missed ? `No group in this page has such a name. ${cut}` : cut;
  byId("rows-cut").textContent = group && !group.partitions ? "No partition of this group had an owner."
    : left(data.rows.map(asItem).filter(inGroup).length, group ? group.partitions : data.partitions, "partitions" + of, "ownership", name);
  byId("findings-cut").textContent = left(data.findings.filter(inGroup).length, allFindings(), "findings" + of, "findings", name);
  const counted = group || data.groups.length === data.all_groups ? "" : `Only the ${number(data.groups.length)} groups that can be chosen are counted here.`;
  const unknown = data.groups.some((one) => inGroup(one) && one.members.some((point) => point[1] === null));
  byId("series-cut").textContent = [counted, unknown ? "Grey: the logs do not show how many members were registered." : ""].filter(Boolean).join(" ");
}
function allFindings() {
  const group = chosenGroup();
  return group ? group.findings : data.summary.findings.reduce((sum, row) => sum + row.count, 0);
}
function chosenGroup() { return data.groups[Number(byId("group").value)]; }
function inGroup(item) {
  const group = chosenGroup();
  return !group || (item.chroot === group.chroot && item.group === group.group);
}
const asItem = (row) => ({ chroot: row[0], group: row[1], topic: row[2] });
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
  const severity = byId("severity").value;
  return data.findings.filter((f) => wanted(f) && (!severity || f.severity === severity));
}

function drawFindings() {
  const body = byId("findings");
  body.replaceChildren();
  const found = shownFindings();
  const total = allFindings();
  byId("findings-head").textContent = `Findings: ${number(found.length)} shown of ${number(total)}`;
  if (!found.length) text(text(body, "tr", ""), "td", total ? "None in this page for this choice." : "None.").colSpan = 4;
  for (const f of found) {
    const row = text(body, "tr", "");
    text(text(row, "td", ""), "span", f.severity, "sev " + f.severity);
    const kind = text(row, "td", f.kind);
    if (f.basis !== "proven") text(kind, "div", f.basis, "dim");
    text(row, "td", when(f.t), "at");
    const what = text(row, "td", f.sentence);
    const proof = f.evidence.map((e) => e[1] === null ? `${e[0]}: ${e[3]}` : `${e[0]} ${zxid(e[1])}: ${e[3]}`);
    text(what, "div", proof.join(" · "), "dim");
  }
}

function drawHerds() {
  const body = byId("herds");
  body.replaceChildren();
  const group = chosenGroup(), found = data.herds.filter(inGroup).slice(0, MOST), all = group ? group.changes : data.changes;
  if (!found.length) text(text(body, "tr", ""), "td", all ? `Members joined or left ${many(all, "time")}, no other member was woken.` : "No member joined or left.").colSpan = 6;
  byId("herds-cut").textContent = found.length ? left(found.length, all, `joins and leaves${group ? " of this group" : ""}`, "herds", group ? undefined : null) : "";
  for (const h of found) {
    const row = text(body, "tr", "");
    text(row, "td", when(h.t), "at");
    text(row, "td", `${h.group}: ${h.change} of ${h.member}`);
    for (const value of [h.notified, h.rebalances, h.reads]) text(row, "td", value.toLocaleString("en"));
    text(row, "td", h.basis === "modelled" ? "modelled: an upper bound" : h.basis === "measured" ? "measured from journals" : "measured in part: a lower bound");
  }
}

const LABEL = 230, ROW = 18;
let lines = [];
function fit(canvas, height) {
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.style.height = height + "px";
  canvas.width = width * scale; canvas.height = height * scale;
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  return [context, width];
}
const ink = () => getComputedStyle(document.body).color;
const at = (ms, width) => LABEL + (ms - view.from) / Math.max(1, view.to - view.from) * (width - LABEL);

// Exact intervals are packed in the page; they are unpacked once so few are in view that they can
// be told apart.
const MANY = 30000;
let exact = null, unpacking = null;
async function unpack() {
  const packed = Uint8Array.from(atob(data.exact.packed), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = await new Response(stream).arrayBuffer(), n = data.exact.count, unit = data.exact.unit;
  const a = new Uint32Array(bytes, 0, n), b = new Uint32Array(bytes, 4 * n, n);
  exact = {
    begin: (i) => data.begin + a[i] * unit, end: (i) => data.begin + b[i] * unit,
    member: new Uint32Array(bytes, 8 * n, n), row: new Uint16Array(bytes, 12 * n, n), ended: new Uint8Array(bytes, 14 * n, n),
  };
}
function drawsExact() {
  if (!data.exact || data.exact.count * (view.to - view.from) > MANY * (data.end - data.begin)) return false;
  if (!exact && !unpacking) unpacking = unpack().then(redraw);
  return exact !== null;
}

function drawTimeline() {
  lines = [];
  data.rows.forEach((row, i) => { if (wanted(asItem(row))) lines.push(i); });
  const place = new Map(lines.map((row, i) => [row, i]));
  const [c, width] = fit(byId("timeline"), lines.length * ROW);
  const bar = (row, a, b, member) => {
    const y = place.get(row);
    if (y === undefined || b < view.from || a > view.to) return;
    const x = Math.max(LABEL, at(a, width)), end = Math.min(width, at(b, width));
    c.fillStyle = hue(member);
    c.fillRect(x, y * ROW + 2, Math.max(1, end - x), ROW - 4);
  };
  if (drawsExact()) for (let i = 0; i < exact.row.length; i++)
    bar(exact.row[i], exact.begin(i), exact.end(i), exact.member[i]);
  else for (const [row, a, b, member] of data.cells)
    bar(row, data.begin + a * data.width, data.begin + (b + 1) * data.width, member);
  const key = (item) => JSON.stringify([item[0], item[1], item[2], item[3]]);
  const rowOf = new Map(data.rows.map((row, i) => [key(row), i]));
  for (const f of shownFindings()) {
    if (f.t === null) continue;
    const y = place.get(rowOf.get(key([f.chroot, f.group, f.topic, f.partition])));
    const x = at(f.t, width);
    if (x < LABEL || x > width) continue;
    c.fillStyle = colours[f.severity];
    if (y === undefined) { c.fillRect(x, 0, 1, lines.length * ROW); continue; }
    c.fillRect(x - 1, y * ROW, 3, ROW);
    if (f.u !== null) c.fillRect(x, y * ROW + ROW - 3, Math.max(1, Math.min(width, at(f.u, width)) - x), 3);
  }
  c.fillStyle = ink();
  lines.forEach((row, i) => {
    const [, group, topic, partition] = data.rows[row];
    c.fillText(`${group} ${topic}-${partition}`, 0, i * ROW + ROW / 2, LABEL - 8);
  });
  byId("span").textContent = `${when(Math.round(view.from))} to ${when(Math.round(view.to))} UTC`;
}

function drawSeries() {
  const [c, width] = fit(byId("series"), 156);
  ["members", "commits", "refused"].forEach((kind, band) => {
    const sums = new Map(), unknown = new Set();
    for (const group of data.groups) if (inGroup(group)) {
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
    const most = Math.max(1, ...sums.values()), low = band * 52 + 46;
    const bar = (b, height) => {
      const x = at(data.begin + b * data.width, width), end = at(data.begin + (b + 1) * data.width, width);
      if (end < LABEL || x > width) return;
      c.fillRect(Math.max(LABEL, x), low - height, Math.max(1, end - Math.max(LABEL, x)), height);
    };
    c.fillStyle = "#9ca3af66";
    for (const b of unknown) bar(b, 40);
    c.fillStyle = ["#2563eb", "#0d9488", "#dc2626"][band];
    for (const [b, n] of sums) bar(b, n / most * 40);
    c.fillStyle = ink();
    c.fillText(`${kind}, at most ${sums.size ? most : 0}`, 0, low - 20, LABEL - 8);
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
  return view.from + (event.clientX - box.left - LABEL) / (box.width - LABEL) * (view.to - view.from);
};
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const factor = event.deltaY < 0 ? 0.7 : 1 / 0.7, centre = msAt(event);
  const span = Math.min(data.end - data.begin, Math.max(10, (view.to - view.from) * factor));
  const share = (centre - view.from) / Math.max(1, view.to - view.from);
  view.from = Math.max(data.begin, centre - share * span);
  view.to = Math.min(data.end, view.from + span);
  redraw();
}, { passive: false });
let dragged = null;
canvas.addEventListener("pointerdown", (event) => { dragged = event.clientX; canvas.setPointerCapture(event.pointerId); });
canvas.addEventListener("pointerup", () => { dragged = null; });
canvas.addEventListener("pointermove", (event) => {
  const box = canvas.getBoundingClientRect();
  if (dragged !== null) {
    const step = (dragged - event.clientX) / (box.width - LABEL) * (view.to - view.from);
    const move = Math.max(data.begin - view.from, Math.min(data.end - view.to, step));
    view.from += move; view.to += move; dragged = event.clientX;
    redraw();
    return;
  }
  const row = lines[Math.floor((event.clientY - box.top) / ROW)], ms = msAt(event);
  if (row === undefined) return;
  const [, group, topic, partition] = data.rows[row];
  let owner = "no owner";
  if (drawsExact()) {
    const hit = exact.row.findIndex((r, i) => r === row && exact.begin(i) <= ms && ms < exact.end(i));
    if (hit >= 0) owner = `${data.members[exact.member[hit]]}, ${when(exact.begin(hit))} to ${when(exact.end(hit))}, ${data.exact.ends[exact.ended[hit]]}`;
  } else {
    const bucket = Math.floor((ms - data.begin) / data.width);
    const hit = data.cells.find(([r, a, b]) => r === row && a <= bucket && bucket <= b);
    if (hit) owner = `${data.members[hit[3]]} for most of this moment`;
  }
  byId("tip").textContent = `${group} ${topic}-${partition} at ${when(Math.round(ms))}: ${owner}`;
});
byId("reset").addEventListener("click", () => { view.from = data.begin; view.to = data.end; redraw(); });
window.addEventListener("resize", redraw);

const s = data.summary;
for (const row of s.findings) {
  text(byId("kinds"), "span", row.severity, "sev " + row.severity);
  text(byId("kinds"), "span", ` ${row.count.toLocaleString("en")} ${row.kind} \u00a0 `);
}
const spans = (ranges) => ranges.length ? ranges.slice(0, 5).map(([a, b]) => `${zxid(a)} to ${zxid(b)}`).join(", ") + (ranges.length > 5 ? ", ..." : "") : "none";
byId("head").textContent = `${many(s.intervals, "ownership interval")} and ${many(s.commits, "write")} of offsets, `
  + `${when(data.begin)} to ${when(data.end)} UTC, from ${many(s.logs, "log")} of ${many(s.servers, "server")} with ${many(s.log_gaps.length, "log gap")}. `
  + `Timeline: ${data.rows.length} of ${data.partitions} partitions`
  + (data.exact && data.exact.count <= MANY ? "." : `, in cells of ${(data.width / 1000).toLocaleString("en")} s${data.exact ? " until you zoom in" : ""}.`);
if (s.group) byId("head").textContent += ` Only groups whose name matches ${s.group}.`;
if (s.from || s.to) byId("head").textContent += ` Only findings ${[s.from && `from ${s.from}`, s.to && `before ${s.to}`].filter(Boolean).join(" ")}.`;
if (s.journals) byId("head").textContent += ` ${many(s.journals, "journal")} of members, ${s.unreadable} of their ${s.journal_lines.toLocaleString("en")} lines unreadable.`;
if (s.dropped.length || s.unconfirmed.length) byId("head").textContent += ` Proposals left out because they never were committed: ${spans(s.dropped)}; that may not have been committed: ${spans(s.unconfirmed)}.`;
data.limits.forEach((line) => text(byId("limits"), "li", line));
fill("group", []);
fill("topic", []);
fill("severity", [["", "all"], ...Object.keys(colours).map((name) => [name, name])]);
fillGroups("");
byId("search").addEventListener("input", () => { fillGroups(byId("search").value); draw(); });
draw();
document.documentElement.dataset.drawn = "yes";
if (unpacking) unpacking.then(() => { document.documentElement.dataset.exact = `${data.exact.count} ${exact.begin(0)} ${exact.end(data.exact.count - 1)}`; });
