// The last requests and how long each phase took, as bars on one scale.

import { element, seconds } from "./format.js";

const NUM_SHOWN = 16;
const ENDS = { stop: "complete", length: "cut at its limit", stopped: "stopped" };

let shown = "";

export function showRequests(requests) {
  const recent = requests.slice(0, NUM_SHOWN);
  const key = JSON.stringify(recent);
  if (key === shown) return;
  shown = key;
  const longest = Math.max(...recent.map((request) => request.total_seconds), 0.001);
  document.getElementById("requests").replaceChildren(...recent.map((request) => row(request, longest)));
  document.getElementById("no-requests").hidden = recent.length > 0;
}

function row(request, longest) {
  const began = new Date(request.began_at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  const cached = request.cached_tokens ? `, ${request.cached_tokens} cached` : "";
  const prompt = request.prompt_tokens ?? "?"; // an engine elsewhere tells it at the end, if that is reached
  const tokens = element("td", "tokens", `${prompt} → ${request.answer_tokens}`);
  tokens.title = `prompt ${prompt}${cached}, answer ${request.answer_tokens}`;
  const made = element("tr", `state-${request.state}`, element("th", "", began), tokens, bar(request, longest));
  made.firstChild.scope = "row";
  return made;
}

function bar(request, longest) {
  const phases = phasesOf(request);
  const track = element("span", "track");
  for (const [className, , value] of phases) {
    const part = element("span", className);
    part.style.width = `${(100 * value) / longest}%`;
    track.append(part);
  }
  const state = ENDS[request.state] ?? request.state;
  const words = phases.map(([, label, value]) => `${label} ${seconds(value)}`).join(", ");
  track.setAttribute("aria-hidden", "true");
  const cell = element("td", "phases", track, element("span", "total", seconds(request.total_seconds)));
  cell.append(element("span", "unseen", `, ${state}: ${words}`));
  cell.title = `${state}: ${words}`;
  return cell;
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
  ];
}
