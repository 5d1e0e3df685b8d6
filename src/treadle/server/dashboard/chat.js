// The conversation: sends it, shows the answer as it comes, stops it; leaves the connection to api.js.

import { ApiError, streamChat } from "./api.js";
import { count, digits, element, seconds } from "./format.js";

const FOLLOW_PIXELS = 80;

export class Chat {
  /** `onRefused` is called when the server wants another key; `onState` with whether an answer is under way. */
  constructor({ messages, scroller, announcement, onRefused, onState }) {
    this.messages = messages;
    this.scroller = scroller;
    this.announcement = announcement;
    this.onRefused = onRefused;
    this.onState = onState;
    this.turns = [];
    this.running = null;
  }

  get isRunning() {
    return this.running !== null;
  }

  stop() {
    this.running?.abort();
  }

  clear() {
    this.stop();
    this.turns = [];
    this.messages.replaceChildren();
    this.announcement.textContent = "";
  }

  /** Sends a message and resolves when its answer is over; false if the message was not taken and can be sent again. */
  async send(question, { model, system, sampling }) {
    const turns = this.turns;
    const running = (this.running = new AbortController());
    const asked = this.#add("user", "You");
    renderText(asked.body, question);
    const view = this.#add("assistant", model);
    this.announcement.textContent = "Answering";
    this.onState(true);
    this.#follow(true);
    const answer = new Answer(view, () => this.#follow(false));
    const messages = [...(system ? [{ role: "system", content: system }] : []), ...turns, { role: "user", content: question }];
    let error = null;
    try {
      for await (const chunk of streamChat({ model, messages, ...sampling }, running.signal)) answer.take(chunk);
    } catch (caught) {
      if (!running.signal.aborted) error = caught;
    }
    this.running = null;
    answer.finish({ isStopped: running.signal.aborted, error });
    if (turns === this.turns) {
      // Templates want turns in pairs: what was not answered is not part of the conversation.
      if (answer.text) turns.push({ role: "user", content: question }, { role: "assistant", content: answer.text });
      this.announcement.textContent = answer.spoken;
    }
    this.onState(false);
    if (error instanceof ApiError && error.status === 401) this.onRefused();
    return error === null || answer.text !== "";
  }

  #add(role, name) {
    const body = element("div", "body");
    const note = element("p", "note");
    const who = element("p", "who", name);
    const item = element("li", `message ${role}`, who, body, note);
    this.messages.append(item);
    return { item, body, note };
  }

  #follow(always) {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    if (always || scrollHeight - scrollTop - clientHeight < FOLLOW_PIXELS) this.scroller.scrollTop = scrollHeight;
  }
}

/** One answer on its way: drawn once a frame, however many tokens come in it. */
class Answer {
  constructor(view, onDrawn) {
    this.view = view;
    this.onDrawn = onDrawn;
    this.text = "";
    this.thoughts = "";
    this.usage = null;
    this.finishReason = null;
    this.sent = performance.now();
    this.first = null;
    this.last = null;
    this.frame = 0;
    view.item.classList.add("pending");
  }

  take(chunk) {
    this.usage = chunk.usage ?? this.usage;
    const choice = chunk.choices[0];
    if (!choice) return;
    this.finishReason = choice.finish_reason ?? this.finishReason;
    const { content, reasoning_content: thoughts } = choice.delta;
    if (!content && !thoughts) return;
    this.last = performance.now();
    this.first ??= this.last;
    this.text += content ?? "";
    this.thoughts += thoughts ?? "";
    this.frame ||= requestAnimationFrame(() => this.#draw());
  }

  finish({ isStopped, error }) {
    cancelAnimationFrame(this.frame);
    this.#draw();
    this.view.item.classList.remove("pending");
    this.view.item.classList.toggle("failed", error !== null);
    const note = error ? failure(error) : isStopped ? "Stopped" : this.#summary();
    this.view.note.textContent = note;
    this.spoken = [this.text, error || isStopped ? note : ""].filter(Boolean).join("\n");
    this.onDrawn();
  }

  #draw() {
    this.frame = 0;
    if (this.thoughts) {
      this.thinking ??= this.#addThinking();
      this.thinking.textContent = this.thoughts.trim();
    }
    renderText(this.view.body, this.text);
    this.onDrawn();
  }

  #addThinking() {
    const text = element("div", "thoughts");
    this.view.body.before(element("details", "thinking", element("summary", "", "Reasoning"), text));
    return text;
  }

  #summary() {
    const { usage } = this;
    if (usage === null || this.first === null) return this.text ? "" : "The answer is empty.";
    const parts = [count(usage.completion_tokens, "token")];
    const span = (this.last - this.first) / 1000;
    if (usage.completion_tokens > 1 && span > 0) parts.push(`${digits((usage.completion_tokens - 1) / span)} tok/s`);
    parts.push(`first after ${seconds((this.first - this.sent) / 1000)}`);
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`prompt ${usage.prompt_tokens}${cached ? `, ${cached} of it cached` : ""}`);
    if (this.finishReason === "length") parts.push("cut at its limit");
    return parts.join(" · ");
  }
}

function failure(error) {
  if (error instanceof ApiError) return error.message;
  return error instanceof TypeError ? "The server could not be reached." : error.message;
}

/** Shows text with fenced code set apart. All of it goes in as text; nothing a model writes becomes markup. */
function renderText(target, text) {
  const blocks = splitFences(text);
  while (target.children.length > blocks.length) target.lastChild.remove();
  blocks.forEach(({ isCode, content }, index) => {
    const name = isCode ? "PRE" : "P";
    let block = target.children[index];
    if (block?.tagName !== name) {
      const made = element(name);
      if (isCode) made.tabIndex = 0; // so that the keyboard can scroll it
      if (block) block.replaceWith(made);
      else target.append(made);
      block = made;
    }
    if (block.textContent !== content) block.textContent = content;
  });
}

function splitFences(text) {
  const blocks = [];
  let lines = [];
  let isCode = false;
  const close = () => {
    const content = lines.join("\n");
    if (content.trim()) blocks.push({ isCode, content: isCode ? content : content.trim() });
    lines = [];
  };
  for (const line of text.split("\n")) {
    if (line.trimStart().startsWith("```")) {
      close();
      isCode = !isCode;
    } else {
      lines.push(line);
    }
  }
  close();
  return blocks;
}
