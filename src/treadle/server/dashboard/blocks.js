// Cuts Markdown into blocks: paragraphs, headings, lists, quotes, code, tables; leaves drawing them to markdown.js.
//
// Made for answers on their way: whatever is not closed yet goes on to the end, and each block has its `source`, by
// which one that did not change is known.

const FENCE = /^( {0,3})(`{3,}|~{3,}) *([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?: +(.*?))?(?: +#+)? *$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const DELIMITERS = /^ {0,3}\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/;
const DEEPEST = 8;

const KINDS = [
  { begins: (lines, at) => FENCE.test(lines[at]), read: readCode },
  { begins: (lines, at) => HEADING.test(lines[at]), read: readHeading },
  { begins: (lines, at) => RULE.test(lines[at]), read: (lines, at) => [{ type: "rule" }, at + 1] },
  { begins: (lines, at, depth) => depth < DEEPEST && QUOTE.test(lines[at]), read: readQuote },
  { begins: (lines, at, depth) => depth < DEEPEST && ITEM.test(lines[at]), read: readList },
  { begins: beginsTable, read: readTable },
];
const PARAGRAPH = { read: readParagraph };

export function blocksOf(text) {
  return read(text.replaceAll("\r\n", "\n").replaceAll("\t", "    ").split("\n"), 0);
}

function read(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const kind = KINDS.find(({ begins }) => begins(lines, at, depth)) ?? PARAGRAPH;
    const [block, end] = kind.read(lines, at, depth);
    blocks.push({ ...block, source: lines.slice(at, end).join("\n") });
    at = end;
  }
  return blocks;
}

function readCode(lines, at) {
  const [, indent, fence, language] = FENCE.exec(lines[at]);
  const closes = new RegExp(`^ {0,3}${fence[0]}{${fence.length},} *$`);
  let end = at + 1;
  while (end < lines.length && !closes.test(lines[end])) end += 1;
  const content = lines.slice(at + 1, end).map((line) => dedent(line, indent.length));
  return [{ type: "code", language, text: content.join("\n") }, Math.min(end + 1, lines.length)];
}

function readHeading(lines, at) {
  const [, marks, text] = HEADING.exec(lines[at]);
  return [{ type: "heading", level: marks.length, text: text ?? "" }, at + 1];
}

function readQuote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [{ type: "quote", blocks: read(inner, depth + 1) }, end];
}

/** Models indent by two, three or four columns, whatever the marker's width; two are enough to belong to an item. */
function readList(lines, at, depth) {
  const [, indent, marker] = ITEM.exec(lines[at]);
  const isOrdered = /\d/.test(marker);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const found = ITEM.exec(lines[end]);
    if (!found || found[1].length > indent.length + 1 || found[1].length + 1 < indent.length) break;
    if (/\d/.test(found[2]) !== isOrdered || RULE.test(lines[end])) break;
    const last = endOfItem(lines, end, indent.length, depth);
    const rest = lines.slice(end + 1, last).map((line) => dedent(line, found[0].length));
    items.push(read([lines[end].slice(found[0].length), ...rest], depth + 1));
    end = last;
  }
  return [{ type: "list", isOrdered, start: Number.parseInt(marker, 10), items }, endWithoutBlanks(lines, at, end)];
}

function endOfItem(lines, at, indent, depth) {
  let end = at + 1;
  let isAfterBlank = false;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (!line.trim()) {
      isAfterBlank = true;
      continue;
    }
    const belongs = columns(line) >= indent + 2;
    const goesOn = !isAfterBlank && !KINDS.some(({ begins }) => begins(lines, end, depth));
    if (!belongs && !goesOn) break;
    isAfterBlank = false;
  }
  return end;
}

function endWithoutBlanks(lines, at, end) {
  while (end > at + 1 && !lines[end - 1].trim()) end -= 1;
  return end;
}

function beginsTable(lines, at) {
  const next = lines[at + 1];
  return lines[at].includes("|") && next !== undefined && next.includes("-") && DELIMITERS.test(next) && cells(lines[at]).length === cells(next).length;
}

function readTable(lines, at) {
  const head = cells(lines[at]);
  const alignments = cells(lines[at + 1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "end") : "start"));
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  const rows = lines.slice(at + 2, end).map((line) => head.map((_, index) => cells(line)[index] ?? ""));
  return [{ type: "table", head, alignments, rows }, end];
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function readParagraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !interrupts(lines, end, depth)) end += 1;
  return [{ type: "paragraph", text: lines.slice(at, end).map((line) => line.trim()).join("\n") }, end];
}

/** A number at the beginning of a line is a list's if it is 1, and otherwise may be a year. */
function interrupts(lines, at, depth) {
  const item = ITEM.exec(lines[at]);
  if (item && !RULE.test(lines[at]) && /\d/.test(item[2]) && Number.parseInt(item[2], 10) !== 1) return false;
  return KINDS.some(({ begins }) => begins(lines, at, depth));
}

function columns(line) {
  return line.length - line.trimStart().length;
}

function dedent(line, most) {
  return line.slice(Math.min(most, columns(line)));
}
