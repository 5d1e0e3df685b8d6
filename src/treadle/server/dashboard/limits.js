// Which share of the machine's limits is used, and in words what holds the engine back now.

import { byId, bytes, count, digits, percent, setText } from "./format.js";

const NEAR = 0.6;
const NOTICED = 0.05;

let before = null;

/** `rate` is the latest sample of rates.js, null if there is none yet. */
export function showLimits(stats, model, rate) {
  const { read_bytes_per_second: readLimit, int8_ops_per_second: int8Limit } = stats.limits;
  showMeter("bandwidth", model.shares.bandwidth, model.decode_read_bytes_per_second, readLimit, (rate) => `${bytes(rate)}/s`);
  showMeter("int8", model.shares.int8, model.prompt_int8_ops_per_second, int8Limit, (rate) => `${digits(rate / 1e9)} GOP/s`);
  setText(byId("bound"), boundWords(stats, model, rate, denied(stats)));
}

/** A share of the last ten seconds, in which there may have been none of this work. */
function showMeter(name, share, used, limit, words) {
  byId(`${name}-bar`).style.width = `${Math.min(100, 100 * (share ?? 0))}%`;
  setText(byId(`${name}-share`), share ? percent(share) : "–");
  const told = limit ? `${words(limit)} at best` : "not measured yet";
  setText(byId(`${name}-words`), share ? `${words(used)} of ${words(limit)}` : told);
}

/** Which shares of the time since the last look the CPUs stood still for a quota, and the host gave them to others. */
function denied(stats) {
  const last = before;
  before = { at: stats.clock_seconds, ...stats.denied };
  const span = last ? before.at - last.at : 0;
  const share = (name) => (span > 0 && last[name] !== null && before[name] !== null ? (before[name] - last[name]) / span : 0);
  return { quota: share("throttled_seconds"), host: share("steal_seconds") };
}

function boundWords(stats, model, rate, lost) {
  const isIdle = model.running + model.waiting === 0 && !(rate?.answer > 0) && !(rate?.prompt > 0);
  if (isIdle) return "Nothing runs.";
  const { latest, count: planned } = model.threads;
  if (lost.quota > NOTICED) return `Held back by the CPU quota: cores stood still for ${digits(lost.quota)} s of each second.`;
  if (lost.host > NOTICED) return `Held back by the host, which ran others on these cores for ${digits(lost.host)} s of each second.`;
  if (latest && latest < planned) return `Held back by other programs: ${latest} of ${count(planned, "thread")} compute.`;
  if (stats.limits.read_bytes_per_second === null) return "The limits are measured when nothing ran for a second.";
  return withinLimits(model, rate);
}

function withinLimits(model, rate) {
  const { bandwidth, int8 } = model.shares;
  const reads = rate?.prompt > rate?.answer && int8 !== null;
  if (reads && int8 >= NEAR) return "Bound by arithmetic: the cores multiply nearly as fast as they can.";
  if (bandwidth >= NEAR) return `Bound by memory: each step of answers reads ${bytes(model.memory.weights)} of weights.`;
  if (reads) return "Reading prompts, which arithmetic bounds; short ones do not reach its limit.";
  if (model.running > 3) return `${model.running} answers share each reading of the weights, so arithmetic counts as much as memory.`;
  return "Below both limits: steps of this size end before memory or cores are used to the full.";
}
