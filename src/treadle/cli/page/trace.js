// The page of `treadle trace`: shares, critical path and tools of all tasks or one, and the spans of one as a waterfall.

const GROUPS = { model: "model", tools: "tools", waiting: "waiting", own: "own work" };
const KINDS_OF_GROUP = {
  model: ["model", "queue", "prefill", "decode"],
  tools: ["tool", "sandbox", "network"],
  waiting: ["wait"],
  own: ["task", "turn", "parse", "dispatch"],
};
const MAX_PATH_ROWS = 10;
const MAX_OPEN_ROWS = 250;
const ROW = 20;
const AXIS = 24;
const INDENT = 12;
const MIN_VIEW = 1e-5; // of the task, the closest zoom

const byId = (id) => document.getElementById(id);
const nameOf = (span) => (span.name.startsWith(span.kind) ? span.name : `${span.kind} ${span.name}`.trimEnd());

// Summary

function showSummary(summary, scope) {
  byId("scope").textContent = scope;
  const total = summary.wall_seconds || 1;
  byId("total").textContent = seconds(summary.wall_seconds);
  const parts = Object.entries(summary.groups);
  byId("shares").replaceChildren(stackedBar(parts.map(([group, value]) => [`group-${group}`, value / total])));
  byId("groups").replaceChildren(...parts.map(([group, value]) => legendRow(summary, group, value, total)));
  byId("figures").replaceChildren(...figures(summary).map(([term, words]) => element("div", "", element("dt", "", term), element("dd", "", words))));
  showPath(summary.critical_path, total);
  showTools(summary.tools);
}

function legendRow(summary, group, value, total) {
  const kinds = KINDS_OF_GROUP[group].filter((kind) => summary.kinds[kind]?.wall_seconds > 0);
  const words = kinds.map((kind) => `${kind} ${seconds(summary.kinds[kind].wall_seconds)}`).join(", ");
  const cells = [GROUPS[group], seconds(value), percent(value / total), words];
  return element("li", `group-${group}`, ...cells.map((text) => element("span", "", text)));
}

function figures(summary) {
  const cached = summary.prompt_tokens ? summary.cached_tokens / summary.prompt_tokens : 0;
  const found = [
    ["accounted for by spans", `${(100 * summary.coverage).toFixed(1)} %`],
    ["prompt tokens", `${summary.prompt_tokens.toLocaleString("en")}, ${percent(cached)} cached`],
    ["answer tokens", summary.answer_tokens.toLocaleString("en")],
  ];
  if (summary.process_cpu_seconds) found.push(["CPU of the process", seconds(summary.process_cpu_seconds)]);
  if (summary.num_dropped) found.push(["spans there was no room for", summary.num_dropped.toLocaleString("en")]);
  return found;
}

function showPath(path, total) {
  const rows = path.slice(0, MAX_PATH_ROWS).map((share) => {
    const times = share.num_spans > 1 ? ` ×${share.num_spans}` : "";
    return tableRow("td", [`name kind-${share.kind}`, nameOf(share) + times], ["number", seconds(share.wall_seconds)], ["number", percent(share.wall_seconds / total)]);
  });
  const rest = path.slice(MAX_PATH_ROWS);
  if (rest.length) {
    const value = rest.reduce((sum, share) => sum + share.wall_seconds, 0);
    rows.push(tableRow("td", ["name", count(rest.length, "other")], ["number", seconds(value)], ["number", percent(value / total)]));
  }
  byId("path").replaceChildren(...rows);
}

function showTools(tools) {
  byId("tools-part").hidden = !Object.keys(tools).length;
  const head = tableRow("th", ["", "tool"], ["number", "calls"], ["number", "failed"], ["number", "wall"], ["number", "CPU"]);
  const rows = Object.entries(tools).map(([name, time]) =>
    tableRow(
      "td",
      ["name plain", name],
      ["number", String(time.num_calls)],
      ["number", String(time.num_errors)],
      ["number", seconds(time.wall_seconds)],
      ["number", time.cpu_seconds === null ? "" : seconds(time.cpu_seconds)],
    ),
  );
  byId("tools").replaceChildren(head, ...rows);
}

// Tasks

function showTasks(choose) {
  const longest = Math.max(...facts.tasks.map((task) => task.seconds), 1e-9);
  const all = taskRow("all of them", facts.summary.wall_seconds, null, () => choose(null));
  const rows = facts.tasks.map((task) => taskRow(task.name, task.seconds, [task.summary.groups, longest], () => choose(task)));
  byId("task-list").replaceChildren(all, ...rows);
  all.querySelector("input").checked = true;
}

function taskRow(name, wall, shares, choose) {
  const input = document.createElement("input");
  input.type = "radio";
  input.name = "task";
  input.addEventListener("change", choose);
  const bar = shares ? stackedBar(Object.entries(shares[0]).map(([group, value]) => [`group-${group}`, value / shares[1]])) : "";
  return tableRow("td", ["name plain", element("label", "", input, ` ${name}`)], ["number", seconds(wall)], ["shares", bar]);
}

// Waterfall

class Waterfall {
  constructor(drawing, detail) {
    this.drawing = drawing;
    this.detail = detail;
    this.drag = null;
    drawing.addEventListener("keydown", (event) => this.press(event));
    drawing.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    drawing.addEventListener("pointerdown", (event) => this.beginDrag(event));
    drawing.addEventListener("pointermove", (event) => this.moveDrag(event));
    drawing.addEventListener("pointerup", (event) => this.endDrag(event));
    drawing.addEventListener("pointercancel", () => this.dropDrag());
    new ResizeObserver(() => this.draw()).observe(drawing.parentElement);
  }

  show(task) {
    this.task = task;
    this.spans = new Map(task.spans.map((span) => [span.id, span]));
    this.children = new Map();
    this.root = task.spans.find((span) => span.parent === null);
    for (const span of [...task.spans].sort((one, other) => one.start - other.start)) {
      if (span.parent === null) continue;
      if (!this.children.has(span.parent)) this.children.set(span.parent, []);
      this.children.get(span.parent).push(span);
    }
    this.findPath();
    this.closed = new Set();
    if (task.spans.length > MAX_OPEN_ROWS) {
      for (const id of this.children.keys()) if (id !== this.root.id) this.closed.add(id);
    }
    this.selected = this.root.id;
    this.zoomTo(0, Math.max(task.seconds, 1e-9));
  }

  /** The stretches of the critical path that belong to each span or to what is within it. */
  findPath() {
    this.path = new Map();
    for (const step of this.task.critical_path) {
      for (let span = this.spans.get(step.span); span; span = this.spans.get(span.parent)) {
        if (!this.path.has(span.id)) this.path.set(span.id, []);
        const stretches = this.path.get(span.id);
        if (stretches.at(-1)?.end === step.start) stretches.at(-1).end = step.end;
        else stretches.push({ start: step.start, end: step.end });
      }
    }
  }

  zoomTo(start, end) {
    const least = this.task.seconds * MIN_VIEW;
    const length = Math.min(Math.max(end - start, least), Math.max(this.task.seconds, 1e-9));
    this.from = Math.min(Math.max(0, start), Math.max(0, this.task.seconds - length));
    this.to = this.from + length;
    this.draw();
  }

  zoomBy(factor, centre = (this.from + this.to) / 2) {
    this.zoomTo(centre - (centre - this.from) * factor, centre + (this.to - centre) * factor);
  }

  rows() {
    const found = [];
    const waiting = [[this.root, 0]];
    while (waiting.length) {
      const [span, depth] = waiting.pop();
      found.push([span, depth]);
      if (this.closed.has(span.id)) continue;
      for (const inner of [...(this.children.get(span.id) ?? [])].reverse()) waiting.push([inner, depth + 1]);
    }
    return found;
  }

  draw() {
    if (!this.task) return;
    const width = this.drawing.clientWidth;
    this.left = Math.round(Math.min(340, Math.max(130, width * 0.3)));
    this.scale = (width - this.left - 70) / (this.to - this.from);
    const rows = this.rows();
    const height = AXIS + rows.length * ROW + 6;
    this.drawing.setAttribute("height", height);
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.drawing.setAttribute("aria-activedescendant", `span-${this.selected}`);
    const clip = shape("clipPath", { id: "labels" }, shape("rect", { x: 0, y: 0, width: this.left - 8, height: ROW }));
    const drawn = rows.map(([span, depth], index) => this.drawRow(span, depth, index, width));
    this.drawing.replaceChildren(clip, ...this.drawAxis(height), ...drawn);
    this.range = null;
    this.showDetail(this.spans.get(this.selected));
  }

  x(time) {
    return this.left + (Math.min(Math.max(time, this.from), this.to) - this.from) * this.scale;
  }

  drawAxis(height) {
    return ticks(this.from, this.to, 8).flatMap((time) => [
      shape("line", { class: "grid", x1: this.x(time), x2: this.x(time), y1: AXIS - 6, y2: height }),
      shape("text", { class: "soft", x: this.x(time), y: 14, "text-anchor": "middle" }, tickLabel(time, this.to - this.from)),
    ]);
  }

  drawRow(span, depth, index, width) {
    const inner = this.children.get(span.id);
    const isOpen = Boolean(inner) && !this.closed.has(span.id);
    const classes = ["row", `kind-${span.kind}`];
    if (span.id === this.selected) classes.push("selected");
    if (span.has_failed) classes.push("failed");
    const row = shape("g", {
      id: `span-${span.id}`,
      class: classes.join(" "),
      transform: `translate(0 ${AXIS + index * ROW})`,
      role: "treeitem",
      "aria-level": depth + 1,
      "aria-selected": span.id === this.selected,
      "aria-label": `${nameOf(span)}, ${seconds(span.end - span.start)}`,
    });
    if (inner) row.setAttribute("aria-expanded", isOpen);
    const indent = 8 + Math.min(depth, 12) * INDENT;
    const mark = inner ? (isOpen ? "▾ " : "▸ ") : "";
    const label = shape("g", { "clip-path": "url(#labels)" }, shape("text", { class: "label", x: indent + (inner ? 0 : INDENT), y: 14 }, mark + nameOf(span).slice(0, 100)));
    row.append(shape("rect", { class: "hit", width, height: ROW }), label, ...this.drawBar(span, isOpen));
    row.addEventListener("pointerenter", () => this.showDetail(span));
    row.addEventListener("pointerleave", () => this.showDetail(this.spans.get(this.selected)));
    return row;
  }

  drawBar(span, isOpen) {
    if (span.end < this.from || span.start > this.to) return [];
    const [top, height] = isOpen ? [8, 4] : [4, 12]; // what is within an open span says more than its own bar
    const bar = (from, to, className) =>
      shape("rect", { class: `bar ${className}`, x: this.x(from), y: top, width: Math.max(1.5, this.x(to) - this.x(from)), height, rx: 1.5 });
    const path = (this.path.get(span.id) ?? []).filter((step) => step.end >= this.from && step.start <= this.to);
    const end = this.x(span.end);
    const time = shape("text", { class: "soft", x: end + 6, y: 14 }, seconds(span.end - span.start));
    return [bar(span.start, span.end, "beside-path"), ...path.map((step) => bar(step.start, step.end, "on-path")), time];
  }

  showDetail(span) {
    if (this.detailed === span) return;
    this.detailed = span;
    const pairs = [
      ["begins", seconds(span.start)],
      ["wall", seconds(span.end - span.start)],
      ["CPU of its own", span.cpu_seconds === null ? "not known" : seconds(span.cpu_seconds)],
    ];
    const long = [];
    for (const [name, value] of Object.entries(span.attributes)) {
      if (typeof value === "string" && (value.length > 30 || value.includes("\n"))) long.push([name, value]);
      else pairs.push([name.replaceAll("_", " "), typeof value === "number" ? numberWords(name, value) : String(value)]);
    }
    this.detail.replaceChildren(
      element("h3", "", nameOf(span)),
      element("dl", "", ...pairs.map(([term, words]) => element("div", "", element("dt", "", term), element("dd", "", words)))),
      ...long.map(([name, value]) => element("div", "attribute", element("div", "soft", name.replaceAll("_", " ")), element("pre", "", value))),
    );
  }

  select(id) {
    this.selected = id;
    this.draw();
    document.getElementById(`span-${id}`)?.scrollIntoView({ block: "nearest" });
  }

  toggle(span) {
    if (!this.children.has(span.id)) return;
    if (!this.closed.delete(span.id)) this.closed.add(span.id);
    this.draw();
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const span = this.spans.get(this.selected);
    const step = (this.to - this.from) / 5;
    const actions = {
      ArrowDown: () => this.moveBy(1),
      ArrowUp: () => this.moveBy(-1),
      Home: () => this.select(this.root.id),
      End: () => this.select(this.rows().at(-1)[0].id),
      ArrowRight: () => (event.shiftKey ? this.zoomTo(this.from + step, this.to + step) : this.open(span)),
      ArrowLeft: () => (event.shiftKey ? this.zoomTo(this.from - step, this.to - step) : this.close(span)),
      Enter: () => this.zoomTo(span.start, span.end),
      Escape: () => this.zoomTo(0, this.task.seconds),
      "+": () => this.zoomBy(0.5),
      "=": () => this.zoomBy(0.5),
      "-": () => this.zoomBy(2),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  moveBy(offset) {
    const rows = this.rows();
    const index = rows.findIndex(([span]) => span.id === this.selected) + offset;
    this.select(rows[Math.min(Math.max(index, 0), rows.length - 1)][0].id);
  }

  open(span) {
    if (this.closed.delete(span.id)) this.draw();
    else if (this.children.has(span.id)) this.moveBy(1);
  }

  close(span) {
    if (this.children.has(span.id) && !this.closed.has(span.id)) this.toggle(span);
    else if (span.parent !== null) this.select(span.parent);
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.zoomBy(event.deltaY > 0 ? 1.25 : 0.8, this.timeAt(event));
  }

  timeAt(event) {
    const x = event.clientX - this.drawing.getBoundingClientRect().left;
    return Math.min(Math.max(this.from + (x - this.left) / this.scale, this.from), this.to);
  }

  beginDrag(event) {
    if (event.button !== 0) return;
    const x = event.clientX - this.drawing.getBoundingClientRect().left;
    const id = Number(event.target.closest(".row")?.id.slice("span-".length));
    this.drag = { x, time: this.timeAt(event), id: Number.isNaN(id) ? null : id, isLabel: x < this.left };
  }

  moveDrag(event) {
    if (!this.drag || this.drag.isLabel) return;
    const [from, to] = [this.drag.time, this.timeAt(event)].sort((one, other) => one - other);
    if (!this.range) {
      this.range = shape("rect", { class: "range", y: AXIS, height: this.drawing.clientHeight - AXIS });
      this.drawing.append(this.range);
      this.drawing.setPointerCapture(event.pointerId);
    }
    this.range.setAttribute("x", this.x(from));
    this.range.setAttribute("width", this.x(to) - this.x(from));
  }

  endDrag(event) {
    const drag = this.drag;
    if (!drag) return;
    const [from, to] = [drag.time, this.timeAt(event)].sort((one, other) => one - other);
    const isRange = this.range && (to - from) * this.scale > 4;
    this.dropDrag();
    if (isRange) this.zoomTo(from, to);
    else if (drag.id !== null) this.click(this.spans.get(drag.id), drag);
  }

  dropDrag() {
    this.drag = null;
    this.range?.remove();
    this.range = null;
  }

  click(span, drag) {
    const wasSelected = this.selected === span.id;
    if (drag.isLabel) {
      this.selected = span.id;
      this.toggle(span);
      this.draw();
    } else if (wasSelected) this.zoomTo(span.start, span.end);
    else this.select(span.id);
  }
}

function tickLabel(time, length) {
  if (length < 0.2) return `${(time * 1000).toLocaleString("en", { maximumFractionDigits: length < 0.005 ? 3 : 1 })} ms`;
  return `${time.toLocaleString("en", { maximumFractionDigits: length < 2 ? 2 : 1 })} s`;
}

function numberWords(name, value) {
  return name.endsWith("seconds") ? seconds(value) : value.toLocaleString("en", { maximumFractionDigits: 3 });
}

const waterfall = new Waterfall(byId("waterfall"), byId("detail"));

function showTask(task) {
  byId("task-name").textContent = task.name;
  waterfall.show(task);
}

function choose(task) {
  if (task === null) showSummary(facts.summary, `All ${facts.tasks.length} tasks`);
  else showSummary(task.summary, "This task");
  showTask(task ?? facts.tasks[0]);
}

const began = new Date(Math.min(...facts.tasks.map((task) => task.began_at)) * 1000);
byId("about").textContent = `${count(facts.tasks.length, "task")}, ${began.toLocaleString("en-GB")}`;
byId("notes").replaceChildren(...facts.notes.map((note) => element("li", "", note)));
byId("zoom-in").addEventListener("click", () => waterfall.zoomBy(0.5));
byId("zoom-out").addEventListener("click", () => waterfall.zoomBy(2));
byId("whole").addEventListener("click", () => waterfall.zoomTo(0, waterfall.task.seconds));
byId("tasks").hidden = facts.tasks.length < 2;
if (facts.tasks.length > 1) showTasks(choose);
choose(facts.tasks.length > 1 ? null : facts.tasks[0]);
