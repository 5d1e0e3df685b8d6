// Shows one turn of a conversation: who said it, what, and what can be done with it; leaves doing that to chat.js.

import { copyButton } from "./copy.js";
import { element, setText } from "./format.js";
import { showMarkdown } from "./markdown.js";

export class TurnView {
  /** `turn` is what store.js keeps; `actions` has `retry` and `edit`, called with the turn. */
  constructor(turn, actions) {
    this.turn = turn;
    this.actions = actions;
    this.frame = 0;
    this.body = element("div", "body");
    this.note = element("p", "note");
    this.foot = element("div", "foot", this.note, this.#buttons());
    const name = turn.role === "user" ? "You" : turn.model;
    this.item = element("li", `message ${turn.role}`, element("h3", "who", name), this.body, this.foot);
    this.draw();
  }

  /** Draws before the next frame, however many tokens come until then. */
  change(onDrawn) {
    this.frame ||= requestAnimationFrame(() => {
      this.draw();
      onDrawn();
    });
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const { turn } = this;
    this.item.classList.toggle("pending", turn.state === "pending");
    this.item.classList.toggle("failed", turn.state === "failed");
    if (turn.thoughts) this.#drawThoughts();
    if (turn.role === "user") this.#drawPlain();
    else showMarkdown(this.body, turn.content);
    setText(this.note, turn.note);
  }

  /** What people type is theirs as it stands. */
  #drawPlain() {
    const text = element("p", "", this.turn.content);
    text.dir = "auto";
    this.body.replaceChildren(text);
  }

  #drawThoughts() {
    if (!this.thoughts) {
      this.thoughts = element("div", "thoughts");
      this.thoughts.dir = "auto";
      this.body.before(element("details", "thinking", element("summary"), this.thoughts));
    }
    const { thoughts, thinkingSeconds, state } = this.turn;
    const isThinking = state === "pending" && !this.turn.content;
    const told = !(thinkingSeconds >= 0.1) ? "Reasoning" : `Reasoned for ${thinkingSeconds.toFixed(1)} s`;
    setText(this.thoughts.previousSibling, isThinking ? "Reasoning…" : told);
    setText(this.thoughts, thoughts.trim());
  }

  #buttons() {
    const copy = copyButton(() => this.turn.content, this.turn.role === "user" ? "Copy message" : "Copy answer");
    const [text, name] = this.turn.role === "user" ? ["Edit", "edit"] : ["Try again", "retry"];
    const other = element("button", `small ${name}`, text);
    other.type = "button";
    other.addEventListener("click", () => (name === "edit" ? this.#edit() : this.actions.retry(this.turn)));
    return element("div", "actions", copy, other);
  }

  #edit() {
    if (this.item.classList.contains("editing")) return;
    const field = element("textarea");
    field.value = this.turn.content;
    field.dir = "auto";
    field.rows = Math.min(12, this.turn.content.split("\n").length + 1);
    field.setAttribute("aria-label", "Edit your message; what follows it is answered anew");
    const [send, cancel] = [element("button", "main", "Send"), element("button", "quiet", "Cancel")];
    cancel.type = "button";
    const form = element("form", "edit-form", field, element("div", "controls", cancel, send));
    const close = () => this.#closeEdit(form);
    cancel.addEventListener("click", close);
    form.addEventListener("keydown", (event) => this.#editKey(event, form, close));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (field.value.trim()) this.actions.edit(this.turn, field.value.trim());
    });
    this.item.classList.add("editing");
    this.body.after(form);
    field.focus();
  }

  #editKey(event, form, close) {
    if (event.key === "Escape") close();
    else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target.tagName === "TEXTAREA") form.requestSubmit();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #closeEdit(form) {
    form.remove();
    this.item.classList.remove("editing");
    this.foot.querySelector(".edit").focus();
  }
}
