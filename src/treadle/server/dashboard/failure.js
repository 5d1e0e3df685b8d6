// Says what went wrong and what can be done; leaves to others where it is shown.

import { ApiError } from "./api.js";
import { count } from "./format.js";

export function explain(error, hasBegun) {
  if (error instanceof ApiError) return [sentence(error.message), ...advice(error)].join(" ");
  if (error instanceof TypeError) return hasBegun ? "The connection to the server was lost." : "The server could not be reached.";
  return error.message;
}

function advice(error) {
  if (error.code === "context_length_exceeded") return ["Begin a new conversation, or edit an earlier message."];
  if (error.status === 401) return ["Enter another key."];
  if (error.status === 429 || error.status === 503) {
    return [error.retryAfter ? `It asks to wait ${count(error.retryAfter, "second")}.` : "Try again in a moment."];
  }
  return [];
}

function sentence(text) {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}
