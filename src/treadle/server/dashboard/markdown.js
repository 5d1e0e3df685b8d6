// Draws Markdown that a model writes, as it comes. Elements are made one by one: nothing a model writes becomes markup.

import { blocksOf } from "./blocks.js";
import { copyButton } from "./copy.js";
import { element } from "./format.js";
import { inline } from "./inline.js";

const DRAWN = { code: drawCode, heading: drawHeading, list: drawList, quote: drawQuote, rule: () => element("hr"), table: drawTable, paragraph: drawParagraph };
const shown = new WeakMap(); // what each element was drawn of
const keyOf = (block) => `${block.type} ${block.source}`;

/** Shows `text` in `target`; what is there and did not change stays as it is, selected or scrolled. */
export function showMarkdown(target, text) {
  const blocks = blocksOf(text);
  while (target.children.length > blocks.length) target.lastChild.remove();
  blocks.forEach((block, index) => {
    const there = target.children[index];
    if (there && shown.get(there) === keyOf(block)) return;
    if (there && block.type === "code" && goesOn(there, block)) return;
    const made = draw(block);
    shown.set(made, keyOf(block));
    if (there) there.replaceWith(made);
    else target.append(made);
  });
}

function draw(block) {
  const made = DRAWN[block.type](block);
  if (block.type !== "code" && block.type !== "rule") made.dir = "auto"; // each in the direction of its own script
  return made;
}

function drawParagraph({ text }) {
  return element("p", "", ...inline(text));
}

/** Below the headings of the page itself. */
function drawHeading({ level, text }) {
  return element(`h${Math.min(6, level + 2)}`, `level-${level}`, ...inline(text));
}

function drawList({ isOrdered, start, items }) {
  const made = element(isOrdered ? "ol" : "ul", "", ...items.map((blocks) => element("li", "", ...drawItem(blocks))));
  if (isOrdered) made.start = start;
  return made;
}

function drawItem(blocks) {
  return blocks.flatMap((block, index) => (index === 0 && block.type === "paragraph" ? [element("span", "", ...inline(block.text))] : [draw(block)]));
}

function drawQuote({ blocks }) {
  return element("blockquote", "", ...blocks.map(draw));
}

function drawCode({ language, text }) {
  const code = element("code", "", text);
  const shown = element("pre", "", code);
  shown.tabIndex = 0; // so that the keyboard can scroll it
  shown.dir = "ltr";
  const head = element("div", "head", element("span", "language", language || "text"), copyButton(() => code.textContent, "Copy code"));
  return element("div", "code", head, shown);
}

function goesOn(there, block) {
  const { language, text } = block;
  if (!there.matches(".code") || there.querySelector(".language").textContent !== (language || "text")) return false;
  there.querySelector("code").textContent = text;
  shown.set(there, keyOf(block));
  return true;
}

function drawTable({ head, alignments, rows }) {
  const cell = (name) => (text, index) => {
    const made = element(name, alignments[index], ...inline(text));
    if (name === "th") made.scope = "col";
    return made;
  };
  const body = rows.map((row) => element("tr", "", ...row.map(cell("td"))));
  const table = element("table", "", element("thead", "", element("tr", "", ...head.map(cell("th")))), element("tbody", "", ...body));
  const frame = element("div", "table", table);
  frame.tabIndex = 0;
  frame.setAttribute("role", "region");
  frame.setAttribute("aria-label", "Table");
  return frame;
}
