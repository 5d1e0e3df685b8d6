// The field in which a message is written, and the keys that send it.

import { byId } from "./format.js";

const field = byId("question");

/** `onSend` is called with what was written, and returns whether it was taken. */
export function watchComposer(onSend) {
  const send = () => {
    const text = field.value.trim();
    if (!text || !onSend(text)) return;
    field.value = "";
    fit();
  };
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  field.addEventListener("input", fit);
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return; // an input method may be choosing a word
    event.preventDefault();
    send();
  });
}

/** As high as what is in it, up to what the style allows. */
function fit() {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}
