// The last requests of all models and how long each phase took, as bars on one scale.

import { byId, count, element, seconds } from "./format.js";

export const NUM_SHOWN = 12;
const ENDS = { stop: "complete", length: "cut at its limit", stopped: "stopped", error: "failed" };

let shown = "";

export function showRequests(models) {
  const all = models.flatMap((model) => model.requests.map((request) => ({ ...request, model: model.name })));
  const recent = all.sort((one, other) => other.began_at - one.began_at).slice(0, NUM_SHOWN);
  const key = JSON.stringify(recent);
  if (key === shown) return;
  shown = key;
  const longest = Math.max(...recent.map((request) => request.total_seconds), 0.001);
  byId("requests").replaceChildren(...recent.map((request) => row(request, longest, models.length > 1)));
  byId("no-requests").hidden = recent.length > 0;
}

function row(request, longest, isNamed) {
  const began = new Date(request.began_at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  const phases = phasesOf(request);
  const words = `${ENDS[request.state] ?? request.state}: ${phases.map(([, label, value]) => `${label} ${seconds(value)}`).join(", ")}`;
  const about = element(
    "p",
    "about",
    element("span", "", began),
    element("span", "model", isNamed ? request.model : ""),
    tokens(request),
    element("span", "total", seconds(request.total_seconds)),
    element("span", "unseen", words),
  );
  const made = element("li", `state-${request.state}`, about, bar(phases, longest));
  made.title = words;
  return made;
}

function tokens(request) {
  const prompt = request.prompt_tokens ?? "?"; // an engine elsewhere tells it at the end, if that is reached
  const result = request.kind === "answer" ? `${request.answer_tokens}` : count(request.num_inputs, request.kind === "ranking" ? "score" : "vector");
  const made = element("span", "tokens", `${prompt} → ${result}`);
  made.title = request.cached_tokens ? `${count(request.cached_tokens, "token")} of the prompt cached` : "";
  return made;
}

function bar(phases, longest) {
  const track = element("div", "track");
  track.setAttribute("aria-hidden", "true");
  for (const [className, , value] of phases) {
    const part = element("span", className);
    part.style.width = `${(100 * value) / longest}%`;
    track.append(part);
  }
  return track;
}

/** An engine elsewhere tells its phases only when it is done, if at all. */
function phasesOf(request) {
  if (request.queued_seconds === null) {
    const before = request.first_token_seconds ?? request.total_seconds;
    return [["before", "first token", before], ["decode", "answer", request.total_seconds - before]];
  }
  return [
    ["queued", "queued", request.queued_seconds],
    ["prefill", "prompt", request.prefill_seconds],
    ["decode", "answer", request.decode_seconds],
  ].filter(([name]) => request.kind === "answer" || name !== "decode");
}
