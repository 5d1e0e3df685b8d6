// The conversation: sends it, takes the answer as it comes, stops it; leaves the connection to api.js.

import { Answer } from "./answer.js";
import { ApiError, streamChat } from "./api.js";
import { explain } from "./failure.js";
import { count } from "./format.js";
import { keep, newConversation } from "./store.js";
import { TurnView } from "./turn.js";

export class Chat {
  /**
   * `place` shows turns; `options` returns what to ask and of which model; `onState` is called when something changed,
   * `onRefused` when the server wants another key.
   */
  constructor(place, announcement, { options, onState, onRefused }) {
    this.place = place;
    this.announcement = announcement;
    this.options = options;
    this.onState = onState;
    this.onRefused = onRefused;
    this.running = null;
    this.open(newConversation());
  }

  get isRunning() {
    return this.running !== null;
  }

  stop() {
    this.running?.abort();
  }

  /** Shows another conversation; an answer that is on its way ends. */
  open(conversation) {
    this.stop();
    this.running = null;
    this.conversation = conversation;
    this.place.clear();
    this.announcement.textContent = "";
    for (const turn of conversation.turns) this.#show(turn);
    this.place.follow(true);
    this.onState();
  }

  send(text) {
    this.#add({ role: "user", content: text, note: "", state: "done" });
    return this.#answer();
  }

  /** Answers the last message once more. */
  retry() {
    if (this.isRunning) return null;
    const { turns } = this.conversation;
    this.#cut(turns.findLastIndex((turn) => turn.role === "user") + 1);
    return this.#answer();
  }

  edit(turn, text) {
    this.stop();
    this.#cut(this.conversation.turns.indexOf(turn));
    return this.send(text);
  }

  /** Whether the last message waits for a key. */
  get isRefused() {
    return this.conversation.turns.at(-1)?.isRefused === true;
  }

  /** The name of the model that was asked last. */
  get asked() {
    return this.conversation.turns.at(-1)?.model;
  }

  /** Says why there is nothing yet of an answer that is on its way. */
  tell(words) {
    const view = this.isRunning ? this.latest : null;
    if (!view || view.turn.content || view.turn.thoughts) return;
    view.turn.note = words;
    view.draw();
  }

  /** Begins a new conversation, and the one that is shown is not kept when its answer ends. */
  forget() {
    this.conversation.isForgotten = true;
    this.open(newConversation());
  }

  /** Keeps what there is of an answer that is on its way. */
  save() {
    if (this.isRunning) keep(this.conversation);
  }

  #cut(length) {
    this.conversation.turns.length = length;
    this.place.cut(length);
  }

  #add(turn) {
    this.conversation.turns.push(turn);
    return this.#show(turn);
  }

  #show(turn) {
    const view = new TurnView(turn, { retry: () => this.retry(), edit: (which, text) => this.edit(which, text) });
    this.place.add(view.item);
    this.latest = view;
    return view;
  }

  async #answer() {
    const { conversation } = this;
    const running = (this.running = new AbortController());
    const { model, system, sampling } = this.options();
    const messages = messagesOf(conversation.turns, system);
    const turn = { role: "assistant", model: model ?? "Model", content: "", thoughts: "", thinkingSeconds: null, note: "", state: "pending" };
    const view = this.#add(turn);
    this.announcement.textContent = "Answering";
    this.onState();
    this.place.follow(true);
    keep(conversation);
    const answer = new Answer();
    let error = null;
    try {
      for await (const chunk of streamChat({ model, messages, ...sampling }, running.signal)) {
        this.#take(turn, view, answer, chunk);
      }
    } catch (caught) {
      if (!running.signal.aborted) error = caught;
    }
    finish(turn, answer, running.signal.aborted, error);
    view.draw();
    if (!conversation.isForgotten) keep(conversation);
    if (this.running === running) this.#ended(turn, answer, error);
  }

  #take(turn, view, answer, chunk) {
    const isNew = answer.take(chunk);
    if (!isNew && !turn.note) return;
    turn.note = ""; // what was waited for is there
    turn.content = answer.text;
    turn.thoughts = answer.thoughts;
    turn.thinkingSeconds = answer.thinkingSeconds;
    view.change(() => this.place.follow(false));
  }

  #ended(turn, answer, error) {
    this.running = null;
    this.announcement.textContent = [turn.content, turn.state === "done" ? "" : turn.note].filter(Boolean).join("\n");
    this.place.follow(false);
    this.onState();
    if (error instanceof ApiError && error.status === 401) this.onRefused();
  }
}

function finish(turn, answer, isStopped, error) {
  turn.state = error ? "failed" : isStopped ? "stopped" : "done";
  turn.note = error ? explain(error, answer.first !== null) : isStopped ? "Stopped" : answer.summary;
  turn.contextTokens = answer.contextTokens;
  turn.isRefused = error instanceof ApiError && error.status === 401;
}

/** Templates want turns in pairs: a message that was not answered is no part of what follows. */
function messagesOf(turns, system) {
  const messages = system ? [{ role: "system", content: system }] : [];
  turns.forEach(({ role, content }, index) => {
    const next = turns[index + 1];
    const isPart = role === "user" ? next === undefined || (next.role === "assistant" && next.content !== "") : content !== "";
    if (isPart) messages.push({ role, content });
  });
  return messages;
}

/** How full the context is, as far as the latest answer told. */
export function contextWords(conversation, limit) {
  const used = conversation.turns.findLast((turn) => turn.contextTokens)?.contextTokens;
  if (!used) return "";
  return limit ? `${used.toLocaleString("en")} of ${count(limit, "token")} of context` : `${count(used, "token")} of context`;
}
