// One answer on its way: gathers its chunks and measures them; leaves showing it to turn.js.

import { count, digits, seconds } from "./format.js";

const SHORTEST_SECONDS = 0.05; // of which a speed says something: text comes in pieces of several tokens

export class Answer {
  constructor() {
    this.text = "";
    this.thoughts = "";
    this.usage = null;
    this.finishReason = null;
    this.sent = performance.now();
    this.first = null;
    this.last = null;
    this.thought = null; // when the thoughts were over
  }

  /** Returns whether there is something new to show. */
  take(chunk) {
    this.usage = chunk.usage ?? this.usage;
    const choice = chunk.choices[0];
    if (!choice) return false;
    this.finishReason = choice.finish_reason ?? this.finishReason;
    const { content, reasoning_content: thoughts } = choice.delta;
    if (!content && !thoughts) return false;
    this.last = performance.now();
    this.first ??= this.last;
    if (content && this.thoughts) this.thought ??= this.last;
    this.text += content ?? "";
    this.thoughts += thoughts ?? "";
    return true;
  }

  /** How many seconds the model wrote to itself, null if it does still or did not. */
  get thinkingSeconds() {
    return this.thought === null ? null : (this.thought - this.first) / 1000;
  }

  /** How many tokens of the context the conversation takes now, null if that was not told. */
  get contextTokens() {
    return this.usage?.total_tokens ?? null;
  }

  get summary() {
    const { usage } = this;
    if (usage === null || this.first === null) return this.text ? "" : "The answer is empty.";
    const parts = [count(usage.completion_tokens, "token")];
    const span = (this.last - this.first) / 1000;
    if (usage.completion_tokens > 1 && span > SHORTEST_SECONDS) parts.push(`${digits((usage.completion_tokens - 1) / span)} tok/s`);
    parts.push(`first after ${seconds((this.first - this.sent) / 1000)}`);
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`prompt ${usage.prompt_tokens}${cached ? `, ${cached} of it cached` : ""}`);
    if (this.finishReason === "length") parts.push("cut at its limit");
    return parts.join(" · ");
  }
}
