// Numbers as people read them, elements and scales, for every page; leaves to others what to draw.

const SVG = "http://www.w3.org/2000/svg";

const facts = JSON.parse(document.getElementById("facts").textContent);

/** Makes an element with a class and children; strings become text, never markup. */
function element(name, className = "", ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** The same for drawings, with attributes. */
function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Three digits at least, and no more behind the point than that takes. */
function digits(value) {
  const places = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
}

function seconds(value) {
  if (value >= 0.0995) return `${digits(value)} s`;
  return value >= 0.00995 || value < 1e-7 ? `${Math.round(value * 1000)} ms` : `${(value * 1000).toPrecision(2)} ms`;
}

function percent(share) {
  return `${Math.round(share * 100)} %`;
}

function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

/** Round numbers that divide a range into at most `most` parts. */
function ticks(from, to, most) {
  const rough = (to - from) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough) ?? 10 * power;
  const found = [];
  for (let index = Math.ceil(from / step); index * step <= to; index += 1) found.push(index * step);
  return found;
}

/** A row of a table: texts, each with the class of its cell. */
function tableRow(kind, ...cells) {
  return element("tr", "", ...cells.map(([className, ...content]) => element(kind, className, ...content)));
}

/** A bar of parts, each with its share and class; what it says to readers of the screen is beside it. */
function stackedBar(parts) {
  const bar = element("div", "stack");
  bar.setAttribute("aria-hidden", "true");
  for (const [className, share] of parts) {
    const part = element("span", className);
    part.style.width = `${100 * share}%`;
    bar.append(part);
  }
  return bar;
}
