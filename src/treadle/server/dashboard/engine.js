// The panel beside the conversation: what the engine does, for the model that is chosen.

import { drawChart } from "./chart.js";
import { byId, bytes, count, digits, element, percent, setText } from "./format.js";
import { showLimits } from "./limits.js";
import { ratesOf } from "./rates.js";
import { showRequests } from "./requests.js";
import { keepSettings, keptSettings } from "./store.js";

const ROOMY = "(min-width: 60rem)";

/** Shows one look at the server; `stats` is what /stats gave, `model` one of its models. */
export function showEngine(stats, model) {
  const samples = ratesOf(stats, model?.name);
  drawChart(samples);
  showRequests(stats.models);
  setText(byId("resident"), stats.resident_bytes ? bytes(stats.resident_bytes) : "–");
  const isHere = Boolean(model?.threads);
  for (const part of document.querySelectorAll(".here")) part.hidden = !isHere;
  byId("not-here").hidden = isHere;
  if (!isHere) return setText(byId("not-here"), whyNothing(model));
  showSpeed(model, samples.at(-1) ?? null);
  showLimits(stats, model, samples.at(-1) ?? null);
  showCache(model.cache);
  showBlocks(model.kv_blocks);
  return showFacts(stats, model);
}

/** Beside the conversation where there is room; else in its place, when asked for. */
export function watchEngineButton() {
  byId("engine-button").addEventListener("click", () => {
    const isShown = !document.body.classList.contains("with-engine");
    showPanel(isShown);
    if (isRoomy()) keepSettings({ engine: isShown });
  });
  showPanel(isRoomy() && keptSettings().engine !== false);
}

/** Makes way where the panel is in the place of the conversation. */
export function showConversation() {
  if (!isRoomy()) showPanel(false);
}

function isRoomy() {
  return matchMedia(ROOMY).matches;
}

function showPanel(isShown) {
  document.body.classList.toggle("with-engine", isShown);
  byId("engine-button").setAttribute("aria-expanded", isShown);
}

function whyNothing(model) {
  if (!model) return "This server has no model.";
  if (model.is_elsewhere) return `${model.name} is computed elsewhere, and its figures are there.`;
  return model.is_loading ? `${model.name} is being loaded.` : `${model.name} is not loaded; the first message loads it.`;
}

function showSpeed(model, rate) {
  setText(byId("answer-rate"), rate ? digits(Math.round(rate.answer * 10) / 10) : "–");
  setText(byId("prompt-rate"), rate ? `${digits(Math.round(rate.prompt))} tok/s` : "–");
  setText(byId("queue"), `${model.running} running, ${model.waiting} waiting`);
}

function showFacts(stats, model) {
  const { memory, threads, cache } = model;
  const { throttled_seconds: quota, steal_seconds: host } = stats.denied;
  const number = threads.latest ? `${threads.latest} of ${threads.count}` : `${threads.count}`;
  const facts = [
    ["Weights", bytes(memory.weights)],
    ["KV blocks, at most", bytes(memory.kv_blocks_limit)],
    memory.ram_cache_limit ? ["Prompts kept in memory", count(cache.kept_tokens.ram, "token")] : null,
    memory.disk_cache_limit ? ["Prompts kept on disk", count(cache.kept_tokens.disk, "token")] : null,
    model.context ? ["Context", count(model.context, "token")] : null,
    ["Threads", `${number}, ${threads.isa}`],
    quota ? ["Stopped by the CPU quota for", `${digits(quota)} s`] : null,
    host ? ["Cores taken by the host for", `${digits(host)} s`] : null,
  ].filter((fact) => fact !== null);
  const list = byId("facts");
  if (list.children.length !== facts.length) list.replaceChildren(...facts.map(() => element("div", "", element("dt"), element("dd"))));
  facts.forEach((words, index) => words.forEach((text, place) => setText(list.children[index].children[place], text)));
  byId("threads-reason").textContent = threads.reason;
}

function showCache(cache) {
  setText(byId("hit-rate"), cache.hit_rate ? `${percent(cache.hit_rate)} found` : "");
  showStack("cache", [
    ["kv", "in KV blocks", cache.kv_block_tokens, true],
    ["ram", "in memory", cache.ram_tokens, false],
    ["disk", "on disk", cache.disk_tokens, false],
    ["computed", "computed", cache.missed_tokens, true],
  ]);
}

function showBlocks(blocks) {
  setText(byId("blocks-total"), `${blocks.total.toLocaleString("en")} × ${blocks.tokens} tokens`);
  showStack("blocks", [
    ["used", "in use", blocks.used, true],
    ["cached", "cached", blocks.cached, true],
    ["free", "free", blocks.total - blocks.used - blocks.cached, true],
  ]);
}

/** A bar of parts, and beside it their numbers, which readers of the screen get. */
function showStack(name, parts) {
  const [bar, legend] = [byId(`${name}-bar`), byId(`${name}-legend`)];
  if (!bar.children.length) {
    bar.replaceChildren(...parts.map(([className]) => element("span", className)));
    legend.replaceChildren(...parts.map(([className]) => element("li", className)));
  }
  parts.forEach(([, label, value, isAlways], index) => {
    bar.children[index].style.flexGrow = value;
    legend.children[index].hidden = !value && !isAlways;
    setText(legend.children[index], `${value.toLocaleString("en")} ${label}`);
  });
}
