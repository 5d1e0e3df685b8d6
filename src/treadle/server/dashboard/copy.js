// Copies text; leaves to others which.

import { element } from "./format.js";

const SHOWN_MS = 1500;

/** A button that copies what `text` returns when it is pressed. */
export function copyButton(text, label) {
  const button = element("button", "small copy", "Copy");
  button.type = "button";
  button.setAttribute("aria-label", label);
  button.addEventListener("click", async () => {
    const isDone = await copy(text());
    button.textContent = isDone ? "Copied" : "Not copied";
    button.setAttribute("aria-label", button.textContent);
    setTimeout(() => {
      button.textContent = "Copy";
      button.setAttribute("aria-label", label);
    }, SHOWN_MS);
  });
  return button;
}

/** Browsers give pages a clipboard over https and on this machine only; elsewhere a selection is copied. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text);
  }
}

function copySelected(text) {
  const focused = document.activeElement;
  const field = element("textarea", "unseen");
  field.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return isDone;
}
