// The figures of the engine, for the model that is chosen; leaves fetching them to app.js.

import { bytes, count, digits, element, percent } from "./format.js";
import { showRequests } from "./requests.js";

const NUM_SAMPLES = 120;
const [WIDTH, HEIGHT] = [120, 32];

const byId = (id) => document.getElementById(id);
let previous = null;
let rates = [];
let limits = null;

/** Shows one look at the server; `stats` is what /stats gave, `name` the model's. */
export function showEngine(stats, name) {
  const model = stats.models.find((each) => each.name === name);
  if (!model) return;
  limits = stats.limits;
  byId("resident").textContent = stats.resident_bytes ? bytes(stats.resident_bytes) : "–";
  showRequests(model.requests);
  showSpeed(model);
  if (!model.threads) {
    const place = model.is_loaded ? "elsewhere" : "not loaded";
    for (const id of ["queue", "weights", "context", "threads"]) byId(id).textContent = place;
    if (model.context) byId("context").textContent = count(model.context, "token");
    return;
  }
  byId("queue").textContent = `${model.running} running, ${model.waiting} waiting`;
  byId("weights").textContent = bytes(model.memory.weights);
  byId("context").textContent = count(model.context, "token");
  byId("threads").textContent = `${model.threads.count}, ${model.threads.isa}`;
  byId("threads").title = model.threads.reason;
  showCache(model.cache);
  showBlocks(model.kv_blocks);
}

function showSpeed(model) {
  const now = performance.now();
  const before = previous;
  previous = { name: model.name, now, tokens: model.tokens, steps: model.steps };
  if (before?.name !== model.name) {
    rates = [];
    for (const id of ["answer-rate", "prompt-rate", "read-rate"]) byId(id).textContent = "–";
    byId("answer-share").textContent = "";
  } else if (before.tokens && model.tokens && model.steps.count >= before.steps.count) {
    const span = (now - before.now) / 1000;
    const answered = (model.tokens.answer - before.tokens.answer) / span;
    rates.push(answered);
    byId("answer-rate").textContent = digits(Math.round(answered * 10) / 10);
    const prompts = `${digits(Math.round((model.tokens.prompt - before.tokens.prompt) / span))} tok/s`;
    byId("prompt-rate").textContent = prompts + (model.shares.int8 ? ` · ${ofLimit(model.shares.int8)}` : "");
    showReading(model);
  }
  rates = rates.slice(-NUM_SAMPLES);
  drawSpark();
}

/** While answers were computed only, in the last ten seconds: the time in between says nothing about the memory. */
function showReading(model) {
  const rate = model.decode_read_bytes_per_second;
  const share = byId("answer-share");
  share.textContent = model.shares.bandwidth ? ofLimit(model.shares.bandwidth) : "";
  if (!rate) return;
  byId("read-rate").textContent = `${bytes(rate)}/s`;
  share.title = limits.read_bytes_per_second ? `memory read at best: ${bytes(limits.read_bytes_per_second)}/s` : "";
}

function ofLimit(share) {
  return `${percent(share)} of the limit`;
}

function drawSpark() {
  const top = Math.max(1, ...rates);
  const left = WIDTH - Math.max(0, rates.length - 1) * (WIDTH / (NUM_SAMPLES - 1));
  const points = rates.map((rate, index) => {
    const x = left + index * (WIDTH / (NUM_SAMPLES - 1));
    return `${x.toFixed(2)},${(HEIGHT - 1 - (rate / top) * (HEIGHT - 3)).toFixed(2)}`;
  });
  byId("spark-line").setAttribute("points", points.join(" "));
  byId("spark-area").setAttribute("points", points.length ? `${left},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}` : "");
  const peak = rates.length ? Math.max(...rates) : 0;
  byId("spark").setAttribute("aria-label", `Answered tokens per second in the last two minutes, at most ${digits(Math.round(peak))}`);
}

function showCache(cache) {
  byId("hit-rate").textContent = cache.hit_rate ? `${percent(cache.hit_rate)} found` : "";
  showStack("cache", [
    ["kv", "in KV blocks", cache.kv_block_tokens],
    ["ram", "in memory", cache.ram_tokens],
    ["disk", "on disk", cache.disk_tokens],
    ["computed", "computed", cache.missed_tokens],
  ]);
}

function showBlocks(blocks) {
  byId("blocks-total").textContent = `${blocks.total.toLocaleString("en")} × ${blocks.tokens} tokens`;
  showStack("blocks", [
    ["used", "in use", blocks.used],
    ["cached", "cached", blocks.cached],
    ["free", "free", blocks.total - blocks.used - blocks.cached],
  ]);
}

/** A bar of parts and a legend with their numbers, which also is what a screen reader hears. */
function showStack(name, parts) {
  const total = parts.reduce((sum, [, , value]) => sum + value, 0);
  const bar = byId(`${name}-bar`);
  bar.setAttribute("aria-label", parts.map(([, label, value]) => `${value} ${label}`).join(", "));
  bar.replaceChildren(
    ...parts.map(([className, , value]) => {
      const part = element("span", className);
      part.style.flexGrow = total ? value / total : 0;
      return part;
    }),
  );
  byId(`${name}-legend`).replaceChildren(
    ...parts
      .filter(([className, , value]) => value || ["kv", "computed", "used", "cached", "free"].includes(className))
      .map(([className, label, value]) => element("li", className, `${value.toLocaleString("en")} ${label}`)),
  );
}
