// Numbers as people read them, and small elements; leaves to others where they go.

const UNITS = ["B", "kB", "MB", "GB", "TB"];

export function bytes(count) {
  let unit = 0;
  let value = count;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${digits(value)} ${UNITS[unit]}`;
}

/** Three digits at least, and no more behind the point than that takes. */
export function digits(value) {
  const places = value >= 100 || Number.isInteger(value) ? 0 : value >= 10 ? 1 : 2;
  return value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
}

export function seconds(value) {
  return value < 0.0995 ? `${Math.round(value * 1000)} ms` : `${digits(value)} s`;
}

/** How long ago or for how long, roughly. */
export function duration(value) {
  if (value < 60) return `${Math.floor(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min`;
  return value < 172800 ? `${Math.floor(value / 3600)} h` : `${Math.floor(value / 86400)} days`;
}

export function percent(share) {
  return `${Math.round(share * 100)} %`;
}

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

/** Makes an element with a class and children; strings become text, never markup. */
export function element(name, className = "", ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

export const byId = (id) => document.getElementById(id);

/** Sets text that differs only: a screen reader hears changes, and a selection stays. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}
