// Draws the answered tokens per second of the last minutes; leaves gathering them to rates.js.

import { byId, digits, setText } from "./format.js";
import { WINDOW_SECONDS } from "./rates.js";

const [WIDTH, HEIGHT] = [300, 60];

export function drawChart(samples) {
  const now = samples.at(-1)?.at ?? 0;
  const highest = Math.max(0, ...samples.map((each) => each.answer));
  const top = Math.max(1, highest);
  const x = (at) => Math.max(0, WIDTH * (1 - (now - at) / WINDOW_SECONDS)).toFixed(1);
  const y = (rate) => (HEIGHT - 1 - (rate / top) * (HEIGHT - 3)).toFixed(1);
  // Each rate is that of the time between two looks: a step, however long the page was not looked at.
  const points = samples.flatMap((each) => [`${x(each.from)},${y(each.answer)}`, `${x(each.at)},${y(each.answer)}`]);
  const first = samples.length ? x(samples[0].from) : 0;
  byId("chart-line").setAttribute("points", points.join(" "));
  byId("chart-area").setAttribute("points", points.length ? `${first},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}` : "");
  const most = highest > 0 ? `at most ${digits(Math.ceil(highest))} tok/s` : "";
  setText(byId("chart-top"), most);
  byId("chart").setAttribute("aria-label", `Answered tokens per second in the last five minutes${most ? `, ${most}` : ""}`);
}
