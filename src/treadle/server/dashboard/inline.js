// Draws the text inside a block: emphasis, code and links. All goes in as text; leaves blocks to markdown.js.

import { element } from "./format.js";

const CODE = /(`+)(?!`)([^]*?[^`])\1(?!`)/y;
const LINK = /!?\[((?:[^[\]\\]|\\.)*)\]\((<[^<>\n]*>|[^\s()]*(?:\([^\s()]*\)[^\s()]*)*)(?:\s+"[^"\n]*")?\)/y;
const ADDRESS = /<?(https?:\/\/[^\s<>"'`]+)>?/y;
const ESCAPED = /\\([!-/:-@[-`{-~])/y;
const EMPHASIS = /\*{1,3}|_{1,3}|~~/y;
const SPECIAL = /[\\`[!<*_~]|h(?=ttps?:)/g;
const NAMES = { 1: ["em"], 2: ["strong"], 3: ["strong", "em"] };
const DEEPEST = 6;

/** Returns nodes for `text`. */
export function inline(text, depth = 0, isInLink = false) {
  const reader = new Reader(text, depth, isInLink);
  reader.read();
  return reader.nodes;
}

/** The address if it leads to a web page, else null: a script or a file of this machine is never offered. */
export function safeAddress(text) {
  try {
    const address = new URL(text);
    return address.protocol === "http:" || address.protocol === "https:" ? address.href : null;
  } catch {
    return null;
  }
}

class Reader {
  constructor(text, depth, isInLink) {
    this.text = text;
    this.depth = depth;
    this.isInLink = isInLink;
    this.at = 0;
    this.plain = "";
    this.nodes = [];
    this.unclosed = new Set(); // marks that are known to have no end, so that each is looked for once
  }

  read() {
    while (this.at < this.text.length) {
      SPECIAL.lastIndex = this.at;
      const next = SPECIAL.exec(this.text)?.index ?? this.text.length;
      this.plain += this.text.slice(this.at, next);
      this.at = next;
      if (next < this.text.length && !this.#readSpecial()) {
        this.plain += this.text[this.at];
        this.at += 1;
      }
    }
    this.#flush();
  }

  #readSpecial() {
    const character = this.text[this.at];
    if (character === "\\") return this.#readEscaped();
    if (character === "`") return this.#readCode();
    if (character === "[" || character === "!") return this.#readLink();
    if (character === "<" || character === "h") return this.#readAddress();
    return this.#readEmphasis();
  }

  #match(pattern) {
    pattern.lastIndex = this.at;
    return pattern.exec(this.text);
  }

  #readEscaped() {
    const found = this.#match(ESCAPED);
    if (!found) return false;
    this.plain += found[1];
    this.at += 2;
    return true;
  }

  #readCode() {
    const run = /`+/y;
    const marks = this.#match(run)[0];
    const found = this.unclosed.has(marks) ? null : this.#match(CODE);
    if (!found) {
      this.unclosed.add(marks);
      this.plain += marks;
      this.at += marks.length;
      return true;
    }
    const inner = found[2].replaceAll("\n", " ");
    const isPadded = inner.startsWith(" ") && inner.endsWith(" ") && inner.trim();
    this.#add(element("code", "", isPadded ? inner.slice(1, -1) : inner), found[0].length);
    return true;
  }

  /** A picture becomes a link: fetching it would tell its server who reads this. */
  #readLink() {
    const found = this.isInLink ? null : this.#match(LINK);
    const address = found && safeAddress(found[2].replace(/^<|>$/g, ""));
    if (!found) return false;
    if (address) this.#add(link(address, inline(found[1] || address, this.depth + 1, true)), found[0].length);
    else this.#addPlain(found[0]);
    return true;
  }

  #readAddress() {
    if (this.isInLink || (this.text[this.at] === "h" && /\w/.test(this.text[this.at - 1] ?? ""))) return false;
    const found = this.#match(ADDRESS);
    if (!found) return false;
    const isWrapped = found[0].startsWith("<") && found[0].endsWith(">");
    const shown = isWrapped ? found[1] : withoutEnd(found[1]);
    const address = safeAddress(shown);
    if (!address) return false;
    if (!isWrapped && found[0].startsWith("<")) this.plain += "<";
    const length = isWrapped ? found[0].length : shown.length + (found[0].startsWith("<") ? 1 : 0);
    this.#add(link(address, [shown]), length);
    return true;
  }

  #readEmphasis() {
    const mark = this.#match(EMPHASIS)?.[0];
    if (!mark || this.depth >= DEEPEST) return false;
    const begin = this.at + mark.length;
    const end = this.#opens(mark, begin) ? this.#endOf(mark, begin) : -1;
    if (end === -1) {
      this.#addPlain(mark);
      return true;
    }
    const inner = inline(this.text.slice(begin, end), this.depth + 1, this.isInLink);
    const names = mark === "~~" ? ["del"] : NAMES[mark.length];
    const made = names.reduceRight((content, name) => [element(name, "", ...content)], inner);
    this.#add(made[0], end + mark.length - this.at);
    return true;
  }

  #opens(mark, begin) {
    if (this.unclosed.has(mark) || !/\S/.test(this.text[begin] ?? " ")) return false;
    return mark[0] !== "_" || !isWord(this.text[this.at - 1]);
  }

  /** Runs of a mark's character are taken as one: three end two marks at once, and others are another mark's. */
  #endOf(mark, begin) {
    const character = mark[0];
    for (let at = this.text.indexOf(character, begin + 1); at !== -1; at = this.text.indexOf(character, at + 1)) {
      const first = at;
      while (this.text[at + 1] === character) at += 1;
      const [before, after] = [this.text[first - 1], this.text[at + 1]];
      if (/\s/.test(before) || before === "\\" || (character === "_" && isWord(after))) continue;
      const length = at + 1 - first;
      if (length === mark.length || (length === 3 && character !== "~")) return at + 1 - mark.length;
    }
    this.unclosed.add(mark);
    return -1;
  }

  #add(node, length) {
    this.#flush();
    this.nodes.push(node);
    this.at += length;
  }

  #addPlain(text) {
    this.plain += text;
    this.at += text.length;
  }

  #flush() {
    if (this.plain) this.nodes.push(this.plain);
    this.plain = "";
  }
}

function link(address, content) {
  const made = element("a", "", ...content);
  made.href = address;
  made.title = address;
  made.target = "_blank";
  made.rel = "noopener noreferrer nofollow";
  return made;
}

/** A sentence's end is not part of an address in it, nor is a bracket that was opened before. */
function withoutEnd(address) {
  const end = address.replace(/[.,:;!?*_~]+$/, "");
  return end.endsWith(")") && !end.includes("(") ? withoutEnd(end.slice(0, -1)) : end;
}

function isWord(character) {
  return character !== undefined && /[\p{L}\p{N}_]/u.test(character);
}
