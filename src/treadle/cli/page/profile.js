// The page of `treadle profile`: what bounds each cell, its operators under the roofline and as bars, and all steps.

const LIMITS = { memory: "memory", caches: "caches", int8: "int8 arithmetic", float: "float arithmetic" };
const SMALL = 0.005; // of a pass; smaller operators share a row
const PLOT = { height: 420, left: 62, right: 16, top: 16, bottom: 40 };
const STEPS = { height: 190, left: 62, right: 16, top: 12, bottom: 30 };
const LABEL = { width: 110, height: 26 };
const FACTS = {
  file_bytes: "file",
  weight_bytes: "weights in memory",
  decode_bytes: "read for one token",
  cache_bytes: "caches",
  memory_bytes: "memory",
  cpus: "CPUs",
  prompt_cpus: "CPUs for prompts",
  kv_type: "KV type",
  batch_tokens: "tokens of a step",
};
const OUTCOMES = { same: "noise", machine: "the machine", faster: "faster", slower: "slower" };

const byId = (id) => document.getElementById(id);
const giga = (value) => (value / 1e9).toLocaleString("en", { maximumSignificantDigits: 3, useGrouping: true });
const share = (value) => (value === null || value === undefined ? "" : percent(value));
const dateWords = (text) => text.replace("T", " ").replace("+00:00", " UTC");
const boundOf = (operator) => operator.derived.limit_name;

let chosen = facts.cells[facts.cells.length - 1];

// Cells and verdict

function showCells() {
  const head = tableRow("th", ["", "cell"], ...["tok/s", "spread", "ms a pass", "GB/s", "of limit", "GOP/s", "of peak"].map((text) => ["number", text]), ["", "bound by"]);
  byId("cells").replaceChildren(head, ...facts.cells.map(cellRow));
}

function cellRow(cell) {
  const input = document.createElement("input");
  input.type = "radio";
  input.name = "cell";
  input.checked = cell === chosen;
  input.addEventListener("change", () => choose(cell));
  const found = cell.derived;
  return tableRow(
    "td",
    [`name plain`, element("label", "", input, ` ${found.name}`)],
    ["number", digits(found.rate)],
    ["number", share(found.spread)],
    ["number", digits(found.pass_seconds * 1000)],
    ["number", giga(found.num_bytes / found.pass_seconds)],
    ["number", share(found.read_share)],
    ["number", giga(found.num_ops / found.pass_seconds)],
    ["number", share(found.ops_share)],
    ["", cell.verdict ? cell.verdict.kind.replace("-bound", "") : "not known"],
  );
}

function showVerdict() {
  const verdict = chosen.verdict;
  const words = verdict ? [element("strong", "", verdict.kind), `: ${verdict.because}`] : ["not known, for too little memory was free to measure the machine"];
  const advice = (verdict?.advice ?? []).map((text) => element("code", "", `$ ${text}`));
  byId("verdict").replaceChildren(element("p", "", `${chosen.derived.name}: `, ...words), ...advice);
}

// Roofline

class LogScale {
  constructor(values, from, to) {
    const known = values.filter((value) => value > 0);
    this.low = Math.floor(Math.log10(Math.min(...known)) - 0.1);
    this.high = Math.ceil(Math.log10(Math.max(...known)) + 0.05);
    this.from = from;
    this.to = to;
  }

  at(value) {
    return this.from + ((Math.log10(value) - this.low) / (this.high - this.low)) * (this.to - this.from);
  }

  get powers() {
    return Array.from({ length: this.high - this.low + 1 }, (_, index) => 10 ** (this.low + index));
  }
}

/** The operators that read and multiply: only those have a place under the roofline. */
function plotted(cell) {
  return cell.operators.filter((operator) => operator.derived.intensity > 0 && operator.derived.ops_per_second > 0);
}

function ceilings(limits) {
  const reads = [["memory", limits.memory_bytes], ["caches", limits.cache_bytes]].filter(([, rate]) => rate);
  const peaks = [[`int8 ${limits.isa}`, limits.int8_ops], ["float", limits.float_ops]].filter(([, rate]) => rate);
  return { reads, peaks };
}

function drawRoofline() {
  const drawing = byId("roofline");
  const width = drawing.clientWidth;
  const { reads, peaks } = ceilings(chosen.limits);
  const cells = facts.cells.filter((cell) => cell.derived.intensity > 0);
  const operators = plotted(chosen);
  const intensities = [...cells.map((cell) => cell.derived.intensity), ...operators.map((operator) => operator.derived.intensity)];
  const rates = [...cells.map((cell) => cell.derived.num_ops / cell.derived.pass_seconds), ...operators.map((operator) => operator.derived.ops_per_second)];
  drawing.setAttribute("viewBox", `0 0 ${width} ${PLOT.height}`);
  drawing.setAttribute("height", PLOT.height);
  if (!intensities.length) return;
  const knees = reads.flatMap(([, read]) => peaks.map(([, peak]) => peak / read));
  const x = new LogScale([...intensities, ...knees, ...knees.map((knee) => knee * 4)], PLOT.left, width - PLOT.right);
  const y = new LogScale([...rates, ...peaks.map(([, rate]) => rate)], PLOT.height - PLOT.bottom, PLOT.top);
  drawing.replaceChildren(
    ...drawGrid(x, y, width),
    ...drawCeilings(x, y, reads, peaks),
    ...operators.map((operator) => operatorPoint(operator, x, y)),
    ...operatorLabels(operators, x, y),
    ...cells.map((cell) => cellPoint(cell, x, y)),
  );
  const beside = chosen.operators.filter((operator) => !operators.includes(operator)).reduce((sum, operator) => sum + operator.derived.step_share, 0);
  byId("roofline-about").textContent = `rings are cells, dots the operators of this one, by their share of its time; ${percent(beside)} of it neither reads nor multiplies`;
}

function drawGrid(x, y, width) {
  const lines = [];
  for (const power of x.powers) {
    lines.push(shape("line", { class: "grid", x1: x.at(power), x2: x.at(power), y1: PLOT.top, y2: PLOT.height - PLOT.bottom }));
    lines.push(shape("text", { class: "soft", x: x.at(power), y: PLOT.height - PLOT.bottom + 16, "text-anchor": "middle" }, power.toLocaleString("en", { maximumFractionDigits: 3 })));
  }
  for (const power of y.powers) {
    lines.push(shape("line", { class: "grid", x1: PLOT.left, x2: width - PLOT.right, y1: y.at(power), y2: y.at(power) }));
    lines.push(shape("text", { class: "soft", x: PLOT.left - 6, y: y.at(power) + 4, "text-anchor": "end" }, giga(power)));
  }
  lines.push(shape("text", { class: "soft", x: (PLOT.left + width) / 2, y: PLOT.height - 6, "text-anchor": "middle" }, "operations per byte"));
  lines.push(shape("text", { class: "soft", x: 14, y: PLOT.height / 2, "text-anchor": "middle", transform: `rotate(-90 14 ${PLOT.height / 2})` }, "GOP/s"));
  return lines;
}

/** Each way of reading up to the highest peak, each peak from where the quickest reading reaches it. */
function drawCeilings(x, y, reads, peaks) {
  const [left, right, bottom] = [10 ** x.low, 10 ** x.high, 10 ** y.low];
  const best = Math.max(...reads.map(([, rate]) => rate));
  const top = Math.max(...peaks.map(([, rate]) => rate), 0) || 10 ** y.high;
  const drawn = [];
  for (const [name, rate] of reads) {
    const from = Math.max(left, bottom / rate);
    const to = Math.min(right, top / rate);
    drawn.push(shape("path", { class: name === "memory" && reads.length > 1 ? "roof other" : "roof", d: `M${x.at(from)} ${y.at(from * rate)}L${x.at(to)} ${y.at(to * rate)}` }));
    const middle = Math.sqrt(from * to);
    const slope = (Math.atan2(y.at(to * rate) - y.at(from * rate), x.at(to) - x.at(from)) * 180) / Math.PI;
    const [labelX, labelY] = [x.at(middle), y.at(middle * rate) - 6];
    drawn.push(shape("text", { x: labelX, y: labelY, "text-anchor": "middle", transform: `rotate(${slope} ${labelX} ${labelY})` }, `${name}, ${giga(rate)} GB/s`));
  }
  for (const [name, rate] of peaks) {
    const from = reads.length ? Math.max(left, rate / best) : left;
    drawn.push(shape("path", { class: name === "float" ? "roof other" : "roof", d: `M${x.at(from)} ${y.at(rate)}L${x.at(right)} ${y.at(rate)}` }));
    drawn.push(shape("text", { x: x.at(right) - 4, y: y.at(rate) - 6, "text-anchor": "end" }, `${name.replaceAll("_", " ")}, ${giga(rate)} GOP/s`));
  }
  return drawn;
}

function operatorPoint(operator, x, y) {
  const found = operator.derived;
  const words = `${operator.name}: ${operatorWords(operator)}`;
  return point(x.at(found.intensity), y.at(found.ops_per_second), 4 + 14 * Math.sqrt(found.step_share), `point by-${boundOf(operator) || "none"}`, words, () => showOperator(operator));
}

/** Names beside the dots, the longest operators first; those too close to another share its label. */
function operatorLabels(operators, x, y) {
  const labels = [];
  for (const operator of [...operators].sort((one, other) => other.derived.seconds - one.derived.seconds)) {
    const [atX, atY] = [x.at(operator.derived.intensity), y.at(operator.derived.ops_per_second)];
    const near = labels.find((label) => Math.abs(label.y - atY) < LABEL.height && Math.abs(label.x - atX) < LABEL.width);
    if (near) near.names.push(operator.name);
    else labels.push({ x: atX, y: atY, offset: 8 + 14 * Math.sqrt(operator.derived.step_share), names: [operator.name] });
  }
  return labels.map((label) => shape("text", { class: "soft", x: label.x, y: label.y + label.offset + 10, "text-anchor": "middle" }, shorten(label.names)));
}

function shorten(names) {
  return names.length > 3 ? `${names.slice(0, 2).join(", ")} and ${names.length - 2} more` : names.join(", ");
}

function cellPoint(cell, x, y) {
  const found = cell.derived;
  const words = `${found.name}: ${digits(found.rate)} tokens per second, ${share(found.limit_share)} of its limit`;
  const made = point(x.at(found.intensity), y.at(found.num_ops / found.pass_seconds), 7, `point cell kind-${cell.kind}${cell === chosen ? " selected" : ""}`, words, () => showCell(cell));
  made.addEventListener("click", () => choose(cell));
  made.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      choose(cell);
    }
  });
  return made;
}

function point(cx, cy, r, className, words, show) {
  const made = shape("circle", { cx, cy, r, class: className, tabindex: 0, role: className.includes("cell") ? "button" : "img", "aria-label": words }, shape("title", {}, words));
  made.addEventListener("pointerenter", show);
  made.addEventListener("focus", show);
  return made;
}

function operatorWords(operator) {
  const found = operator.derived;
  return `${digits(found.seconds * 1000)} ms, ${percent(found.step_share)} of the pass, ${share(found.roofline_share)} of its limit, which is ${LIMITS[boundOf(operator)] ?? "none"}`;
}

function showPairs(title, pairs) {
  byId("detail").replaceChildren(
    element("h3", "", title),
    element("dl", "", ...pairs.filter(([, words]) => words).map(([term, words]) => element("div", "", element("dt", "", term), element("dd", "", words)))),
  );
}

function showOperator(operator) {
  const found = operator.derived;
  showPairs(operator.name, [
    ["a pass", `${digits(found.seconds * 1000)} ms`],
    ["of the pass", percent(found.step_share)],
    ["waiting", `${digits(operator.wait_seconds * 1000)} ms`],
    ["calls", operator.num_calls.toLocaleString("en", { maximumFractionDigits: 1 })],
    ["read", operator.num_bytes ? `${giga(found.bytes_per_second)} GB/s` : ""],
    [`${operator.computes} operations`, operator.num_ops ? `${giga(found.ops_per_second)} G/s` : ""],
    ["operations per byte", found.intensity === null ? "" : digits(found.intensity)],
    ["of its limit", share(found.roofline_share)],
    ["which is", LIMITS[boundOf(operator)] ?? ""],
  ]);
}

function showCell(cell) {
  const found = cell.derived;
  showPairs(found.name, [
    ["tokens per second", digits(found.rate)],
    ["a pass", `${digits(found.pass_seconds * 1000)} ms`],
    ["read", `${giga(found.num_bytes / found.pass_seconds)} GB/s, ${share(found.read_share)}`],
    ["operations", `${giga(found.num_ops / found.pass_seconds)} G/s, ${share(found.ops_share)}`],
    ["operations per byte", found.intensity === null ? "" : digits(found.intensity)],
    ["of its limit", share(found.limit_share)],
    ["turns", String(cell.rates.length)],
    ["threads", String(cell.limits.num_threads)],
  ]);
}

// Operators

function showOperators() {
  const head = tableRow("th", ["", "operator"], ["", ""], ...["ms", "of the pass", "waiting", "GB/s", "GOP/s", "of its limit"].map((text) => ["number", text]), ["", "which is"]);
  const shown = chosen.operators.filter((operator) => operator.derived.step_share >= SMALL);
  const small = chosen.operators.filter((operator) => operator.derived.step_share < SMALL);
  const longest = Math.max(...chosen.operators.map((operator) => operator.derived.seconds), chosen.python_seconds, 1e-12);
  const rest = [["others", small.reduce((sum, operator) => sum + operator.derived.seconds, 0)], ["Python", chosen.python_seconds]];
  const total = chosen.operators.reduce((sum, operator) => sum + operator.derived.seconds, chosen.python_seconds);
  byId("operators").replaceChildren(
    head,
    ...shown.map((operator) => operatorRow(operator, longest)),
    ...rest.map(([name, time]) => tableRow("td", ["name plain", name], ["bar-cell", bar([["by-none", time]], null, longest)], ["number", digits(time * 1000)], ["number", percent(time / total)], ...Array(5).fill(["", ""]))),
  );
  const key = [["by-memory", "bound by reading"], ["by-int8", "bound by arithmetic"], ["by-none", "neither"], ["by-wait", "waiting for other threads"]];
  byId("operator-key").replaceChildren(...key.map(([className, text]) => element("li", className, text)));
}

function operatorRow(operator, longest) {
  const found = operator.derived;
  const drawn = bar([[`by-${boundOf(operator) || "none"}`, operator.busy_seconds], ["by-wait", operator.wait_seconds]], found.limit_seconds, longest);
  const row = tableRow(
    "td",
    ["name plain", operator.name],
    ["bar-cell", drawn],
    ["number", digits(found.seconds * 1000)],
    ["number", percent(found.step_share)],
    ["number", percent(operator.wait_seconds / (found.seconds || 1))],
    ["number", operator.num_bytes ? giga(found.bytes_per_second) : ""],
    ["number", operator.num_ops ? giga(found.ops_per_second) : ""],
    ["number", share(found.roofline_share)],
    ["", LIMITS[boundOf(operator)] ?? ""],
  );
  row.addEventListener("pointerenter", () => showOperator(operator));
  return row;
}

function bar(parts, limit, longest) {
  const drawing = shape("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  let x = 0;
  for (const [className, value] of parts) {
    const width = (100 * value) / longest;
    drawing.append(shape("rect", { class: className, x, y: 1, width, height: 8 }));
    x += width;
  }
  if (limit) drawing.append(shape("line", { class: "mark", x1: (100 * limit) / longest, x2: (100 * limit) / longest, y1: 0, y2: 10, "vector-effect": "non-scaling-stroke" }));
  return drawing;
}

// Steps

function drawSteps() {
  const drawing = byId("steps");
  const width = drawing.clientWidth;
  drawing.setAttribute("viewBox", `0 0 ${width} ${STEPS.height}`);
  drawing.setAttribute("height", STEPS.height);
  const all = facts.cells.flatMap((cell) => cell.steps.map((step) => step[1] * 1000));
  if (!all.length) return;
  const y = new LogScale(all, STEPS.height - STEPS.bottom, STEPS.top);
  const x = (time) => STEPS.left + (time / facts.seconds) * (width - STEPS.left - STEPS.right);
  const lines = y.powers.flatMap((power) => [
    shape("line", { class: "grid", x1: STEPS.left, x2: width - STEPS.right, y1: y.at(power), y2: y.at(power) }),
    shape("text", { class: "soft", x: STEPS.left - 6, y: y.at(power) + 4, "text-anchor": "end" }, `${power.toLocaleString("en", { maximumFractionDigits: 3 })} ms`),
  ]);
  for (const time of ticks(0, facts.seconds, 10)) lines.push(shape("text", { class: "soft", x: x(time), y: STEPS.height - 8, "text-anchor": "middle" }, `${time.toLocaleString("en", { maximumFractionDigits: 2 })} s`));
  const samples = facts.speeds.map(([began, , read, ops]) => shape("line", { class: "sample", x1: x(began), x2: x(began), y1: STEPS.top, y2: STEPS.height - STEPS.bottom }, shape("title", {}, `the machine: ${giga(read)} GB/s, ${giga(ops)} GOP/s`)));
  const ordered = [...facts.cells.filter((cell) => cell !== chosen), chosen];
  const steps = ordered.flatMap((cell) => cell.steps.map((step) => stepMark(cell, step, x, y)));
  drawing.replaceChildren(...lines, ...samples, ...steps);
  byId("steps-about").textContent = `${count(all.length, "step")}; those of the chosen cell solid`;
  const key = [["kind-prompt", "prompt"], ["kind-decode", "decode"]];
  byId("steps-key").replaceChildren(...key.map(([className, text]) => element("li", className, text)), element("li", "sample-key", "the machine's limits measured"));
}

function stepMark(cell, [began, length, tokens, threads, isTimed], x, y) {
  const words = `${cell.derived.name}: ${digits(length * 1000)} ms, ${count(tokens, "token")}, ${count(threads, "thread")}${isTimed ? ", timed by operator" : ""}`;
  const made = shape("rect", { class: `step kind-${cell.kind}${cell === chosen ? " selected" : ""}`, x: x(began), y: y.at(length * 1000) - 2.5, width: Math.max(2, x(began + length) - x(began)), height: 5, rx: 1 }, shape("title", {}, words));
  made.addEventListener("click", () => choose(cell));
  return made;
}

// Comparison, facts and events

function showComparison(comparison) {
  byId("comparison").hidden = false;
  byId("since").textContent = `Since ${dateWords(comparison.created)}`;
  const missing = comparison.missing.length ? [`not compared: ${comparison.missing.join(", ")}`] : [];
  byId("warnings").replaceChildren(...[...comparison.warnings, ...missing].map((text) => element("li", "", text)));
  const head = tableRow("th", ["", "cell"], ...["before", "now", "ratio", "noise", "of its limit"].map((text) => ["number", text]), ["", "which is"], ["", "most of it"]);
  const rows = comparison.changes.map((change) => {
    const isReal = change.outcome === "faster" || change.outcome === "slower";
    const operator = isReal && change.operator;
    return tableRow(
      "td",
      ["name plain", change.name],
      ["number", digits(change.old_rate)],
      ["number", digits(change.new_rate)],
      [`number ${isReal ? change.outcome : ""}`, change.ratio.toFixed(3)],
      ["number", `${(100 * change.noise).toFixed(1)} %`],
      ["number", `${share(change.old_limit_share)} → ${share(change.new_limit_share)}`],
      [isReal ? change.outcome : "", OUTCOMES[change.outcome]],
      ["", operator ? `${operator.name} ${digits(operator.old_seconds * 1000)} → ${digits(operator.new_seconds * 1000)} ms` : ""],
    );
  });
  byId("changes").replaceChildren(head, ...rows);
}

function showFacts(id, found) {
  const pairs = Object.entries(found).filter(([, value]) => value !== null);
  byId(id).replaceChildren(...pairs.map(([name, value]) => element("div", "", element("dt", "", FACTS[name] ?? name.replace(/^num_/, "").replaceAll("_", " ")), element("dd", "", factWords(name, value)))));
}

function factWords(name, value) {
  if (Array.isArray(value)) return value.join(" ");
  if (typeof value === "object") return Object.entries(value).map(([key, bytes]) => `${key} ${bytesWords(bytes)}`).join(", ");
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (name.endsWith("_bytes")) return bytesWords(value);
  return typeof value === "number" ? value.toLocaleString("en") : value;
}

function bytesWords(value) {
  const unit = Math.min(3, Math.max(0, Math.floor(Math.log10(Math.max(1, value)) / 3)));
  return `${(value / 1000 ** unit).toLocaleString("en", { maximumSignificantDigits: 3 })} ${["B", "kB", "MB", "GB"][unit]}`;
}

function showEvents() {
  const names = [...new Set(facts.cells.flatMap((cell) => Object.keys(cell.counts)))].filter((name) => name !== "task_clock_ns" && facts.cells.some((cell) => cell.counts[name] !== null && cell.counts[name] !== undefined));
  const reasons = new Map();
  for (const [name, reason] of Object.entries(facts.uncounted)) reasons.set(reason, [...(reasons.get(reason) ?? []), name.replaceAll("_", " ")]);
  byId("events").hidden = !names.length && !reasons.size && !facts.notes.length;
  const head = tableRow("th", ["", ""], ...names.map((name) => ["number", name.replaceAll("_", " ")]));
  const rows = facts.cells.map((cell) => tableRow("td", ["name plain", cell.derived.name], ...names.map((name) => ["number", perSecond(cell, name)])));
  byId("counts").replaceChildren(...(names.length ? [head, ...rows] : []));
  byId("uncounted").replaceChildren(...[...reasons].map(([reason, found]) => element("li", "", `${found.join(", ")}: ${reason}`)), ...facts.notes.map((note) => element("li", "", note)));
}

function perSecond(cell, name) {
  const found = cell.counts[name];
  const time = cell.conditions.seconds;
  return found === null || found === undefined || !time ? "" : Math.round(found / time).toLocaleString("en");
}

function choose(cell) {
  chosen = cell;
  showCells();
  showVerdict();
  showCell(cell);
  showOperators();
  draw();
}

function draw() {
  drawRoofline();
  drawSteps();
}

byId("title").textContent = `Where ${facts.model.name} spends its time`;
byId("about").textContent = `${facts.machine.processor}, ${count(facts.settings.cpus.length, "thread")}, ${dateWords(facts.created)}, Treadle ${facts.treadle}`;
showFacts("model", facts.model);
showFacts("machine", facts.machine);
showFacts("settings", facts.settings);
showEvents();
if (facts.comparison) showComparison(facts.comparison);
if (facts.cells.length) {
  choose(chosen);
  new ResizeObserver(draw).observe(document.body);
}
