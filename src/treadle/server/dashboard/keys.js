// Asks for an API key when the server wants one; leaves keeping and sending it to api.js.

import { storeKey, storedKey } from "./api.js";
import { byId, setText } from "./format.js";

const dialog = byId("key-dialog");
const button = byId("key-button");

export function isAskingForKey() {
  return dialog.open;
}

export function askForKey() {
  if (dialog.open) return;
  setText(byId("key-text"), storedKey() ? "The server refused this key. Is there another?" : "This server asks for a key. It is kept in this tab until you close it.");
  storeKey("");
  showKeyButton(true);
  dialog.showModal();
}

/** There is something to press if a key is kept, or wanted. */
export function showKeyButton(isWanted) {
  button.hidden = !storedKey() && !isWanted;
  const words = storedKey() ? "Forget the API key" : "Enter the API key";
  button.title = words;
  button.setAttribute("aria-label", words);
}

/** `onKey` is called when there is a new one to try. */
export function watchKey(onKey) {
  button.addEventListener("click", () => {
    storeKey("");
    askForKey();
  });
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    storeKey(byId("key").value.trim());
    byId("key").value = "";
    dialog.close();
  });
  dialog.addEventListener("close", () => {
    if (storedKey()) onKey();
    byId("question").focus();
  });
}
